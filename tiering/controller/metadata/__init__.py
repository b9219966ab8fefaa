"""The log of a KRaft quorum, ``__cluster_metadata-0``: its records, its files, and its image."""
