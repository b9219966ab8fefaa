"""The quotas that are set here: one file in the state directory, changed by one request at a time.

It is JSON, whole or not at all: ``{"version": 1, "quotas": [{"entity": {"user": "alice"}, "values": {...}}]}``, where
the name null is the default. A file that is not that is an error and never overwritten: who loses limits lets floods
in.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import Disk, make_directories, writable, write_file
from resnap.storage.errors import ConfigurationError
from resnap.tiering.quota.client_quotas import ClientQuotas, QuotaRequestError, check_value, entity_of, shown_entity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.tiering.quota.client_quotas import Entity, QuotaChange, QuotaRecord

NAME: Final = "quotas.json"
VERSION: Final = 1
MUTE_S: Final = 1.0
"""How long another request is waited for without a word."""
_GARBLED: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError, QuotaRequestError)


class QuotaFile:
    """The file of quotas in ``directory``, which is made when the first is set."""

    def __init__(self, directory: Path, disk: Disk, note: Callable[[str], None] = lambda _: None) -> None:
        """Begin without reading; ``note`` hears of another's request that is waited for."""
        self.path = directory / NAME
        self._disk, self._note = disk, note

    def load(self) -> ClientQuotas:
        """Return what is set; nothing where there is no file.

        Raises:
            ConfigurationError: the file cannot be read, or is none of quotas.

        """
        try:
            return decoded(self.path.read_bytes())
        except FileNotFoundError:
            return ClientQuotas()
        except OSError as error:
            raise ConfigurationError(f"{self.path}: the quotas cannot be read: {error.strerror}",
                                     hint="check the directory, or give another --state-dir") from error  # fmt: skip
        except _GARBLED as error:
            raise ConfigurationError(f"{self.path} is no file of quotas: {error}",
                                     hint="mend it, or move it away and set the quotas again") from error  # fmt: skip

    def alter(self, changes: Mapping[Entity, Sequence[QuotaChange]]) -> list[QuotaRecord]:
        """Carry out a request, all of it or nothing, and return what it changed.

        Raises:
            QuotaRequestError: anything of it is wrong.
            ConfigurationError: see ``load``.
            LogDirError: the file cannot be written.

        """
        if not self.path.parent.is_dir():
            if not ClientQuotas().altered(changes):  # nothing comes of it, so no directory either
                return []
            make_directories(self._disk, self.path.parent)
        with self._alone():
            there = self.load()
            records = there.altered(changes)
            if records:
                write_file(self._disk, self.path, [encoded(there.applied(records))])
            return records

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others from reading what is about to change."""
        lock = self.path.with_suffix(".lock")
        with writable(lock), lock.open("a") as file:
            self._lock(file.fileno())
            yield

    def _lock(self, descriptor: int) -> None:
        give_up_s = time.monotonic() + MUTE_S
        while time.monotonic() < give_up_s:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.05)
        self._note(f"another command changes {self.path}: waiting for it to end")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def encoded(quotas: ClientQuotas) -> bytes:
    """Return the bytes of the file."""
    found = [{"entity": dict(entity), "values": dict(values)} for entity, values in quotas.described()]
    return (json.dumps({"version": VERSION, "quotas": found}, ensure_ascii=False, indent=1) + "\n").encode()


def decoded(data: bytes) -> ClientQuotas:
    """Return the quotas in the bytes of the file.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, RecursionError, QuotaRequestError: they are not of that form.

    """
    document = json.loads(data)
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']!r}, known is {VERSION}")
    entities: dict[Entity, dict[str, float]] = {}
    for one in document["quotas"]:
        entity = _entity(one["entity"])
        if entity in entities:
            raise ValueError(f"{shown_entity(entity)} stands there twice")
        entities[entity] = {key: _number(key, value) for key, value in one["values"].items()}
        for key, value in entities[entity].items():
            check_value(entity, key, value)
    return ClientQuotas(entities)


def _entity(parts: dict[str, object]) -> Entity:
    names = {kind: name for kind, name in parts.items() if name is None or isinstance(name, str)}
    if len(names) < len(parts):
        raise ValueError(f"{json.dumps(parts)} is no entity: names are strings, or null for the default")
    return entity_of(names.items())


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} is {json.dumps(value)}, expected a number")
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"{key} is beyond all numbers")
    return float(value)
