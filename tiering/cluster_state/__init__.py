"""The state of a cluster besides its records, kept in a store: configuration, ACLs, quotas, committed offsets."""
