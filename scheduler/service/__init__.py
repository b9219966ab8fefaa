"""What the parts of the service share: services, schedules, and the checks before it starts."""
