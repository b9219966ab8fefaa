"""Kafka's generated messages as data: schemas, the bytes of values, and the frame around a message."""
