"""A running cluster: what it tells of its topics, and the one topic that is written to."""
