"""Envelope encryption of segments in the layout ``aiven``: data keys, wrapped by RSA keys of the operator.

Each segment has a fresh data key (AES-256) and 32 fresh bytes that are authenticated with each piece. The manifest
holds the data key, encrypted under the public key of a pair of RSA keys: OAEP with SHA3-512 for the hash and for MGF1,
which PyCryptodome supports and OpenSSL's bindings refuse. Key pairs have names, so that they can be rotated.

Nothing here that holds a key shows it: not in ``repr``, not in a message. The RSA keys are ``KeyFile``s.

Source: ``RsaEncryptionProvider``, ``AesEncryptionProvider``, ``RsaKeyReader`` of Aiven's
tiered-storage-for-apache-kafka, 1.0.0.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from resnap.storage.errors import ConfigurationError, FormatError

if TYPE_CHECKING:
    from resnap.storage.key_file import KeyFile

DATA_KEY_BYTES: Final = 32
AAD_BYTES: Final = 32
IV_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = IV_BYTES + TAG_BYTES
"""How much longer an encrypted piece is."""
_LEAST_RSA_BYTES: Final = 256


class DataKeyError(ConfigurationError):
    """The private key does not decrypt a data key: another file was given, or the manifest is damaged."""


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """What decrypting a segment needs besides a private key, as its manifest holds it."""

    key_id: str
    """Id of the RSA key pair."""
    wrapped: bytes
    """The data key, encrypted."""
    aad: bytes
    """What is authenticated with each piece of the segment."""


@dataclass(frozen=True, slots=True)
class RsaKey:
    """One half of an RSA key pair, in PEM; executors read its file themselves."""

    key_id: str
    pem: KeyFile


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The available private keys, which decrypt stored segments."""

    keys: tuple[RsaKey, ...] = ()

    def cipher(self, key: WrappedKey) -> SegmentCipher:
        """Return the cipher that decrypts the pieces of a segment.

        Raises:
            ConfigurationError: no private key has that name.
            DataKeyError: the private key does not match the data key, or the data key is damaged.

        """
        pair = next((held for held in self.keys if held.key_id == key.key_id), None)
        if pair is None:
            known = ", ".join(held.key_id for held in self.keys) or "none"
            raise ConfigurationError(
                f"the segment is encrypted under the key pair {key.key_id!r}; the given private keys are: {known}",
                hint="give the plugin's own: --encryption-private-key ID=FILE",
            )
        try:
            data_key: bytes = _oaep(rsa_key(pair, private=True)).decrypt(key.wrapped)
        except ValueError:
            data_key = b""
        if len(data_key) != DATA_KEY_BYTES:
            raise DataKeyError(
                f"the private key that was given as {key.key_id!r} does not open the segment's data key",
                hint=f"give the file of the key pair that brokers call {key.key_id!r}; if it opens other segments, the"
                " manifest of this one is damaged",
            )
        return SegmentCipher(
            data_key, key.aad, hmac.digest(data_key, b"resnap: initialization vectors", hashlib.sha256)
        )


NO_KEYS: Final = KeyRing()


@dataclass(frozen=True, slots=True)
class SegmentCipher:
    """The data key of one segment, and the bytes that are authenticated with each of its pieces."""

    _data_key: bytes = field(repr=False)
    aad: bytes
    _iv_key: bytes = field(default=b"", repr=False)
    """Key of the cipher that seals."""

    def seal(self, piece: bytes, place: str) -> bytes:
        """Return ``piece`` encrypted, under an IV of its own.

        The IV is derived from the piece and its place in the segment, under a secret of this process. So a piece that
        is encrypted again, as for a repeated upload, gives the same bytes, and no other piece ever has the same IV.
        """
        digest = hmac.new(self._iv_key, place.encode() + b"\0", hashlib.sha256)
        digest.update(piece)
        iv = digest.digest()[:IV_BYTES]
        text, tag = self._gcm(iv).encrypt_and_digest(piece)
        return iv + bytes(text) + bytes(tag)

    def open(self, piece: bytes) -> bytes:
        """Return the decrypted bytes of ``piece``.

        Raises:
            FormatError: a byte of it was changed, or it belongs to another segment.

        """
        if len(piece) < OVERHEAD_BYTES:
            raise FormatError("encrypted piece", position=0, expected=f"{OVERHEAD_BYTES} bytes or more",
                              found=len(piece))  # fmt: skip
        view = memoryview(piece)
        try:
            data: bytes = self._gcm(piece[:IV_BYTES]).decrypt_and_verify(view[IV_BYTES:-TAG_BYTES], view[-TAG_BYTES:])
        except ValueError:
            raise FormatError("encrypted piece: tag", position=len(piece) - TAG_BYTES,
                              expected="that of its bytes", found="another") from None  # fmt: skip
        return data

    def _gcm(self, iv: bytes) -> Any:  # noqa: ANN401 - PyCryptodome's, which is loaded late
        aes = _library().AES
        cipher = aes.new(self._data_key, aes.MODE_GCM, nonce=iv, mac_len=TAG_BYTES)
        cipher.update(self.aad)
        return cipher


def new_cipher(public: RsaKey) -> tuple[SegmentCipher, WrappedKey]:
    """Return a cipher with a fresh data key, and that key wrapped as a manifest holds it.

    Raises:
        ConfigurationError: ``public`` is not a public key.

    """
    data_key, aad = os.urandom(DATA_KEY_BYTES), os.urandom(AAD_BYTES)
    wrapped = WrappedKey(public.key_id, _oaep(rsa_key(public, private=False)).encrypt(data_key), aad)
    return SegmentCipher(data_key, aad, os.urandom(DATA_KEY_BYTES)), wrapped


def rsa_key(key: RsaKey, *, private: bool) -> Any:  # noqa: ANN401 - as above
    """Return the RSA key that ``key`` holds.

    Raises:
        ConfigurationError: it is not an RSA key, or is shorter than the plugin accepts.

    """
    what = "private" if private else "public"
    try:
        found = _import_key(key.pem.content())
    except (ValueError, IndexError, TypeError):
        found = None
    if found is None or (private and not found.has_private()) or found.size_in_bytes() < _LEAST_RSA_BYTES:
        raise ConfigurationError(
            f"the {what} key of {key.key_id!r} cannot be used: expected an RSA key of 2048 bits or more in PEM,"
            " not protected by a password",
            hint="the plugin's own files will do: BEGIN PUBLIC KEY and BEGIN PRIVATE KEY",
        ) from None
    return found


@lru_cache(maxsize=8)
def _import_key(pem: bytes) -> Any:  # noqa: ANN401 - as above
    """Return the RSA key in ``pem``, read once: its primes are tested, which takes 25 ms of processor time."""
    return _library().RSA.import_key(pem)


def _oaep(key: Any) -> Any:  # noqa: ANN401 - as above
    library = _library()
    # PyCryptodome gives MGF1 the same hash, as the plugin's padding means it.
    return library.PKCS1_OAEP.new(key, hashAlgo=library.SHA3_512)


@cache
def _library() -> Any:  # noqa: ANN401 - as above
    """Return the parts of PyCryptodome that Resnap uses."""
    from Crypto.Cipher import AES, PKCS1_OAEP  # noqa: PLC0415 - asked for by encrypted stores only
    from Crypto.Hash import SHA3_512  # noqa: PLC0415
    from Crypto.PublicKey import RSA  # noqa: PLC0415

    return SimpleNamespace(AES=AES, PKCS1_OAEP=PKCS1_OAEP, SHA3_512=SHA3_512, RSA=RSA)
