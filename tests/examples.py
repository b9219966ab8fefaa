"""How many examples a property is held against."""

from __future__ import annotations

from hypothesis import settings


def examples(most: int) -> settings:
    """Return the settings of a test that takes ``most`` examples when it is thorough, and some of them when quick."""
    return settings(max_examples=max(5, most * settings.default.max_examples // 100))
