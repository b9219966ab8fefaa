"""Installs snapshots beside the segments of a stopped broker, and undoes an installation."""
