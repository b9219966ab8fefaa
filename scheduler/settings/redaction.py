"""Removes secrets from what others may see: tokens, credentials in URLs, S3 keys.

``redact`` is called at every edge where text leaves: problems, the audit, the log, the history of runs. It looks at
form, not at place, since a message may repeat whatever it was given; it masks one too many rather than show one. Each
form is of bounded length, so that a text takes as long as it is long, however it was made.
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"
"""Replaces a secret."""

_NAMES: Final = (
    r"secret|password|passwd|token|signature|credential|access[._-]?key(?:[._-]?id)?"
    r"|account[._-]?key|passphrase|key[._-]?pass"
)
_RULES: Final = (
    # Our own tokens, anywhere.
    (re.compile(r"\bresnap_[A-Za-z0-9_-]{43}"), f"resnap_{MASK}"),
    # s3://key:secret@bucket, where a secret may hold slashes: up to the last @ of the word.
    (re.compile(r"(?<=://)(?:[^/\s\"'<>@]{0,200}:[^\s\"'<>]{0,400}|[^/\s\"'<>]{1,400})(?=@)"), MASK),
    # Queries of signed URLs; not the two parameters of S3's listings that have similar names.
    (
        re.compile(
            rf"(?<=[?&])(?!(?:max-keys|key-marker)=)([^=&\s]{{0,50}}(?:key|{_NAMES})[^=&\s]{{0,50}}=)[^&\s]+",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # password=..., "token": "...", Authorization: Bearer ...
    (
        re.compile(
            rf"""((?:(?:{_NAMES})[\w.-]{{0,80}}|authorization)["']?\s{{0,9}}[=:]\s{{0,9}}(?:b?["'])?"""
            r"""(?:(?:bearer|basic|digest)\s{1,9})?)[^\s"',;&)}\]]+""",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(\bbearer\s{1,9})[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{MASK}"),
    # Ids of AWS keys: no secret, but half of one.
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
)


def redact(text: str) -> str:
    """Return ``text`` with ``***`` for each secret in it."""
    for form, mask in _RULES:
        text = form.sub(mask, text)
    return text
