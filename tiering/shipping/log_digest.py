"""Computes the digests of a log while something else reads it, so that a large segment is read only once.

A scan of batch headers reads a file in order, block by block: some bytes twice, if a batch crosses the end of a block,
and some not at all, if it continues beyond it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from resnap.storage.crc32c import crc32c
from resnap.storage.stores.ranged_reader import RangedReader

if TYPE_CHECKING:
    from resnap.storage.readers import RangeReader

_BLOCK: Final = 1 << 20


class DigestingReader:
    """A ``RangeReader`` over ``reader`` that adds each byte to the digests once, in order."""

    def __init__(self, reader: RangeReader) -> None:
        self.locator = reader.locator
        self.size_bytes = reader.size_bytes
        self.etag = reader.etag if isinstance(reader, RangedReader) else None
        """Of an object that is read as it is."""
        self.crc32c = 0
        """Of the first ``digested_bytes``, as is the other."""
        self.digested_bytes = 0
        self._reader = reader
        self._sha256 = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """In hexadecimal digits."""
        return self._sha256.hexdigest()

    def read(self, position: int, length: int) -> bytes:
        """Return the bytes [position, position + length), fewer only past the end."""
        self._reach(position)
        data = self._reader.read(position, length)
        self._take(memoryview(data)[max(0, self.digested_bytes - position) :])
        return data

    def finish(self) -> None:
        """Read the remaining bytes, up to the current end of the file."""
        while data := self._reader.read(self.digested_bytes, _BLOCK):
            self._take(memoryview(data))

    def _reach(self, position: int) -> None:
        """Read the bytes between the last read and ``position``."""
        while self.digested_bytes < position:
            data = self._reader.read(self.digested_bytes, min(_BLOCK, position - self.digested_bytes))
            if not data:
                return
            self._take(memoryview(data))

    def _take(self, data: memoryview) -> None:
        self.crc32c = crc32c(data, self.crc32c)
        self._sha256.update(data)
        self.digested_bytes += len(data)
