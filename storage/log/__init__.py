"""Kafka's on-disk formats as sans-IO codecs, and a broker's log directories as frozen values."""
