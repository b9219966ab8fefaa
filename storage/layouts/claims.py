"""Claims: a manifest written once more, with the same meaning and bytes that nobody has written before.

Whoever changes what a manifest names first writes a claim over it, on condition that it is as it was read, and at the
end the new manifest over the claim. So a request of a run that was stopped or killed, which reaches the store when
another run has taken over, finds another etag and is refused: a claim's bytes never come back, even where the etag of a
store depends on the bytes alone. A claim that comes late changes nothing for readers, and nothing needs to undo it.

A manifest of ours has 16 other bytes as its sync marker, which is what Avro lets a writer draw. One of Aiven's plugin,
JSON, has white space behind it, which every parser skips.
"""

from __future__ import annotations

import json
import secrets
from typing import Final

from resnap.storage.errors import FormatError
from resnap.storage.layouts.manifest import SYNC_MARKER, read_manifest

_AVRO: Final = b"Obj\x01"
_BITS: Final = 128
_BLANKS: Final = str.maketrans("01", " \t")


def claimed(manifest: bytes) -> bytes:
    """Return a claim of ``manifest``, another one with each call."""
    plain = unclaimed(manifest)
    if plain.startswith(_AVRO):
        return plain.replace(SYNC_MARKER, secrets.token_bytes(len(SYNC_MARKER)))
    return plain + random_blanks()


def unclaimed(manifest: bytes) -> bytes:
    """Return the manifest that ``manifest`` is, or is a claim of."""
    if manifest.startswith(_AVRO):
        return manifest.replace(manifest[-len(SYNC_MARKER) :], SYNC_MARKER)
    is_claim = len(manifest) > _BITS and not manifest[-_BITS:].strip(b" \t")
    return manifest[:-_BITS] if is_claim else manifest


def random_blanks() -> bytes:
    """Return white space that has not been written before."""
    return f"{secrets.randbits(_BITS):0{_BITS}b}".translate(_BLANKS).encode()


def is_manifest(body: bytes) -> bool:
    """Whether ``body`` can be read as a manifest; what else lies there is damage."""
    try:
        if body.startswith(_AVRO):
            read_manifest(body)
        else:
            json.loads(body)
    except (ValueError, RecursionError, FormatError):
        return False
    return True
