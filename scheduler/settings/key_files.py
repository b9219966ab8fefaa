"""Loads the RSA keys for encrypted segments from files, in the form that the plugin's brokers use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from resnap.storage.encryption import KeyRing, RsaKey, rsa_key
from resnap.storage.errors import ConfigurationError
from resnap.storage.key_file import KeyFile

if TYPE_CHECKING:
    from collections.abc import Mapping


def key_ring(files: Mapping[str, str]) -> KeyRing:
    """Return the private keys in ``files``, by the names of their pairs.

    Raises:
        ConfigurationError: a file cannot be read, or holds no private RSA key.

    """
    return KeyRing(tuple(_key(name, file, private=True) for name, file in files.items()))


def public_key(files: Mapping[str, str]) -> RsaKey | None:
    """Return the one public key in ``files``; None without any.

    Raises:
        ConfigurationError: there are several, a file cannot be read, or holds no RSA key.

    """
    if len(files) > 1:
        raise ConfigurationError(f"--encryption-public-key: expected one, found {len(files)}: {', '.join(files)}")
    return next((_key(name, file, private=False) for name, file in files.items()), None)


def _key(name: str, file: str, *, private: bool) -> RsaKey:
    flag = f"--encryption-{'private' if private else 'public'}-key"
    if ":" in name:
        raise ConfigurationError(f"{flag} {name}: expected the name of a key pair, which has no colon")
    try:
        key = RsaKey(name, KeyFile.read(Path(file)))
    except OSError as error:
        raise ConfigurationError(f"{flag} {name}={file}: cannot be read: {error.strerror}") from error
    rsa_key(key, private=private)
    return key
