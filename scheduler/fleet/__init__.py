"""The reports of the services beside a cluster's brokers, and the state of the cluster itself."""
