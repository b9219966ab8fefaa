"""What the packages above read: files by locator, and log dirs, local or in a store."""
