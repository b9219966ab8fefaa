"""Renders results: rows as tables or JSON, and progress."""
