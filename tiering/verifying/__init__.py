"""Verifies a store: its objects against their manifests, and its snapshots against a replay."""
