"""Reads and writes the files of the run cache: one directory per partition, in the state directory.

``memory.json`` is a line with version and checksum, and a line with the cached results; the states of anchors are
beside it. Every file is written whole or not at all, and the last writer wins, so two runs at once, or a kill at any
moment, leave a complete file, if perhaps not the newest. A file of another version, or a damaged one, is ignored, and
written again.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from resnap.replay.boundary_state import LeftOut
from resnap.replay.plan import Coverage
from resnap.replay.scan.state_file import Anchor, StateFile
from resnap.replay.window import Unexplained
from resnap.storage.crc32c import crc32c
from resnap.storage.log.producer_snapshot import SnapshotDigest
from resnap.storage.whole_file import read_whole, write_whole
from resnap.tiering.judging.refusal import Reason, Refusal
from resnap.tiering.run_cache.results import CachedBoundary, CachedRefusals, CachedResults, SegmentMark

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.storage.log.partition_dir import PartitionDir

VERSION: Final = 6
"""Raised with the form, and whenever a replay decides, names or compares otherwise: else old results would stand."""
FILE: Final = "memory.json"
MAX_BYTES: Final = 256 << 20
"""A larger file is not ours: that of 100,000 boundaries has some 50 MB."""
UNUSED_AFTER_S: Final = 86_400
"""After this long a state that no file names is not in use: the run that wrote it has ended, or was killed."""
_GARBLED: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


def _ignore(_: str) -> None:
    """Ignore a warning."""


@dataclass(slots=True)
class CacheFiles:
    """The files below ``root``; unreadable or unwritable files are reported once, and ignored."""

    root: Path
    complain: Callable[[str], None] = _ignore
    read_only: bool = False
    """For runs that are to write nothing."""
    _complained: bool = field(default=False, init=False)
    _loaded: dict[Path, CachedResults] = field(default_factory=dict, init=False)
    """One run uses the same results throughout, whatever other runs write."""

    def directory(self, partition: PartitionDir) -> Path:
        """Return the directory for the results of ``partition``, by the location of its files."""
        return self.root / hashlib.sha256(str(partition.path).encode()).hexdigest()[:32]

    def load(self, partition: PartitionDir) -> CachedResults:
        """Return the cached results of ``partition``; empty if there is no usable file or the topic is another one."""
        path = self.directory(partition) / FILE
        if path not in self._loaded:
            self._loaded[path] = self._read(path)
        results = self._loaded[path]
        return results if results.topic_id == partition.topic_id else CachedResults()

    def _read(self, path: Path) -> CachedResults:
        try:
            return decoded(read_whole(path, MAX_BYTES), path.parent)
        except FileNotFoundError:
            return CachedResults()
        except OSError as error:
            self.complain(f"{path}: the results of earlier runs cannot be read: {error.strerror}")
            return CachedResults()
        except _GARBLED as error:
            self.complain(f"{path}: not what this version of resnap writes ({error}); it is rebuilt")
            return CachedResults()

    def save(self, partition: PartitionDir, results: CachedResults, *, before: CachedResults) -> None:
        """Store ``results``, and delete the states that ``before`` named and they no longer do."""
        if self.read_only:
            return
        directory = self.directory(partition)
        self._loaded.pop(directory / FILE, None)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(directory / FILE, encoded(results))
        except OSError as error:
            self._cannot_write(directory, error)
            return
        _delete_others(directory, named=_states(results), replaced=_states(before) - _states(results))

    def _cannot_write(self, directory: Path, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self.complain(
                f"{directory}: cannot be written: {error.strerror}: the next run will read again what this one read;"
                " --state-dir names another place"
            )


def _states(results: CachedResults) -> set[str]:
    return {Path(state.path).name for anchor in results.anchors for state in anchor.states}


def _delete_others(directory: Path, *, named: set[str], replaced: set[str]) -> None:
    """Delete states that were replaced, and those that nothing names, including half-written ones.

    Recent ones are kept, because a concurrent run may be writing them.
    """
    with suppress(OSError):
        now_s = (directory / FILE).stat().st_mtime
        for path in directory.iterdir():
            old = now_s - path.stat().st_mtime > UNUSED_AFTER_S
            if path.name in replaced or (old and path.name not in named | {FILE}):
                path.unlink()


def encoded(results: CachedResults) -> tuple[bytes, bytes]:
    """Return ``results`` as the two lines of its file."""
    content = asdict(results)
    content["boundaries"] = [asdict(known) for known in results.boundaries.values()]
    for anchor in content["anchors"]:
        anchor["cut_through"] = sorted(anchor["cut_through"])
        for state in anchor["states"]:
            state["path"] = Path(state["path"]).name
    body = json.dumps(content, separators=(",", ":")).encode() + b"\n"
    head = json.dumps({"version": VERSION, "crc32c": crc32c(body)})
    return head.encode() + b"\n", body


def decoded(data: bytes, directory: Path) -> CachedResults:
    """Return the results from the form that ``encoded`` writes; their states are in ``directory``.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: it has another form or version.

    """
    head, _, body = data.partition(b"\n")
    header = json.loads(head)
    if header["version"] != VERSION:
        raise ValueError(f"version {header['version']}")
    if header["crc32c"] != crc32c(body):
        raise ValueError("its checksum is wrong")
    content: dict[str, Any] = json.loads(body)
    known = [_boundary(one) for one in content["boundaries"]]
    refused = content["refused"]
    return CachedResults(
        rules=content["rules"],
        topic_id=content["topic_id"],
        marks=tuple(SegmentMark(*mark) for mark in content["marks"]),
        directory=content["directory"],
        boundaries={one.offset: one for one in known},
        shown=tuple(content["shown"]),
        anchors=tuple(_anchor(one, directory) for one in content["anchors"]),
        refused=None if refused is None else _refusals(refused),
    )


def _boundary(values: dict[str, Any]) -> CachedBoundary:
    return CachedBoundary(**values | {
        "coverage": Coverage(values["coverage"]),
        "digest": SnapshotDigest(**values["digest"]),
        "left_out": tuple(LeftOut(pid, Unexplained(reason)) for pid, reason in values["left_out"]),
    })  # fmt: skip


def _anchor(values: dict[str, Any], directory: Path) -> Anchor:
    states = (StateFile(**state | {"path": str(directory / state["path"])}) for state in values["states"])
    return Anchor(**values | {"cut_through": frozenset(values["cut_through"]), "states": tuple(states)})


def _refusals(values: dict[str, Any]) -> CachedRefusals:
    refusals = (Refusal(**one | {"reason": Reason(one["reason"])}) for one in values["refusals"])
    return CachedRefusals(**values | {"refusals": tuple(refusals)})
