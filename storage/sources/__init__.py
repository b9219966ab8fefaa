"""What the packages above read: files by locator, and log dirs wherever they lie."""
