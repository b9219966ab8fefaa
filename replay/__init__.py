"""Rebuilds producer state from segments: the fold, its mergeable summary, the window, and the Spark job."""
