"""``resnap serve``: one process with the schedule, the HTTP API, the pages, and one engine for all runs."""
