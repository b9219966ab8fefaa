"""Tiered storage as brokers record it: the records of ``__remote_log_metadata``, and the state that they make."""
