"""The journal of a store's verification, so that an interrupted one continues in the next run.

A file of lines: the first has the time when the verification began, each other one a manifest, as the store had it,
whose objects were correct. A line in another form is ignored, which only costs reading. The file is deleted when the
verification is complete: the next one reads everything again.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.storage.whole_file import open_for_writing, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from resnap.storage.stores.protocol import ObjectInfo

VERSION: Final = 1
MAX_BYTES: Final = 1 << 30
"""A larger file is not ours: that of a million segments has some 200 MB."""
KEPT_MS: Final = 7 * 86_400_000
"""What was all right longer ago is read again."""


@dataclass(slots=True, kw_only=True)
class VerificationJournal:
    """The manifests of one store whose objects were found correct so far."""

    path: Path | None = None
    """None if nothing is recorded."""
    warn: Callable[[str], None] = lambda _: None
    begun_ms: int = 0
    verified: set[tuple[str, str]] = field(default_factory=set)
    """(manifest key, etag)."""

    @classmethod
    def open(cls, directory: Path | None, url: str, *, now_ms: int, fresh: bool, warn: Callable[[str], None]) -> Self:
        """Return the journal of the store at ``url`` below ``directory``, with the entries of an interrupted run."""
        if directory is None:
            return cls(path=None, warn=warn, begun_ms=now_ms)
        path = directory / f"verified-{hashlib.sha256(url.encode()).hexdigest()[:32]}.ndjson"
        journal = cls(path=path, warn=warn, begun_ms=now_ms)
        if fresh or not journal._recall(now_ms):
            journal._begin()
        return journal

    def has(self, info: ObjectInfo) -> bool:
        """Whether the objects of the manifest ``info`` have been read, and were correct."""
        return (info.key, info.etag) in self.verified

    def note(self, info: ObjectInfo) -> None:
        """Record that the objects of the manifest ``info`` are correct."""
        self._write(os.O_APPEND, [info.key, info.etag])

    def end(self) -> None:
        """Delete the journal: the verification is complete."""
        if self.path is not None:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:
                self.warn(f"{self.path}: cannot be removed: {error.strerror}; --fresh reads everything again")

    def _recall(self, now_ms: int) -> bool:
        """Load the entries of an interrupted run; False if there are none."""
        lines = self._lines()
        head = lines[0] if lines else None
        if not (isinstance(head, dict) and head.get("version") == VERSION and isinstance(head.get("begunMs"), int)):
            return False
        if not 0 <= now_ms - head["begunMs"] < KEPT_MS:
            return False
        self.begun_ms = head["begunMs"]
        self.verified = {entry for line in lines[1:] if (entry := _entry(line)) is not None}
        return True

    def _lines(self) -> list[object]:
        if self.path is None:
            return []
        try:
            text = read_whole(self.path, MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            return []
        return [_parse(line) for line in text.splitlines()]

    def _begin(self) -> None:
        self._write(os.O_TRUNC, {"version": VERSION, "begunMs": self.begun_ms})

    def _write(self, flags: int, line: object) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(open_for_writing(self.path, flags), "w", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")
        except OSError as error:
            self.warn(f"{self.path}: the progress of this run cannot be saved: {error.strerror}")
            self.path = None


def _parse(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _entry(line: object) -> tuple[str, str] | None:
    match line:
        case [str(key), str(etag)]:
            return key, etag
    return None
