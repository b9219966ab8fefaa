"""How what is read back of a store is shown: its segments, the chains they make, and its snapshots."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from resnap.scheduler.answers.rendering import Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.clock import instant

if TYPE_CHECKING:
    from resnap.scheduler.answers.progress import Progress
    from resnap.scheduler.use_cases.service import Service
    from resnap.scheduler.use_cases.store_check import StoreCheck
    from resnap.storage.layouts.aiven.log import CopiedSegment
    from resnap.storage.layouts.manifest import Manifest
    from resnap.tiering.checking.chains import Chain

    Check: TypeAlias = StoreCheck[Manifest] | StoreCheck[CopiedSegment]


class _Totals:
    """What is counted while the rows are made."""

    def __init__(self) -> None:
        self.segments = self.bytes = self.different = self.gone = self.snapshots = self.wrong = 0
        self.chains: list[Chain] = []

    def row(self, check: "Check") -> Row:
        """Return the summary in JSON."""
        from resnap.scheduler.answers.reports import chain_row

        return {
            "segments": self.segments,
            "bytes": self.bytes,
            "different": self.different,
            "gone": self.gone,
            "resumed": check.resumed,
            "notAskedFor": len(check.manifests.keys() - check.asked_for),
            "snapshotsReplayed": self.snapshots,
            "snapshotsDifferent": self.wrong,
            "chains": [chain_row(chain) for chain in self.chains],
        }


def answer_store(run: Invocation, service: "Service", url: str, since: str | None) -> None:
    """Print what reading a store back showed; every difference is an error."""
    from resnap.scheduler.answers.faults import nothing_shipped
    from resnap.scheduler.use_cases.sources import Scope
    from resnap.scheduler.wiring import journal_of
    from resnap.storage.stores.urls import open_store

    since_ms = _moment(run, since)
    store = open_store(url, run.settings.s3())
    journal = journal_of(run.settings, run.clock, store.url, run.warn)
    scope = Scope(sources=(url,), topics=run.settings.topics)
    check, totals = service.check_store(scope, store, journal, since_ms), _Totals()
    with run.progress("verify", "replay") as (reading, replaying):
        run.answer(
            Answer(
                name="segments",
                kind="segment",
                rows=_rows(run, check, totals, reading, replaying),
                columns=[
                    Column(key="manifest", title="MANIFEST"),
                    Column(key="bytes", title="BYTES", right=True, show=lambda value: human_bytes(int(str(value)))),
                    Column(key="result", title="RESULT"),
                ],
                tail=lambda: totals.row(check),
                closing=lambda: _closing(check, totals),
            )
        )
    journal.end()
    if not check.manifests and not totals.segments:
        run.error(nothing_shipped(url))


def _moment(run: Invocation, since: str | None) -> int | None:
    from resnap.scheduler.settings.values import parse_moment
    from resnap.storage.errors import UsageError

    if since is None:
        return None
    try:
        return parse_moment(since, run.clock.now_ms())
    except ValueError as error:
        raise UsageError(f"--since {since}: {error}") from error


def _rows(
    run: Invocation, check: "Check", totals: _Totals, reading: "Progress", replaying: "Progress"
) -> Iterator[Row]:
    """Yield a row per segment that was read or is wrong, and then look at what they are together."""
    from resnap.scheduler.answers.faults import segment_faults
    from resnap.scheduler.answers.reports import verified_row

    for verified in check.segments(reading):
        totals.segments += verified.was_read
        totals.bytes += verified.size_bytes
        totals.different += bool(verified.problems)
        totals.gone += verified.is_retained_away
        for fault in segment_faults(verified.problems, check.layout.remedy):
            run.error(fault)
        for text in verified.undecided:
            run.warn(f"{text}: verify from the partition's first segment on, or compare with a replica")
        if verified.was_read or verified.problems:
            yield verified_row(verified)
    if totals.gone:
        run.warn(
            f"segments that are gone from the beginning of their logs, each with all its objects, as the brokers' own"
            f" retention leaves them: {human_count(totals.gone)}; their manifests may be deleted"
        )
    totals.chains = check.chains()
    for chain in totals.chains:
        _report_chain(run, chain)
    for found in check.snapshots(replaying):
        totals.snapshots += 1
        totals.wrong += found.problem is not None
        if found.problem is not None:
            run.error(found.problem)


def _report_chain(run: Invocation, chain: "Chain") -> None:
    from resnap.scheduler.answers.faults import chain_faults

    for fault in chain_faults(chain):
        run.error(fault)
    for one in chain.overlaps:
        if one.is_one_lineage:
            what = f"{chain.topic_partition}: two segments have the offsets [{one.start}, {one.end})"
            run.warn(f"{what}; their leader epochs are the same there")


def _closing(check: "Check", totals: _Totals) -> Iterator[str]:
    names = Counter(chain.topic_partition for chain in totals.chains)
    for chain in totals.chains:
        of = f", topic id {chain.topic_id}" if names[chain.topic_partition] > 1 else ""
        faults = [f"{len(chain.gaps)} gaps"] * bool(chain.gaps) + [f"{len(chain.overlaps)} overlaps"] * bool(
            chain.overlaps
        )
        yield (
            f"{chain.topic_partition}{of}: offsets [{chain.start}, {chain.end}) in"
            f" {human_count(chain.segments)} segments"
            f"{''.join(f', {fault}' for fault in faults)}."
        )
    if check.resumed:
        begun = instant(check.journal.begun_ms)
        yield f"{human_count(check.resumed)} segments had been read back by the run of {begun} that was interrupted."
    yield (
        f"{human_count(totals.segments)} segments read back ({human_bytes(totals.bytes)}), "
        f"{human_count(totals.different)} with differences; {human_count(totals.snapshots)} snapshots held against a "
        f"replay, {human_count(totals.wrong)} of them differ."
    )
