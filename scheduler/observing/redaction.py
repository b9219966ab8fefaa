"""Values that are logged, without the secrets in them: by the names they stand under, and in running text.

Libraries below write what they like into their messages, and errors of a store quote requests; so all text is looked
through, tracebacks included.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.answers.redaction import MASK, redacted
from scheduler.settings.values import shown_as


def redacted_value(name: str, value: object) -> object:
    """Return what is logged under ``name``, down to the last text in it, without secrets."""
    if isinstance(value, Mapping):
        return {str(key): redacted_value(str(key), entry) for key, entry in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [redacted_value(name, entry) for entry in value]
    if value is None or shown_as(name, 0) == 0:
        return value if value is None or isinstance(value, bool | int | float) else redacted(str(value))
    return MASK
