"""Access to a running cluster: facts of its topics, its replicas, and the metadata topic that is written."""
