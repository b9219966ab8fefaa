"""The job contract (``contract``), and what all jobs share: rows, releases, and the wiring."""
