"""What the services beside the brokers of a cluster say, and what the cluster itself does."""
