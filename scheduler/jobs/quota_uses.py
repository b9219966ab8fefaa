"""What `resnap quota simulate` and `advise` have in common: a log's uses of producer ids, by principal, and rules.

Headers are read where replays read them: by Spark's executors, or by this process. What comes back is a time and an id
for each use, thinned to one a second; the quota itself runs in this process, principal by principal.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from resnap.replay.scan.header_scan import SegmentRange
from resnap.scheduler.job.contract import Context, Unread
from resnap.scheduler.job.engines import Engine
from resnap.scheduler.job.sources import Scope, look
from resnap.scheduler.output.rendering import human_count
from resnap.storage.errors import ResnapError, UsageError
from resnap.tiering.controller.transactions.state_log import transactional_ids
from resnap.tiering.quota.active_producers import Remembering
from resnap.tiering.quota.principals import PrincipalMap, read_principal_map
from resnap.tiering.quota.producer_activity import SegmentToRead, Uses, in_time, joined, read_uses
from resnap.tiering.quota.profiles import life_cycle
from resnap.tiering.quota.simulation import Rules
from resnap.tiering.quota.token_bucket import QuotaConfig, RateUnit

PrincipalFile = Annotated[
    Path | None,
    typer.Option(
        "--principal-map", metavar="FILE",
        help="CSV file, `producerId,topic,principal`: the owner of each id. Quotas take topics for owners without it.",
    ),
]  # fmt: skip
Profile = Annotated[
    Literal["P-A", "P-B", "P-C", "P-L"],
    typer.Option("--profile", help="How long ids are remembered; see docs/quota.md."),
]
Samples = Annotated[int, typer.Option("--samples", min=1, help="producer.id.quota.window.num")]
WindowSeconds = Annotated[int, typer.Option("--window-seconds", min=1, help="producer.id.quota.window.size.seconds")]
Unit = Annotated[Literal["hour", "second"], typer.Option("--unit", help="The unit of time of rates.")]


def rules_of(
    profile: str, samples: int, window_seconds: int, unit: str, false_positive_rate: float, *, permissive: bool
) -> Rules:
    """Return the rules of the quota that the flags ask for."""
    window_ms = window_seconds * 1000
    return Rules(
        config=QuotaConfig(samples=samples, window_ms=window_ms, unit=RateUnit[unit.upper()]),
        remembering=Remembering(cycle=life_cycle(profile, window_ms), false_positive_rate=false_positive_rate),
        permissive=permissive,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogUses:
    """What a log holds, for a quota."""

    by_principal: Mapping[str, Uses]
    segments: int
    batches: int
    """Batches of producers."""
    undated: int = 0
    """Batches that no time is known of, and that are skipped."""
    errors: tuple[ResnapError, ...] = ()

    def unread(self) -> Iterator[Unread]:
        """Yield, after all results, what is missing from them."""
        what = f"batches without a timestamp, and without one before them, are skipped: {human_count(self.undated)}"
        yield Unread(faults=self.errors, warnings=(what,) if self.undated else (), partly_done=bool(self.batches))


def uses_of(scope: Scope, principal_map: Path | None, context: Context) -> LogUses:
    """Return the uses of producer ids of everything in scope, by the principals of a file, or by topic.

    Raises:
        UsageError, LogDirError, StoreError: a source cannot be listed, or the file of principals cannot be read.
        ResnapError: Spark failed.

    """
    return _gather(scope, _principals(principal_map, context), context.engine())


def _principals(path: Path | None, context: Context) -> PrincipalMap:
    if path is None:
        context.note(
            "a log does not say whose producers are whose: each topic stands in for a principal (--principal-map)"
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


def _gather(scope: Scope, principals: PrincipalMap, engine: Engine) -> LogUses:
    selected = look(scope, engine.reading.sources)
    names: dict[int, str] = {}
    for log_dir in {str(one.log_dir.path): one.log_dir.path for one in selected.partitions}.values():
        names |= transactional_ids(log_dir)
    principals = principals.knowing(names)
    segments = [
        SegmentToRead(
            topic=one.topic_partition.topic,
            range=SegmentRange(
                locator=str(segment.path), base_offset=segment.base_offset, next_base_offset=segment.next_base_offset
            ),
        )
        for one in selected.partitions
        for segment in one.inventory.partition.segments
    ]
    found = engine.spread(partial(read_uses, sources=engine.reading.sources), segments)
    parts: dict[str, list[Uses]] = defaultdict(list)
    for one in found:
        for principal, theirs in principals.split(one.topic, one.uses.producer_id):
            parts[principal].append(Uses(one.uses.at_ms[theirs], one.uses.producer_id[theirs]))
    return LogUses(
        by_principal={principal: in_time(joined(uses)) for principal, uses in sorted(parts.items())},
        segments=len(segments),
        batches=sum(one.batches for one in found),
        undated=sum(one.undated for one in found),
        errors=(*(problem.error for problem in selected.problems), *(one.error for one in found if one.error)),
    )
