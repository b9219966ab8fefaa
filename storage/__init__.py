"""Bytes: Kafka's on-disk formats (``storage.log``) and object stores (``storage.stores``). No policy, no Spark."""
