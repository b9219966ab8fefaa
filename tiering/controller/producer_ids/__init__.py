"""Allocation of producer ids: blocks that a controller gives to brokers, and ids from these blocks."""
