"""Every snapshot that a real broker wrote, rebuilt from its log alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest

from resnap.replay.plan import Coverage
from resnap.replay.producer_state import NO_COORDINATOR_EPOCH
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.results import BoundaryOutcome
from resnap.replay.staging import DirectorySink
from resnap.storage.log.producer_snapshot import load_snapshot
from tests.replay.truth import TRUTHS, Truth, snapshot_path, unexplained, written_by_the_broker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from resnap.replay.results import PartitionResult
    from resnap.storage.log.producer_snapshot import ProducerEntry
    from tests.fixture_sets import FixtureSet

    Sets: TypeAlias = Callable[[str], FixtureSet]

every_truth = pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.name)


@every_truth
def test_every_boundary_equals_what_the_broker_wrote(truth: Truth, fixture_set: Sets, tmp_path: Path) -> None:
    fixture = fixture_set(truth.name)
    results = list(rebuild_locally(truth.plans(fixture), DirectorySink(tmp_path)))
    _check_against_the_broker(truth, fixture, results, tmp_path)


def test_most_of_a_steady_broker_is_equal_to_the_last_field(fixture_set: Sets, tmp_path: Path) -> None:
    truth = next(truth for truth in TRUTHS if truth.name == "kafka-3.9.1-steady")
    fixture = fixture_set(truth.name)
    results = list(rebuild_locally(truth.plans(fixture), DirectorySink(tmp_path)))
    made = [(boundary, str(result.topic_partition)) for result in results for boundary in result.boundaries]
    equal = [
        load_snapshot(snapshot_path(tmp_path, partition, boundary))
        == written_by_the_broker(fixture, boundary, partition)
        for boundary, partition in made
    ]
    assert sum(equal) >= 7


@every_truth
def test_as_of_now_nothing_that_a_loading_broker_would_keep_is_missing(
    truth: Truth, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set(truth.name)
    last_append_ms = int(max(path.stat().st_mtime for path in fixture.data.rglob("*.log")) * 1000)
    for sink, now_ms in enumerate((last_append_ms, last_append_ms + truth.expiry.expiration_ms // 2)):
        root = tmp_path / str(sink)
        for result in rebuild_locally(truth.plans(fixture, now_ms=now_ms, roll=False), DirectorySink(root)):
            for boundary in result.boundaries:
                partition = str(result.topic_partition)
                assert boundary.outcome is BoundaryOutcome.REBUILT
                assert not boundary.left_out
                broker = written_by_the_broker(fixture, boundary, partition)
                rebuilt = load_snapshot(snapshot_path(root, partition, boundary))
                alive = {pid: e for pid, e in broker.items() if not truth.expiry.is_expired(e, now_ms)}
                if boundary.coverage is Coverage.WINDOW:
                    assert alive.keys() <= rebuilt.keys()
                    assert unexplained(rebuilt, alive, truth.expiry, now_ms) == []
                else:
                    # Those whose transaction was committed later may be missing, as may any coordinator epoch.
                    named = boundary.boundary.evidence.spanning.keys()
                    assert without_coordinator(rebuilt) == {
                        pid: entry for pid, entry in without_coordinator(alive).items() if pid in named
                    }
                    assert all(entry.has_open_transaction for entry in alive.values())


def _check_against_the_broker(truth: Truth, fixture: FixtureSet, results: list[PartitionResult], root: Path) -> None:
    made = 0
    for result in results:
        assert result.error is None
        assert not result.lacks_records
        for boundary in result.boundaries:
            made += 1
            assert boundary.outcome is BoundaryOutcome.REBUILT
            partition = str(result.topic_partition)
            rebuilt = load_snapshot(snapshot_path(root, partition, boundary))
            broker = written_by_the_broker(fixture, boundary, partition)
            assert boundary.entries == len(rebuilt)
            if truth.exact:
                assert rebuilt == broker
            else:
                assert unexplained(rebuilt, broker, truth.expiry, boundary.as_of_ms) == []
    assert made == truth.boundaries


def without_coordinator(entries: Mapping[int, ProducerEntry]) -> dict[int, ProducerEntry]:
    return {pid: entry._replace(coordinator_epoch=NO_COORDINATOR_EPOCH) for pid, entry in entries.items()}
