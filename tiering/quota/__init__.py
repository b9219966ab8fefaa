"""KIP-936 as a library: how many producer ids each principal brings to life, and when that is too many."""
