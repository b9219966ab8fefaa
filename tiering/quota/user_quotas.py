"""Quotas of users: the file in the state directory, the quotas of a cluster, and the effective rates of both.

The file is JSON, written atomically: ``{"version": 1, "quotas": [{"entity": {"user": "alice"}, "values": {...}}]}``,
where the name null is the default. A file in another form is an error and never overwritten, because losing limits
would admit floods.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from resnap.storage.disk import Disk, make_directories, writable, write_file
from resnap.storage.errors import ConfigurationError, LockedError, ResnapError
from resnap.storage.processes import lock_within
from resnap.storage.whole_file import open_for_writing, read_whole
from resnap.tiering.controller.metadata.folding import fold_files
from resnap.tiering.controller.metadata.log_files import list_metadata_log
from resnap.tiering.controller.metadata.records import ClientQuotaRecord
from resnap.tiering.quota.client_quotas import (
    PRODUCER_IDS_RATE,
    ClientQuotas,
    QuotaChange,
    QuotaRequestError,
    UserRates,
    check_value,
    entity_of,
    shown_entity,
    user,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.tiering.quota.client_quotas import Entity, QuotaRecord

NAME: Final = "quotas.json"
VERSION: Final = 1
QUIET_WAIT_S: Final = 1.0
"""How long another request is waited for before that is reported."""
LONGEST_WAIT_S: Final = 30.0
"""How long it is waited for then: a change takes some milliseconds."""
_NOT_QUOTAS: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError, QuotaRequestError)


class QuotaFile:
    """The quota file in ``directory``, created at the first change; one request changes it at a time."""

    def __init__(self, directory: Path, disk: Disk, note: Callable[[str], None] = lambda _: None) -> None:
        """Begin without reading; ``note`` is called when another request is waited for."""
        self.path = directory / NAME
        self._disk, self._note = disk, note

    def load(self) -> ClientQuotas:
        """Return the stored quotas; none if there is no file.

        Raises:
            ConfigurationError: the file cannot be read, or is not a quota file.

        """
        try:
            return decode_quotas(read_whole(self.path))
        except FileNotFoundError:
            return ClientQuotas()
        except OSError as error:
            raise ConfigurationError(f"{self.path}: the quotas cannot be read: {error.strerror}",
                                     hint="check the directory, or give another --state-dir") from error  # fmt: skip
        except _NOT_QUOTAS as error:
            raise ConfigurationError(f"{self.path} is not a file of quotas: {error}",
                                     hint="repair it, or move it away and set the quotas again") from error  # fmt: skip

    def alter(self, changes: Mapping[Entity, Sequence[QuotaChange]]) -> list[QuotaRecord]:
        """Apply a request, all of it or nothing, and return the changes.

        Raises:
            QuotaRequestError: anything of it is wrong.
            ConfigurationError: see ``load``.
            LogDirError: the file cannot be written.
            LockedError: another process has held its lock for too long.

        """
        if not self.path.parent.is_dir():
            if not ClientQuotas().altered(changes):  # nothing is changed, so no directory is needed
                return []
            make_directories(self._disk, self.path.parent)
        with self._alone():
            there = self.load()
            records = there.altered(changes)
            if records:
                write_file(self._disk, self.path, [encode_quotas(there.applied(records))])
            return records

    def set_rate(self, name: str | None, rate: float) -> bool:
        """Set ``producer_ids_rate`` of a user, None for the default user; raises as ``alter`` does.

        Returns whether that changed anything.
        """
        return bool(self.alter({user(name): [QuotaChange(PRODUCER_IDS_RATE, rate)]}))

    def delete_rate(self, name: str | None) -> None:
        """Delete ``producer_ids_rate`` of a user; raises as ``alter`` does, and QuotaRequestError if it is not set."""
        if not self.alter({user(name): [QuotaChange(PRODUCER_IDS_RATE, None)]}):  # ``kafka-configs`` refuses it, too
            raise QuotaRequestError(f"{PRODUCER_IDS_RATE} is not set for that user", hint="`resnap quota describe`")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude concurrent readers and writers during a change."""
        lock = self.path.with_suffix(".lock")
        with writable(lock), os.fdopen(open_for_writing(lock, os.O_APPEND), "a") as file:
            self._lock(file.fileno(), lock)
            yield

    def _lock(self, descriptor: int, lock: Path) -> None:
        try:
            lock_within(descriptor, lock, QUIET_WAIT_S)
        except LockedError:
            self._note(f"another command changes {self.path}: waiting for it to end")
            lock_within(descriptor, lock, LONGEST_WAIT_S)


def encode_quotas(quotas: ClientQuotas) -> bytes:
    """Return the bytes of the file."""
    found = [{"entity": dict(entity), "values": dict(values)} for entity, values in quotas.described()]
    return (json.dumps({"version": VERSION, "quotas": found}, ensure_ascii=False, indent=1) + "\n").encode()


def decode_quotas(data: bytes) -> ClientQuotas:
    """Return the quotas in the bytes of the file.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, RecursionError, QuotaRequestError: they are not of that form.

    """
    document = json.loads(data)
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']!r}, known is {VERSION}")
    entities: dict[Entity, dict[str, float]] = {}
    for quota in document["quotas"]:
        entity = _entity(quota["entity"])
        if entity in entities:
            raise ValueError(f"{shown_entity(entity)} is listed twice")
        entities[entity] = {key: _number(key, value) for key, value in quota["values"].items()}
        for key, value in entities[entity].items():
            check_value(entity, key, value)
    return ClientQuotas(entities)


def _entity(parts: dict[str, object]) -> Entity:
    names = {kind: name for kind, name in parts.items() if name is None or isinstance(name, str)}
    if len(names) < len(parts):
        raise ValueError(f"{json.dumps(parts)} is not an entity: names are strings, or null for the default")
    return entity_of(names.items())


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} is {json.dumps(value)}, expected a number")
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"{key} is too large")
    return float(value)


class MetadataQuotas:
    """The quotas of the metadata log in ``directory``, or of that log dir; read again as the log grows.

    An unreadable log is an error at first. A later damage, or a roll in progress, leaves the quotas unchanged: dropping
    all limits, or all clients, after a bad read would be worse.
    """

    def __init__(self, directory: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        """Read the log for the first time; ``warn`` is called about unusable quotas and later damage.

        Raises:
            UsageError, MetadataLogError, FormatError, LogDirError: see ``load_image``.

        """
        self._directory = directory
        self._warn = warn
        self._seen: object = None
        self.offset = -1
        """Offset of the last record that counts."""
        self.quotas = ClientQuotas()
        self.rates = UserRates()
        self._read()

    def refresh(self) -> bool:
        """Read the log again if it has grown, and return whether rates have changed."""
        before = self.rates
        try:
            self._read()
        except ResnapError as error:
            self._warn(f"{self._directory}: quotas stay as of offset {self.offset}: {error}")
        return self.rates != before

    def _read(self) -> None:
        files = list_metadata_log(self._directory)
        marks = tuple((segment.path, segment.size_bytes) for segment in files.segments), files.checkpoints
        if marks == self._seen:
            return
        image = fold_files(files).relying_on(ClientQuotaRecord)
        self._seen, self.offset = marks, image.offset
        self.quotas = ClientQuotas(image.quotas)
        self.rates = self.quotas.rates(self._warn)


def rates_of(found: Iterable[ClientQuotas], warn: Callable[[str], None]) -> UserRates:
    """Return the rates of users from all origins; the first origin with a user counts, and so for the default."""
    users: dict[str, float] = {}
    default: float | None = None
    for quotas in found:
        rates = quotas.rates(warn)
        users = {**rates.users, **users}
        default = rates.default if default is None else default
    return UserRates(users, default)
