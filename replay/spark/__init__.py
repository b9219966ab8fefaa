"""Spark: its JVM, its session and its settings, the replay as a job of it, and segments as rows of SQL."""
