"""Layouts: the keys that the objects of a segment have in a store, and the manifest that names them."""
