"""A running cluster: what it says of its topics, and the one topic that is written to."""
