"""A whole cluster: one answer for each topic over all replicas, and whether a broker may be stopped now."""
