"""Garbage collection and retention: what is deleted from a store, and when."""
