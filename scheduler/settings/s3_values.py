"""Settings of an S3 store that are more than a word: keys that are read from files, and classes that would not do."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final

from storage.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

_KEY_BYTES: Final = 32
_ARCHIVES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes whose objects cannot be read before somebody has restored them."""


def customer_key(file: Path | None) -> bytes | None:
    """Return the 256 bits that ``file`` holds, as they are or in base64; None without one.

    Raises:
        ConfigurationError: it cannot be read, or holds something else.

    """
    if file is None:
        return None
    try:
        held = file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--s3-sse-customer-key-file {file}: cannot be read: {error.strerror}") from error
    if len(held) == _KEY_BYTES:
        return held
    try:
        key = base64.b64decode(held.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigurationError(
            f"--s3-sse-customer-key-file {file}: expected a key of {_KEY_BYTES} bytes, raw or in base64,"
            f" found {len(held)} bytes",
            hint="make one with: head -c 32 /dev/urandom > FILE; without it nothing that was shipped can be read",
        )
    return key


def storage_class(name: str | None) -> str | None:
    """Return ``name``, unless what is stored so could not be read when it is needed.

    Raises:
        ConfigurationError: an archive.

    """
    if name in _ARCHIVES:
        raise ConfigurationError(
            f"--s3-storage-class {name}: what lies in an archive cannot be read at once",
            hint="give GLACIER_IR, STANDARD_IA or INTELLIGENT_TIERING, or let a rule of the bucket move old objects",
        )
    return name
