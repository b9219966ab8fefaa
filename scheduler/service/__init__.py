"""What the parts of the service share: services, schedules, observation, and what is checked before it starts."""
