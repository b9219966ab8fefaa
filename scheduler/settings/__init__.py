"""Settings, and their sources: flags, the environment, a file, the cluster, the broker."""
