"""Runs of the service: what was asked for, how far it came, what came of it, kept in one SQLite file."""
