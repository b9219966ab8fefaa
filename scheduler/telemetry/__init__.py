"""Telemetry of the service: metrics for Prometheus, a log, and traces."""
