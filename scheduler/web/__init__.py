"""The pages: rendered here, read-only, and without anything from elsewhere."""
