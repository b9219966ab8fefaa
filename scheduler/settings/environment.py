"""The environment of this process: the one place where it is read, and cheap to import."""

import os


def process_environment() -> dict[str, str]:
    """Return the variables of this process; for everybody who needs them, so that nobody else reads them."""
    return dict(os.environ)
