"""The stages of a replay over many processes: summaries of splits, combined by ranges of producer ids."""
