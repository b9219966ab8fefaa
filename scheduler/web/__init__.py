"""The web pages: rendered on the server, read-only, and without external resources; and the whole application."""
