"""What a transaction coordinator decides, and what producers make of errors (KIP-98, KIP-360, KIP-890)."""
