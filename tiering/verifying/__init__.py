"""What lies in a store, held against what its manifests say, and its snapshots against a replay."""
