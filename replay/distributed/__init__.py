"""The stages of a distributed replay: scan splits into summaries, and combine them by ranges of producer ids."""
