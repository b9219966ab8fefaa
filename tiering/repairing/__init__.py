"""Repair of what is tiered already: right snapshots and transaction indexes in the place of wrong ones."""
