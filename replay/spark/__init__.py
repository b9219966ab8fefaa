"""Spark: its JVM, its context and its settings, the replay as a Spark job, and batch headers as rows for SQL."""
