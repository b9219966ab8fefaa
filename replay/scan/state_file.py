"""Anchors, and the files that hold their summary rows.

A file is written whole or not at all, under a name derived from its content: two runs that write the same state write
the same file. It holds the layout of its rows and a checksum, so that a file of another version, or a truncated or
changed one, is detected; the reader then works without it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.kernel.summary import SUMMARY_DTYPE
from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError, LogDirError, in_file
from resnap.storage.whole_file import open_file, write_whole

if TYPE_CHECKING:
    from resnap.replay.kernel.summary import Array

MAGIC: Final = b"RSNPSTAT"
LAYOUT: Final = crc32c(repr(SUMMARY_DTYPE.descr).encode())
HEADER: Final = struct.Struct("<8sIIQ")
"""Magic, layout of the rows, CRC-32C of the rows, their number."""
_FIELDS: Final = [np.arange(at, at + kind.itemsize) for kind, at, *_ in (SUMMARY_DTYPE.fields or {}).values()]
_BETWEEN_FIELDS: Final = np.setdiff1d(np.arange(SUMMARY_DTYPE.itemsize), np.concatenate(_FIELDS))
MAX_BYTES: Final = 512 << 20
"""Larger states are not kept: reading the log again is then the lesser evil."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A file of rows: its facts, as its writer recorded them."""

    path: str
    rows: int
    crc32c: int
    """CRC-32C of the rows."""

    @property
    def size_bytes(self) -> int:
        """Length of the whole file."""
        return HEADER.size + self.rows * SUMMARY_DTYPE.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The state of everything in [``read_from``, ``offset``), and how it was obtained."""

    offset: int
    read_from: int
    """Where the run began that this state is of, or the first of a chain of runs that anchored in each other."""
    known_from: int
    """First available offset of the log for the run that began there."""
    seen_since_ms: int | None
    """As in ``plan.Run``, of the run that began there; so are the next two."""
    touched_until_ms: int | None
    cut_through: frozenset[int]
    oldest_clock_ms: int | None
    """Oldest server clock in what was read."""
    clock_ms: int
    """Newest server clock; -1 if there was none."""
    lacks_records: bool
    """Records are missing inside what was read, as only a cleaner, or a loss, leaves it."""
    certain_silence_ms: int
    """Under which rebirth was judged (``producer_state.Expiry``)."""
    pruned_ms: int | None
    """Idle producers up to this timestamp may have been pruned; None: none was."""
    states: tuple[StateFile, ...]
    """The rows; several files where several tasks combined the run, each of other producers."""


def write_state(directory: str, name: str, rows: Array) -> StateFile | None:
    """Write ``rows`` into ``directory`` under a name that begins with ``name``; None if that is not possible.

    If a state cannot be written, for lack of space or permissions, the replay does not fail.
    """
    if rows.nbytes > MAX_BYTES:
        return None
    body = _bytes_of(rows)
    checksum = crc32c(body)
    head = HEADER.pack(MAGIC, LAYOUT, checksum, len(rows))
    digest = hashlib.sha256(head)
    digest.update(body)
    path = Path(directory) / f"{name}.{digest.hexdigest()[:16]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, (head, body))
    except OSError:
        return None
    return StateFile(path=str(path), rows=len(rows), crc32c=checksum)


def _bytes_of(rows: Array) -> memoryview:
    """Return ``rows`` as bytes, with zeros in the padding, which may hold arbitrary memory."""
    lines = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), SUMMARY_DTYPE.itemsize).copy()
    lines[:, _BETWEEN_FIELDS] = 0
    return lines.reshape(-1).data


def read_state(state: StateFile) -> Array:
    """Return the rows of ``state``.

    Raises:
        FormatError: the file has changed since it was written.
        LogDirError: it cannot be read.

    """
    hint = "the next run writes it again; --fresh does not need it"
    try:
        with open_file(state.path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read() if size == state.size_bytes else b""
    except OSError as error:
        raise LogDirError(f"{state.path}: cannot be read: {error.strerror}", hint=hint) from error
    with in_file(state.path):
        if size != state.size_bytes:
            raise FormatError("length of the state", position=0, expected=state.size_bytes, found=size, hint=hint)
        found = HEADER.unpack_from(data)
        computed = crc32c(memoryview(data)[HEADER.size :])
        if found != (MAGIC, LAYOUT, state.crc32c, state.rows) or computed != state.crc32c:
            raise FormatError("state", position=0, expected="what was written", found="something else", hint=hint)
    return np.frombuffer(data, dtype=SUMMARY_DTYPE, offset=HEADER.size)
