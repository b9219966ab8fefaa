"""Layouts: which keys the objects of a segment have, and the manifest that names them."""
