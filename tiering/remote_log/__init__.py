"""Tiered storage as brokers see it: the records of ``__remote_log_metadata``, and what they amount to."""
