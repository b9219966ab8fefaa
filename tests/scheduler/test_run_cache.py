"""Logs that go on between two runs, so that the earlier result differs from what a run of today would find."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes
from tests.builders import a_partition
from tests.strategies import DataEvent, MarkerEvent, PlainEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.scheduler.conftest import Ran
    from tests.strategies import Event

JSON: Final = ("--output", "json")
HOUR_MS: Final = 3_600_000


def written(log: Path, segments: list[list[Event]]) -> None:
    """Write ``segments`` again into the partition, the last one active; files that are the same stay the same."""
    with TemporaryDirectory() as directory:
        made = a_partition(Path(directory), segments)
        for number, path in enumerate(sorted(made.glob("*.log"))):
            seconds = max(event.timestamp for event in segments[number]) // 1000
            for sibling in made.glob(f"{path.stem}.*index"):
                (log / "payments-0").mkdir(parents=True, exist_ok=True)
                (log / "payments-0" / sibling.name).write_bytes(sibling.read_bytes())
            there = log / "payments-0" / path.name
            if not there.exists() or there.read_bytes() != path.read_bytes():
                there.write_bytes(path.read_bytes())
                os.utime(there, (seconds, seconds))


def snapshots(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.rglob("*.snapshot")}


def test_what_an_empty_snapshot_vouched_for_is_read_once_transactions_show(
    again: Callable[..., Ran], tmp_path: Path
) -> None:
    now, day = time.time_ns() // 1_000_000, 86_400_000
    hanging = DataEvent(producer_id=7, transactional=True, timestamp=now - 20 * day)
    aborted = DataEvent(producer_id=3, transactional=True, timestamp=now - day // 2)
    marker = MarkerEvent(producer_id=3, timestamp=now - day // 2, commit=False)
    segments: list[list[Event]] = [[hanging], *([PlainEvent(timestamp=now - days * day)] for days in (19, 18, 1))]
    later: list[list[Event]] = [[aborted, marker], [PlainEvent(timestamp=now)]]
    written(tmp_path / "log", [*segments, [aborted]])
    (tmp_path / "log" / "payments-0" / f"{4:020d}.snapshot").write_bytes(snapshot_bytes(()))
    arguments = ("regenerate", tmp_path / "log", *JSON, "--into")
    first = again(*arguments, tmp_path / "out").document
    assert {row["entries"] for row in first["boundaries"]} == {0}
    written(tmp_path / "log", [*segments, *later])
    second = again(*arguments, tmp_path / "out").document
    assert {row["entries"] for row in second["boundaries"]} == {1, 2}
    again(*arguments, tmp_path / "whole", "--fresh")
    assert snapshots(tmp_path / "out") == snapshots(tmp_path / "whole")


def test_under_roll_a_clock_that_shows_above_a_boundary_bounds_its_time_from_then_on(
    again: Callable[..., Ran], tmp_path: Path
) -> None:
    now, hour = time.time_ns() // 1_000_000, HOUR_MS
    first = DataEvent(producer_id=1, timestamp=now - 9 * hour)
    ahead = PlainEvent(timestamp=now - hour)  # by a client's clock, and the file's time bears it out
    clock = [DataEvent(producer_id=2, transactional=True, timestamp=now - 8 * hour),
             MarkerEvent(producer_id=2, timestamp=now - 8 * hour)]  # fmt: skip
    rules = ("--as-of", "roll", "--producer-id-expiration-ms", 2 * hour, *JSON, "--into")
    written(tmp_path / "log", [[first, ahead], [PlainEvent(timestamp=now)]])
    (made,) = again("regenerate", tmp_path / "log", *rules, tmp_path / "out").document["boundaries"]
    assert made["entries"] == 0
    assert again("regenerate", tmp_path / "log", *rules, tmp_path / "out").document["summary"]["unchanged"] == 1
    written(tmp_path / "log", [[first, ahead], [PlainEvent(timestamp=now), *clock], [PlainEvent(timestamp=now)]])
    again("regenerate", tmp_path / "log", *rules, tmp_path / "out")
    (bounded, _) = again("regenerate", tmp_path / "log", *rules, tmp_path / "whole", "--fresh").document["boundaries"]
    assert bounded["entries"] == 1
    assert snapshots(tmp_path / "out") == snapshots(tmp_path / "whole")


def test_under_roll_what_this_moment_bounds_is_made_again_at_the_next(
    again: Callable[..., Ran], tmp_path: Path
) -> None:
    ahead = time.time_ns() // 1_000_000 + HOUR_MS
    written(tmp_path / "log", [[PlainEvent(timestamp=ahead)], [PlainEvent(timestamp=ahead)]])
    arguments = ("regenerate", tmp_path / "log", "--as-of", "roll", *JSON, "--into", tmp_path / "out")
    first, second = (again(*arguments).document["boundaries"][0] for _ in range(2))
    assert (first["outcome"], second["outcome"]) == ("rebuilt", "rebuilt")
    assert first["asOfMs"] < second["asOfMs"]


def test_where_the_whole_log_must_be_read_for_one_boundary_those_made_from_less_are_made_from_it_too(
    again: Callable[..., Ran], tmp_path: Path
) -> None:
    now, day = time.time_ns() // 1_000_000, 86_400_000
    begun = DataEvent(producer_id=7, transactional=True, timestamp=now - 20 * day)
    ended = MarkerEvent(producer_id=7, timestamp=now - 19 * day)
    segments: list[list[Event]] = [[begun], [ended], [PlainEvent(timestamp=now - 18 * day)]]
    written(tmp_path / "log", segments)
    vouching = ProducerEntry(7, 0, 0, 0, 0, now - 19 * day, 0, -1)
    (tmp_path / "log" / "payments-0" / f"{2:020d}.snapshot").write_bytes(snapshot_bytes((vouching,)))
    arguments = ("regenerate", tmp_path / "log", *JSON, "--into")
    (made,) = again(*arguments, tmp_path / "out").document["boundaries"]
    assert (made["coverage"], made["entries"]) == ("beyond-window", 0)
    written(tmp_path / "log", [*segments, [PlainEvent(timestamp=now - 17 * day)]])
    second = again(*arguments, tmp_path / "out").document["boundaries"]
    assert [(row["outcome"], row["coverage"], row["entries"]) for row in second] == [
        ("rebuilt", "window", 1),
        ("rebuilt", "window", 0),
    ]
    again(*arguments, tmp_path / "whole", "--fresh")
    assert snapshots(tmp_path / "out") == snapshots(tmp_path / "whole")
    assert again(*arguments, tmp_path / "out").document["summary"]["unchanged"] == 2
