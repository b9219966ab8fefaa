"""Layouts: which keys the objects of a segment have, one module for each."""
