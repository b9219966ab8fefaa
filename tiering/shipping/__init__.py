"""Segments to a store: what is still to be shipped, what goes with each, where it fits, and how it gets there."""
