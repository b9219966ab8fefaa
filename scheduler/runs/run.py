"""A run of the service as values: its id, its request, its states, and its events.

Ids sort by creation time, so that a cursor over them is a cursor over time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from resnap.scheduler.registry import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from resnap.scheduler.job.contract import PartitionState


Row: TypeAlias = "Mapping[str, Any]"
BY_API: Final = "api"
"""Origin of the runs that callers requested."""


OTHER_FAILURES: Final = "otherFailures"
"""In totals: failures that are none of a partition that is known by name, the error that ended the run among them."""


if TYPE_CHECKING:
    RunKind: TypeAlias = str
else:
    RunKind = StrEnum("RunKind", {kind.upper(): kind for kind in KINDS})
    RunKind.__doc__ = "What a run does."


class RunState(StrEnum):
    """Where a run is; the last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    PARTIALLY_FAILED = "partially_failed"
    """Some partitions are done, others are not."""
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen."""
        return self in FINAL


FINAL: Final = (RunState.SUCCEEDED, RunState.PARTIALLY_FAILED, RunState.FAILED, RunState.CANCELLED)
OPEN: Final = (RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a run is to do.

    Attributes:
        kind: what to do.
        sources: log dirs, partitions' directories or URLs; ``log.dirs`` if there are none. Of a verification, a store.
        partitions: directories' names, such as ``payments-0``, if not all that ``settings`` let through are meant.
        destination: where snapshots or segments go; None where nothing is written.
        settings: by name of the setting, over those of the configuration, such as ``{"as_of": "roll"}``.
        plan: id of a kept plan to carry out, which then names sources and partitions.

    """

    kind: str
    sources: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    destination: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    plan: str | None = None

    @property
    def chosen(self) -> list[str]:
        """The selected partitions, else the globs of topics, excluded ones last; empty for all."""
        named = self.partitions or cast("tuple[str, ...]", self.settings.get("topics") or ())
        left_out = cast("tuple[str, ...]", self.settings.get("exclude_topics") or ())
        return [*named, *(f"not {glob}" for glob in left_out)]

    @property
    def is_dry(self) -> bool:
        """Whether nothing is to be written."""
        return bool(self.settings.get("dry_run"))


def request_from(kept: Mapping[str, Any]) -> RunRequest:
    """Return a request from what ``records.plain`` made of it; raises ValueError for a kind that is not known."""
    kind = kept["kind"]
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind of run of this release")
    sources, destination = tuple(kept["sources"]), kept["destination"]
    if kind == "verify" and destination is not None:  # as earlier releases kept the store
        sources, destination = (destination,), None
    return RunRequest(
        kind=kind,
        sources=sources,
        partitions=tuple(kept["partitions"]),
        destination=destination,
        settings=kept["settings"],
        plan=kept["plan"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedError:
    """An error as it is shown to others: never with a traceback, nor with a secret.

    Attributes:
        code: name of the error's class, such as ``StoreAccessError``.
        message: what is wrong.
        hint: the next step.
        exit_code: what the shell command would have ended with.

    """

    code: str
    message: str
    hint: str | None
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as it is kept. Times are milliseconds since 1970.

    Attributes:
        id: sorts by time of creation.
        origin: ``schedule:<name>`` or ``api``.
        principal: who asked for it.
        progress: how far it has come, by task (``replay``, ``ship``), in the form of ``progress_row``.
        totals: what it came to.
        errors: what went wrong; the first is what ended it, if one did.

    """

    id: str
    request: RunRequest
    state: RunState
    origin: str
    principal: str
    created_ms: int
    retry_of: str | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    progress: Mapping[str, Row] = field(default_factory=dict)
    totals: Row = field(default_factory=dict)
    errors: tuple[ReportedError, ...] = ()

    @property
    def kind(self) -> str:
        """What it does."""
        return self.request.kind

    @property
    def is_of_everything(self) -> bool:
        """Whether it counts for the whole service or cluster; what a caller names says nothing of the rest."""
        asked = self.request
        is_of_some = asked.sources or asked.partitions or asked.settings.keys() & {"topics", "exclude_topics"}
        return self.origin != BY_API or not is_of_some


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """The outcome of one partition in a run; ``row`` is in the form of the shell command's JSON."""

    topic: str
    partition: int
    state: PartitionState
    row: Row = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """Something that was reported of a run; ``seq`` counts from 1 on within the run."""

    run_id: str
    seq: int
    at_ms: int
    kind: str
    """state, progress, partition, or error."""
    data: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """How a run ended."""

    state: RunState
    totals: Row
    errors: tuple[ReportedError, ...]


_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32, in the order of ASCII: no letter that looks like a digit."""
_DIGITS: Final = 20


class Ids:
    """Makes ids of 20 letters and digits: 50 bits of milliseconds, 50 random ones. Thread-safe.

    A clock that goes back, or stands still, does not break their order, nor does one that was set back between two
    processes, if the second is given the ``newest`` id that the first has made.
    """

    def __init__(
        self, now_ms: Callable[[], int], random_bits: Callable[[int], int], *, newest: str | None = None
    ) -> None:
        self._now_ms, self._random_bits = now_ms, random_bits
        self._lock = threading.Lock()
        digits = [] if newest is None else [_ALPHABET.index(letter) for letter in reversed(newest)]
        self._last = sum(digit << 5 * place for place, digit in enumerate(digits))

    def make(self) -> str:
        """Return an id that sorts after all earlier ones."""
        with self._lock:
            made = (self._now_ms() << 50) | self._random_bits(50)
            self._last = max(made, self._last + 1)
            return "".join(_ALPHABET[(self._last >> 5 * place) & 31] for place in reversed(range(_DIGITS)))
