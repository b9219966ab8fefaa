"""What the service says of itself while it works: numbers for Prometheus, and a log."""
