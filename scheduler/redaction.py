"""What is told to others never holds a secret: tokens, credentials in URLs, S3 keys.

``redacted`` stands at every edge where text leaves: problems, the audit, the log, the history of runs. It goes by form,
not by place, since a message may repeat whatever it was given; it masks one too many rather than show one.
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"
"""Stands where a secret stood."""

_NAMES: Final = r"secret|password|passwd|token|signature|credential|access[._-]?key(?:[._-]?id)?"
_RULES: Final = (
    # Our own tokens, wherever they stand.
    (re.compile(r"\bresnap_[A-Za-z0-9_-]{16,}"), f"resnap_{MASK}"),
    # s3://key:secret@bucket, where a secret may hold slashes: up to the last @ of the word.
    (re.compile(r"(?<=://)(?:[^/\s\"'<>@]*:[^\s\"'<>]*|[^/\s\"'<>]+)(?=@)"), MASK),
    # Queries of URLs that are signed.
    (re.compile(rf"(?<=[?&])([^=&\s]*(?:key|{_NAMES})[^=&\s]*=)[^&\s]+", re.IGNORECASE), rf"\1{MASK}"),
    # password=..., "token": "...", Authorization: Bearer ...
    (
        re.compile(
            rf"""((?:[\w.-]*(?:{_NAMES})[\w.-]*|authorization)["']?\s*[=:]\s*(?:b?["'])?"""
            r"""(?:(?:bearer|basic|digest)\s+)?)[^\s"',;&)}\]]+""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{MASK}"),
    # Ids of AWS keys: no secret, but half of one.
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
)


def redacted(text: str) -> str:
    """Return ``text`` with ``***`` for each secret in it."""
    for form, mask in _RULES:
        text = form.sub(mask, text)
    return text
