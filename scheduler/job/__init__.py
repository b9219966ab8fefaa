"""The job contract (``contract``), and what all jobs share: selections, plans, engines, and the wiring of these."""
