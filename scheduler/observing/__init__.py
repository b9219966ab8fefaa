"""What the service tells of itself while it works: numbers for Prometheus, and a log."""
