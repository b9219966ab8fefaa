"""The service's single SQLite database, and its schema."""
