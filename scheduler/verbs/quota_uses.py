"""A log's uses of producer ids by principal, for `resnap quota simulate` and `advise`.

Headers are read where replays read them: by Spark's executors, or by this process. The uses, a time and an id each,
thinned to one per second, stay there; the quota also runs there, principal by principal, and only its outcome is
returned.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from resnap.replay.scan.header_scan import SegmentRange
from resnap.scheduler.job.contract import Context, Unread
from resnap.storage.errors import UsageError
from resnap.storage.words import human_count
from resnap.tiering.controller.transactions.state_log import transactional_ids
from resnap.tiering.quota.active_producers import LogUses, Uses, in_time, joined, read_uses
from resnap.tiering.quota.producer_census import PrincipalMap, read_principal_map
from resnap.tiering.selection import Scope, select

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.sources.files import Sources

_R = TypeVar("_R")

PrincipalFile = Annotated[
    Path | None,
    typer.Option(
        "--principal-map", metavar="FILE",
        help="CSV file, `producerId,topic,principal`: the owner of each id. Quotas take topics for owners without it.",
    ),
]  # fmt: skip
Profile = Annotated[
    Literal["P-A", "P-B", "P-C", "P-L"],
    typer.Option("--profile", help="How long an id counts as known; see docs/quota.md."),
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="producer.id.quota.window.num")]
WindowSeconds = Annotated[int, typer.Option("--window-seconds", min=1, help="producer.id.quota.window.size.seconds")]
Unit = Annotated[Literal["hour", "second"], typer.Option("--unit", help="The unit of time of rates.")]


class UsesByPrincipal:
    """The uses of producer ids in a log, where they were read."""

    def __init__(self, read: LogUses, mapped: Callable[[Callable[[str, list[Uses]], Any]], list[Any]]) -> None:
        self.read, self._mapped = read, mapped

    def unread(self) -> Iterator[Unread]:
        """Yield, after all results, what is missing from them."""
        read = self.read
        what = f"batches without a timestamp, and without one before them, are skipped: {human_count(read.undated)}"
        yield Unread(faults=read.errors, warnings=(what,) if read.undated else (), partly_done=bool(read.batches))

    def map(self, work: Callable[[str, Uses], _R]) -> list[_R]:
        """Return ``work(principal, uses by time)`` of each principal, in the order of their names.

        Raises:
            ResnapError: Spark failed.

        """
        return self._mapped(lambda principal, parts: work(principal, in_time(joined(parts))))


@contextmanager
def uses_of(scope: Scope, principal_map: Path | None, context: Context) -> Iterator[UsesByPrincipal]:
    """Give the uses of producer ids of everything in scope, by the principals of a file, or by topic.

    Raises:
        UsageError, LogDirError, StoreError: a source cannot be listed, or the file of principals cannot be read.
        ResnapError: Spark failed.

    """
    principals, engine = _principals(principal_map, context), context.engine()
    selected = select(scope, engine.reading.sources)
    names: dict[int, str] = {}
    for log_dir in {str(partition.log_dir.path): partition.log_dir.path for partition in selected.partitions}.values():
        names |= transactional_ids(log_dir)
    segments = [
        (partition.topic_partition.topic, SegmentRange.whole(segment))
        for partition in selected.partitions
        for segment in partition.inventory.partition.segments
    ]
    read = partial(_read, principals=principals.knowing(names), sources=engine.reading.sources)
    errors = tuple(problem.error for problem in selected.problems)
    with engine.grouped(read, LogUses.joined, LogUses(), segments) as (found, mapped):
        yield UsesByPrincipal(replace(found, errors=(*errors, *found.errors)), mapped)


def _read(
    segment: tuple[str, SegmentRange], *, principals: PrincipalMap, sources: Sources
) -> tuple[LogUses, list[tuple[str, Uses]]]:
    """Return what was read of a segment of a topic, and its uses by principal."""
    topic, whole = segment
    read, (at_ms, ids) = read_uses(whole, sources)
    return read, [(principal, Uses(at_ms[theirs], ids[theirs])) for principal, theirs in principals.split(topic, ids)]


def _principals(path: Path | None, context: Context) -> PrincipalMap:
    if path is None:
        context.note(
            "a log does not name the principals of producers: each topic counts as a principal (--principal-map)"
        )
        return PrincipalMap()
    return principals_in(path)


def principals_in(path: Path) -> PrincipalMap:
    """Return the principals that a file names.

    Raises:
        UsageError: it cannot be read, or a line of it is not as it should be.

    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--principal-map {path}: {error}", hint="a CSV file, in UTF-8") from error
    return read_principal_map(lines, str(path))
