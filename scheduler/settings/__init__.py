"""Settings, and where each comes from: flags, the environment, a file, the cluster, the broker."""
