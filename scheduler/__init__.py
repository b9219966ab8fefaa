"""Everything around the core: jobs, settings, the service with its API and pages, and the command line."""
