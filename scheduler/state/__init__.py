"""The one SQLite database of the service, and its schema."""
