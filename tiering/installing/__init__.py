"""Snapshots back beside the segments of a stopped broker, and the way back from that."""
