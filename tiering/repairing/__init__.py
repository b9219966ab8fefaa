"""Repairs tiered segments: replaces wrong snapshots and transaction indexes with correct ones, and undoes that."""
