"""Can tiering be turned on yet: the table of verdicts, and what is kept of a scan when a run has made something."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.runs.scans import PartitionFilter, Scans
from resnap.scheduler.state.database import Database
from resnap.scheduler.verbs.scan import facts_in
from resnap.tiering.judging.readiness import RunRepair, Verdict, judge
from resnap.tiering.judging.refusal import UnblockedBy
from tests.cases import each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Literal

    from resnap.scheduler.runs.run import Row

STOP = {"reason": "missing-snapshot", "detail": "of [0, 10)", "hint": "replay"}
OLD = {
    "reason": "leader-epochs-unknown",
    "detail": "none at 0",
    "hint": "let retention take it",
    "unblockedBy": "retention",
    "untilMs": 7,
}
TORN = {"reason": "torn-segment", "detail": "at 10", "hint": "another replica"}


def row(*lost: int, stop: object = STOP, blocking: object = None, compaction: str = "no", topic: str = "t") -> Row:
    return {
        "topic": topic,
        "partition": 0,
        "path": f"/the logs/{topic}-0",
        "compaction": compaction,
        "lost": len(lost),
        "lostBoundaries": [{"offset": offset} for offset in lost],
        "brokerStops": stop,
        "blocking": blocking,
    }


def made(how: Literal["regenerated", "shipped"], *offsets: int) -> RunRepair:
    return RunRepair(how=how, destination="/out", offsets=frozenset(offsets), run_id="r", at_ms=1)


@each(
    ("seen", "repairs", "unblocked_by", "reason"),
    [
        (row(stop=None), [], None, None),
        (row(10), [], UnblockedBy.REBUILD, "missing-snapshot"),
        (row(10, blocking=TORN), [], UnblockedBy.OTHER, "torn-segment"),
        (row(10, compaction="compacted"), [], None, "compacted"),
        (row(10, 20), [made("regenerated", 10)], UnblockedBy.REBUILD, "missing-snapshot"),
        (row(10, 20), [made("regenerated", 10, 20)], UnblockedBy.INSTALL, "missing-snapshot"),
        (row(10, 20), [made("regenerated", 10, 20, 30)], UnblockedBy.INSTALL, "missing-snapshot"),
        (row(10), [made("shipped", 10), made("regenerated", 10)], UnblockedBy.ANNOUNCE, "missing-snapshot"),
        (row(10), [made("shipped"), made("regenerated", 10)], UnblockedBy.INSTALL, "missing-snapshot"),
        (row(10, blocking=TORN), [made("shipped", 5)], UnblockedBy.OTHER, "torn-segment"),
        (row(), [made("regenerated", 10)], UnblockedBy.REBUILD, "missing-snapshot"),
        (row(10, stop=OLD, blocking=OLD), [made("regenerated", 10)], UnblockedBy.RETENTION, "leader-epochs-unknown"),
        (row(stop=OLD, blocking=OLD), [], UnblockedBy.RETENTION, "leader-epochs-unknown"),
        (row(10, stop=OLD), [made("regenerated", 10)], UnblockedBy.RETENTION, "leader-epochs-unknown"),
        (row(10, stop=OLD, blocking=OLD), [made("shipped", 10)], UnblockedBy.ANNOUNCE, "leader-epochs-unknown"),
    ],
)
def test_the_answer(
    seen: Row, repairs: Sequence[RunRepair], unblocked_by: UnblockedBy | None, reason: str | None
) -> None:
    judgement = judge(facts_in(seen), repairs)
    assert (judgement.unblocked_by, judgement.reason) == (unblocked_by, reason)
    assert judgement.next_step
    assert (judgement.verdict is Verdict.BLOCKED) == (unblocked_by is not None)
    assert (judgement.until_ms is not None) == (unblocked_by is UnblockedBy.RETENTION)
    if unblocked_by is None:
        assert judgement.verdict is (Verdict.READY if reason is None else Verdict.NEVER)


@pytest.fixture
def scans(tmp_path: Path) -> Iterator[Scans]:
    database = Database(tmp_path / "service.db")
    yield Scans(database, lambda: 7000)
    database.close()


def answers(scans: Scans) -> dict[str, UnblockedBy | None]:
    return {seen.topic: seen.judgement.unblocked_by for seen in scans.page(PartitionFilter(), limit=100)}


def test_what_is_repaired_counts_at_once_and_after_the_next_scan(scans: Scans) -> None:
    scans.keep("/a", [row(10), row(10, topic="other")])
    assert answers(scans) == {"t": UnblockedBy.REBUILD, "other": UnblockedBy.REBUILD}
    scans.repaired("/a", "t", 0, made("regenerated", 10))
    wanted = {"t": UnblockedBy.INSTALL, "other": UnblockedBy.REBUILD}
    assert answers(scans) == wanted
    scans.keep("/a", [row(10), row(10, topic="other")])
    assert answers(scans) == wanted
    assert scans.waiting()[UnblockedBy.INSTALL] == 1
    assert scans.find("t", 0)[0].judgement.next_step == "stop the broker, then `resnap install /out '/the logs'`"
    scans.keep("/a", [row(10, 20)])
    assert answers(scans) == {"t": UnblockedBy.REBUILD}, "another one is lost, and the other partition gone"


def test_a_repair_before_the_first_scan_counts_at_the_first_scan(scans: Scans) -> None:
    scans.repaired("/a", "t", 0, made("shipped", 10))
    assert answers(scans) == {}
    scans.keep("/a", [row(10)])
    assert answers(scans) == {"t": UnblockedBy.ANNOUNCE}


def test_repairing_one_source_says_nothing_of_another(scans: Scans) -> None:
    for source in ("/a", "/b"):
        scans.keep(source, [row(10)])
    scans.repaired("/a", "t", 0, made("regenerated", 10))
    found = {seen.source: seen.judgement.unblocked_by for seen in scans.find("t", 0)}
    assert found == {"/a": UnblockedBy.INSTALL, "/b": UnblockedBy.REBUILD}


def test_a_source_that_cannot_be_seen_keeps_what_was_seen(scans: Scans) -> None:
    scans.keep("/a", [row(10)])
    scans.keep_error("/a", "gone")
    scans.keep_error("/b", "never there")
    told = [(source.source, source.scanned_ms, source.error) for source in scans.sources()]
    assert told == [("/a", 7000, "gone"), ("/b", None, "never there")]
    assert answers(scans) == {"t": UnblockedBy.REBUILD}


def test_a_scan_of_some_topics_leaves_what_is_known_of_the_others(scans: Scans) -> None:
    scans.keep("/a", [row(10), row(10, topic="other")])
    scans.keep("/a", [], lambda partition: partition.topic == "t")
    assert answers(scans) == {"other": UnblockedBy.REBUILD}


def test_an_incomplete_scan_is_reported_until_the_next_complete_one(scans: Scans) -> None:
    scans.keep("/a", [row(10)], unread="1 partitions could not be read: torn")
    (seen,) = scans.sources()
    assert (seen.scanned_ms, seen.error) == (7000, "1 partitions could not be read: torn")
    scans.keep("/a", [row(10)])
    assert scans.sources()[0].error is None
