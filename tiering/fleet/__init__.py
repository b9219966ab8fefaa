"""A whole cluster: one verdict per topic over all replicas, and whether a broker may be stopped now."""
