"""What was tiered, written back as a log dir."""
