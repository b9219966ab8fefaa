"""Commands that are not jobs: the service, its runs and tokens, version and configuration."""
