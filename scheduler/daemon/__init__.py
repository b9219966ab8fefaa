"""The process of ``resnap serve``: schedules, HTTP API, pages, and one engine for all runs."""
