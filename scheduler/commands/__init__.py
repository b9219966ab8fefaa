"""Commands that are not jobs: the service, its runs and tokens, and what Resnap is and how it is configured."""
