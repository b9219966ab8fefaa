"""Restores tiered segments as a log dir."""
