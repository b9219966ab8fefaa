"""Encodes and decodes the pieces of objects in the layout ``aiven``: chunks of a segment, and indexes.

A chunk may be a zstd frame with its content size, without a dictionary or a checksum. Any piece may be encrypted: ``IV
(12) || ciphertext || tag (16)``, AES-256 in GCM, under the segment's data key and an IV of its own.

Source: ``CompressionChunkEnumeration``, ``EncryptionChunkEnumeration`` of the plugin; RFC 8878 (zstd).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.storage.errors import FormatError

if TYPE_CHECKING:
    from resnap.storage.encryption import SegmentCipher

ZSTD_LEVEL: Final = 3
"""What the plugin compresses at, by default."""

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_SIZE_BYTES: Final = (0, 2, 4, 8)
_SINGLE_SEGMENT: Final = 1 << 5
_RESERVED: Final = 1 << 3
_MOST_PER_BYTE: Final = 1 << 15
"""A block holds 128 KiB at most, and has 3 bytes of header and 1 of content at least."""
_SHORT_SIZE_FROM: Final = 256
"""A size in two bytes is counted from here: smaller ones take a single byte."""


def compressed(data: bytes) -> bytes:
    """Return ``data`` as one zstd frame with its content size."""
    import pyarrow as pa  # noqa: PLC0415 - takes a while, and a plain store never needs it

    frame: bytes = pa.Codec("zstd", compression_level=ZSTD_LEVEL).compress(data, asbytes=True)
    return frame


def decompressed(frame: bytes, size: int) -> bytes:
    """Return the ``size`` bytes that ``frame`` holds, using no more memory than that.

    Raises:
        FormatError: it is not a zstd frame, has no content size or another one, or is damaged.

    """
    stated = frame_content_size(frame)
    if stated != size:
        raise FormatError("zstd frame: content size", position=0, expected=size, found=stated)
    if size > len(frame) * _MOST_PER_BYTE:
        raise FormatError("zstd frame: content size", position=0, expected=f"{len(frame) * _MOST_PER_BYTE} at most",
                          found=size)  # fmt: skip
    import pyarrow as pa  # noqa: PLC0415 - as above

    try:
        data: bytes = pa.Codec("zstd").decompress(frame, decompressed_size=size, asbytes=True)
    except (OSError, ValueError) as error:
        raise FormatError("zstd frame", position=0, expected=f"{size} bytes compressed", found="damage") from error
    return data


def frame_content_size(frame: bytes) -> int:
    """Return the content size that the zstd ``frame`` states.

    Raises:
        FormatError: it is not a zstd frame, or states no size: the plugin could not read it.

    """
    if frame[:4] != _ZSTD_MAGIC or len(frame) <= len(_ZSTD_MAGIC):
        raise FormatError(
            "zstd frame: magic", position=0, expected=_ZSTD_MAGIC.hex(), found=frame[:4].hex() or "nothing"
        )
    descriptor = frame[4]
    is_single = bool(descriptor & _SINGLE_SEGMENT)
    width = _SIZE_BYTES[descriptor >> 6] or int(is_single)
    start = 5 + int(not is_single) + _DICTIONARY_BYTES[descriptor & 3]
    if not width or descriptor & _RESERVED or len(frame) < start + width:
        raise FormatError("zstd frame: header", position=4, expected="one that says the content size",
                          found=f"descriptor {descriptor:#04x}")  # fmt: skip
    size = int.from_bytes(frame[start : start + width], "little")
    return size + _SHORT_SIZE_FROM if width == 2 else size  # noqa: PLR2004 - as above


def stored_piece(data: bytes, place: str, *, is_compressed: bool, cipher: SegmentCipher | None) -> bytes:
    """Return ``data`` as it is stored; ``place`` identifies it within its segment."""
    piece = compressed(data) if is_compressed else data
    return piece if cipher is None else cipher.seal(piece, place)


def original_piece(piece: bytes, size: int | None, *, is_compressed: bool, cipher: SegmentCipher | None) -> bytes:
    """Return the bytes that were stored as ``piece``, which are ``size`` bytes if that is known.

    Raises:
        FormatError: it is damaged, or has another size.

    """
    data = piece if cipher is None else cipher.open(piece)
    if is_compressed:
        data = decompressed(data, frame_content_size(data) if size is None else size)
    if size is not None and len(data) != size:
        raise FormatError("chunk", position=0, expected=f"{size} bytes", found=len(data))
    return data
