"""How results of replays are shown, and which of them are errors."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from resnap.scheduler.answers.rendering import PARTITION, Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.clock import instant

if TYPE_CHECKING:
    from resnap.replay.boundary_state import LeftOut
    from resnap.replay.results import BoundaryResult, PartitionResult
    from resnap.scheduler.use_cases.service import Service
    from resnap.scheduler.use_cases.sources import Sight
    from resnap.scheduler.use_cases.work_items import Replayed
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.remembered.memory import KnownBoundary


_SHARED: Final = (
    PARTITION,
    Column(key="offset", title="SNAPSHOT", right=True),
    Column(key="outcome", title="OUTCOME"),
    Column(key="entries", title="ENTRIES", right=True),
    Column(key="coverage", title="COVERAGE"),
)


def answer_replay(run: Invocation, found: "Iterable[Replayed]", *, judged: bool, strict: bool = False) -> None:
    """Print what replays gave; ``judged`` shows the verdicts, ``strict`` makes a difference an error."""
    from resnap.scheduler.answers.reports import replay_tail
    from resnap.storage.errors import ResnapError

    told = _Told(run)
    columns = _VERDICTS if judged else _LEFT_OUT
    answer = Answer(
        name="boundaries",
        kind="boundary",
        rows=told.rows(found),
        columns=[*_SHARED, *columns],
        tail=lambda: {**replay_tail(told.results), **({} if judged else {"unchanged": len(told.known)})},
        closing=lambda: [
            *_unchanged_sum(told.known, told.results),
            *_replay_sum(told.results, told.known),
            *_older_rules(told.results),
            *beginnings_gone(told.known_from()),
        ],
    )
    try:
        run.answer(answer)
    except ResnapError as error:
        run.error(error)  # what was made before it stays made
    told.report()
    run.partly_done = not strict and (run.partly_done or bool(told.known))
    if strict:
        _report_differences(run, told.results)


class _Told:
    """What was printed so far: boundaries that were replayed, and those that an earlier run has made."""

    def __init__(self, run: Invocation) -> None:
        self._run = run
        self.results: list[PartitionResult] = []
        self.known: list[tuple[TopicPartition, KnownBoundary]] = []

    def rows(self, found: "Iterable[Replayed]") -> Iterator[Row]:
        """Yield a row per boundary, as the replays give them."""
        from resnap.replay.results import Outcome
        from resnap.scheduler.answers.reports import boundary_row, known_row

        for replayed in found:
            topic_partition, result = replayed.planned.sighted.topic_partition, replayed.result
            for known in replayed.planned.standing:
                self.known.append((topic_partition, known))
                yield known_row(topic_partition, known)
            self.results.append(result)
            for boundary in result.boundaries:
                self._run.partly_done = self._run.partly_done or boundary.outcome is Outcome.REBUILT
                yield {**boundary_row(topic_partition, boundary), "anchor": result.anchor}

    def known_from(self) -> "dict[TopicPartition, int]":
        """Return the first offset of the log that each partition's snapshots were made from."""
        made = {result.topic_partition: one.known_from_offset for result in self.results for one in result.boundaries}
        return {topic_partition: one.known_from_offset for topic_partition, one in self.known} | made

    def report(self) -> None:
        """Report what went wrong, and the producers that are left out."""
        for result in self.results:
            _report_result(self._run, result)
        for topic_partition, known in self.known:
            _report_left_out(self._run, topic_partition, known.offset, known.left_out)


def beginnings_gone(known_from: "Mapping[TopicPartition, int]") -> "Iterator[str]":
    """Tell which logs begin above offset 0, so that nothing proves who lives on from below."""
    gone = [f"{topic_partition} begins at {offset}" for topic_partition, offset in known_from.items() if offset]
    if gone:
        more = f" and {human_count(len(gone) - MOST_NAMED)} more" if len(gone) > MOST_NAMED else ""
        yield (
            f"The log of {', '.join(gone[:MOST_NAMED])}{more}: of producers whose last batch lies below, only those are"
            " known that snapshots show."
        )


MOST_NAMED: Final = 3


def _report_differences(run: Invocation, results: "Iterable[PartitionResult]") -> None:
    from resnap.storage.errors import VerificationError

    wrong = sum(_is_wrong(found) for result in results for found in result.boundaries)
    if wrong:
        run.error(
            VerificationError(
                f"{wrong} snapshots are not what a replay gives",
                hint="`resnap regenerate` makes them anew; `resnap explain` shows what an entry rests on",
            )
        )


def _is_wrong(found: "BoundaryResult") -> bool:
    comparison = found.comparison
    return comparison is not None and comparison.verdict not in {"proven", "unproven"}


def if_any(count: object) -> str:
    """Return a count, for a cell of a table; nothing for none."""
    return str(count) if count else ""


def count_of(value: object) -> str:
    """Return how many there are in a list, for a cell of a table; nothing for none."""
    return str(len(value)) if isinstance(value, list) and value else ""


_LEFT_OUT: Final = (Column(key="leftOut", title="LEFT OUT", right=True, show=count_of),)
_VERDICTS: Final = (
    Column(key="verdict", title="VERDICT"),
    Column(key="missingCount", title="MISSING", right=True, show=if_any),
    Column(key="differentCount", title="DIFFERENT", right=True, show=if_any),
    Column(key="byOlderRulesCount", title="BY OLDER RULES", right=True, show=if_any),
)


def _older_rules(results: "list[PartitionResult]") -> Iterator[str]:
    """Tell of entries that differ because the brokers that wrote them were older."""
    found = [boundary.comparison for result in results for boundary in result.boundaries if boundary.comparison]
    entries = sum(comparison.older_rules.total for comparison in found)
    if entries:
        yield (
            f"{human_count(entries)} of the entries that differ are as brokers before 2.4.1 (KAFKA-9144) or before 1.0"
            " left them at a transaction's marker: later brokers make of the log what the replay gives."
        )


def _unchanged_sum(
    known: "list[tuple[TopicPartition, KnownBoundary]]", results: "list[PartitionResult]"
) -> Iterator[str]:
    """Tell what was not made again, because it is there and nothing that it rests on has changed."""
    if not known:
        return
    made = sum(len(result.boundaries) for result in results)
    partitions = len({topic_partition for topic_partition, _ in known})
    since = instant(max(one.made_ms for _, one in known))
    nothing_read = "; nothing was read" if not made else ""
    yield (
        f"{human_count(len(known))} of {human_count(len(known) + made)} boundaries of {human_count(partitions)}"
        f" partitions unchanged since {since}{nothing_read}."
    )


def _replay_sum(results: "list[PartitionResult]", known: "list[tuple[TopicPartition, KnownBoundary]]") -> Iterator[str]:
    from resnap.scheduler.answers.reports import replay_tail

    if known and not any(result.boundaries for result in results):
        return
    total = replay_tail(results)
    failed = f", {total['failed']} not" if total["failed"] else ""
    snapshots, batches, segments = (
        human_count(int(str(total[key]))) for key in ("snapshots", "batches", "segmentsRead")
    )
    read = human_bytes(int(str(total["bytesRead"])))
    begun = sum(result.anchor is not None for result in results)
    anchored = f" In {human_count(begun)} partitions reading began where an earlier run ended." if begun else ""
    yield (
        f"{snapshots} snapshots rebuilt{failed}, from {batches} batches of {segments} segments ({read} read).{anchored}"
    )


def _report_result(run: Invocation, result: "PartitionResult") -> None:
    from resnap.scheduler.answers.faults import replay_faults, replay_warnings

    for fault in replay_faults(result):
        run.error(fault)
    for warning in replay_warnings(result):
        run.warn(warning)
    for found in result.boundaries:
        _report_left_out(run, result.topic_partition, found.boundary.offset, found.left_out)


def _report_left_out(
    run: Invocation, topic_partition: "TopicPartition", offset: int, left_out: "tuple[LeftOut, ...]"
) -> None:
    if left_out:
        ids = ", ".join(str(pid) for pid, _ in left_out[:5])
        run.warn(
            f"{topic_partition}: {len(left_out)} producers are left out of the snapshot at {offset}, their past is not"
            f" in what could be read: {ids}"
        )


def report_unusable(run: Invocation, sight: "Sight") -> None:
    """Report the snapshots that are there and that no broker could load."""
    from resnap.storage.errors import VerificationError

    for sighted in sight.partitions:
        for boundary in sighted.inventory.boundaries:
            if not boundary.state.is_usable and boundary.path is not None:
                what = boundary.detail or "no byte in it"
                run.error(VerificationError(f"{boundary.path}: {boundary.state}: {what}", hint="`resnap regenerate`"))


def report_staged(run: Invocation, service: "Service", sight: "Sight", root: str) -> None:
    """Report the regenerated snapshots that no broker could load, and say how many there should be besides."""
    checked = service.check_staged(sight, root)
    for error in checked.broken:
        run.error(error)
    if checked.absent:
        run.warn(f"{human_count(checked.absent)} boundaries that need a snapshot have none in {root}")
