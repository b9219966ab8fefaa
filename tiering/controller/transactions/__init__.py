"""Decisions of a transaction coordinator, and producers' reactions to errors (KIP-98, KIP-360, KIP-890)."""
