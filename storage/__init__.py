"""Bytes: Kafka's on-disk formats (``storage.log``) and object stores (``storage.remote``). No policy, no Spark."""
