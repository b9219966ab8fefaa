"""Messages of Kafka's generated formats as data: schemas, the bytes of values, and the frame around a message."""
