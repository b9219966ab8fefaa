"""Settings of an S3 store that are more than a word: keys that are read from files, and classes that would not do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ConfigurationError
from resnap.storage.key_file import KeyFile
from resnap.storage.stores.s3_settings import CUSTOMER_KEY_BYTES, decoded_key

if TYPE_CHECKING:
    from pathlib import Path

_ARCHIVES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes whose objects cannot be read before somebody has restored them."""


def customer_key(file: Path | None) -> KeyFile | None:
    """Return the file that holds 256 bits, as they are or in base64; None without one.

    Raises:
        ConfigurationError: it cannot be read, or holds something else.

    """
    if file is None:
        return None
    try:
        key = KeyFile.read(file)
    except OSError as error:
        raise ConfigurationError(f"--s3-sse-customer-key-file {file}: cannot be read: {error.strerror}") from error
    if decoded_key(key.content()) is None:
        raise ConfigurationError(
            f"--s3-sse-customer-key-file {file}: expected a key of {CUSTOMER_KEY_BYTES} bytes, raw or in base64,"
            f" found {len(key.content())} bytes",
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
