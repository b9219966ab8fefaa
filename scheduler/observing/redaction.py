"""What a log must not hold is masked in it: credentials in URLs, under names that tell a secret, and in running text.

Libraries below write what they like into their messages, and errors of a store quote requests; so all text is looked
through, tracebacks included. One word too many is masked rather than one shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from scheduler.setting_values import MASK, shown, shown_as

_NAMED: Final = re.compile(
    r"""((?:[\w.-]*(?:secret|password|passwd|token|credential|access[._-]?key(?:[._-]?id)?)[\w.-]*|authorization)"""
    r"""["']?\s*[=:]\s*(?:b?["'])?(?:(?:bearer|basic|digest)\s+)?)[^\s"',;&)}\]]+""",
    re.IGNORECASE,
)
"""``password=...``, ``"token": "..."``, ``Authorization: Bearer ...``."""
_BEARER: Final = re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_AWS_KEY_ID: Final = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")


def redacted(text: str) -> str:
    """Return ``text`` with ``***`` wherever a secret stands, or may stand."""
    named = _NAMED.sub(rf"\g<1>{MASK}", str(shown(text)))
    return _AWS_KEY_ID.sub(MASK, _BEARER.sub(rf"\g<1>{MASK}", named))


def redacted_value(name: str, value: object) -> object:
    """Return what is logged under ``name``, down to the last text in it, without secrets."""
    if value is None or isinstance(value, bool | int | float):
        return value if shown_as(name, 0) == 0 else MASK
    if isinstance(value, Mapping):
        return {str(key): redacted_value(str(key), entry) for key, entry in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [redacted_value(name, entry) for entry in value]
    return MASK if shown_as(name, 0) == MASK else redacted(str(value))
