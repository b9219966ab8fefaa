"""Encodes any name as a part of a key that every store supports."""

from __future__ import annotations

import hashlib
from typing import Final

from resnap.storage.stores.protocol import MAX_KEY_PART_BYTES

UNKNOWN: Final = "none"
_FRONT_BYTES: Final = 100
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_RESERVED: Final = frozenset({UNKNOWN, ".", ".."})


def key_part(name: str | None) -> str:
    """Return ``name`` as a part of a key, ``none`` for None; different names give different parts.

    Raises:
        ValueError: ``name`` is empty.

    """
    if name is None:
        return UNKNOWN
    if not name:
        raise ValueError("an empty name cannot be part of a key; a name that is not known is None")
    raw = name.encode()
    # A name that would mean something else as a part of a key gets its first letter escaped, so that they differ.
    escaped = "".join(
        chr(byte) if byte in _PLAIN and not (name in _RESERVED and at == 0) else f"={byte:02X}"
        for at, byte in enumerate(raw)
    )
    return escaped if len(escaped) <= MAX_KEY_PART_BYTES else _shortened(escaped, raw)


def _shortened(escaped: str, raw: bytes) -> str:
    front = escaped[:_FRONT_BYTES]
    cut_escape = front.rfind("=", _FRONT_BYTES - 2)
    if cut_escape >= 0:
        front = front[:cut_escape]
    return f"{front}=sha256-{hashlib.sha256(raw).hexdigest()}"
