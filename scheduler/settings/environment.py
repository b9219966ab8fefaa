"""The environment of this process: the only place that reads it; cheap to import."""

import os

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # it would look for them in all that is installed


def process_environment() -> dict[str, str]:
    """Return the variables of this process, which nothing else in these packages reads."""
    return dict(os.environ)
