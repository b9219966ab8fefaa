"""Scans segments into summaries of producers: header by header, in parallel, in splits."""
