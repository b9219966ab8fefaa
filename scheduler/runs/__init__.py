"""Runs of the service: their requests, progress and results, stored in one SQLite file."""
