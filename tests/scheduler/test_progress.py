from __future__ import annotations

import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.output.progress import (
    LINE_INTERVAL_S,
    LineProgress,
    ProgressState,
    TrackedProgress,
    progress_row,
)
from tests.clocks import FixedClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

MIB = 1 << 20


def test_the_rate_counts_from_when_the_engine_is_at_work_and_the_time_left_follows_from_it() -> None:
    clock, told = FixedClock(0), list[ProgressState]()
    progress = TrackedProgress("replay", clock, told.append)
    progress.expect(4, 40 * MIB)
    clock.advance(6_000)
    progress.at_work("scanning", 2)
    clock.advance(5_000)
    progress.advance(1, 10 * MIB)
    state = told[-1]
    assert (state.phase, state.tasks_running, state.elapsed_s) == ("scanning", 2, 11)
    assert state.rate_bytes_s == 2 * MIB
    assert state.left_s == 15
    assert told[0].rate_bytes_s is told[0].left_s is None


def test_a_further_round_extends_what_is_expected() -> None:
    progress = TrackedProgress("replay", FixedClock(0), lambda _: None)
    progress.expect(2, 20)
    progress.advance(2, 20)
    progress.expect(5, 50)
    progress.advance(5, 50)
    state = progress.state()
    assert (state.segments, state.segments_expected) == (7, 7)
    assert (state.size_bytes, state.bytes_expected) == (70, 70)


def test_more_than_was_expected_leaves_no_negative_time() -> None:
    clock = FixedClock(0)
    progress = TrackedProgress("replay", clock, lambda _: None)
    progress.expect(1, 10)
    clock.advance(1_000)
    progress.advance(2, 20)
    assert progress.state().left_s == 0


def test_reports_of_many_threads_add_up_and_are_printed_one_at_a_time() -> None:
    told = list[ProgressState]()
    progress = TrackedProgress("replay", FixedClock(0), told.append)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: progress.advance(1, 3), range(2_000)))
    assert [state.segments for state in told] == list(range(1, 2_001))
    assert progress.state().size_bytes == 6_000


def test_a_line_comes_also_where_nothing_is_done_for_long() -> None:
    clock, stream = FixedClock(0), io.StringIO()
    progress = LineProgress("replay", stream, clock)
    progress.at_work("scanning", 2)
    progress.expect(1, 10 * MIB)
    for _ in range(3):
        clock.advance(int(LINE_INTERVAL_S * 1000))
        progress.at_work("scanning", 2)
    assert stream.getvalue().splitlines()[-1] == "replay: 0/1 segments, 0 B/10.0 MiB, 30.0 s"
    assert len(stream.getvalue().splitlines()) == 3


def test_compiling_machine_code_is_reported_once_and_is_not_part_of_the_rate() -> None:
    clock, stream = FixedClock(0), io.StringIO()
    progress = LineProgress("replay", stream, clock)
    progress.expect(3, 30 * MIB)
    for _ in range(2):
        progress.at_work("compiling", 2)
        clock.advance(7_000)
    progress.advance(1, 10 * MIB)
    clock.advance(1)
    assert progress.state().rate_bytes_s is None, "what was read meanwhile was not read in a millisecond"
    clock.advance(9_999)
    progress.advance(1, 10 * MIB)
    assert stream.getvalue().splitlines() == [
        "replay: preparing machine code (first run only)",
        "replay: 1/3 segments, 10.0 MiB/30.0 MiB, 14.0 s",
        "replay: 2/3 segments, 20.0 MiB/30.0 MiB, 24.0 s, 1.0 MiB/s, 10.0 s left",
    ]


def test_what_comes_before_work_is_said_at_once_and_later_with_the_time_it_has_taken() -> None:
    clock, stream = FixedClock(0), io.StringIO()
    progress = LineProgress("replay", stream, clock)
    progress.expect(3, 30 * MIB)
    progress.at_work("starting", 0)
    assert stream.getvalue() == "replay: starting Spark \u2026\n"
    clock.advance(37_000)
    for _ in range(4):
        progress.at_work("compiling", 2)
        clock.advance(int(LINE_INTERVAL_S * 1000))
    progress.advance(1, 10 * MIB)
    clock.advance(10_000)
    assert progress.state().left_s is None, "the start of Spark says nothing of how fast it reads"
    progress.advance(1, 10 * MIB)
    assert stream.getvalue().splitlines()[1:] == [
        "replay: preparing machine code (first run only), 37.0 s",
        "replay: preparing machine code (first run only), 47.0 s",
        "replay: preparing machine code (first run only), 57.0 s",
        "replay: preparing machine code (first run only), 1 m 7 s",
        "replay: 1/3 segments, 10.0 MiB/30.0 MiB, 1 m 17 s",
        "replay: 2/3 segments, 20.0 MiB/30.0 MiB, 1 m 27 s, 1.0 MiB/s, 10.0 s left",
    ]


def test_work_that_reads_no_segments_is_told_by_their_number_unless_it_is_over_soon() -> None:
    clock, stream = FixedClock(0), io.StringIO()
    progress = LineProgress("plan", stream, clock)
    progress.expect(30, 0)
    for _ in range(3):
        progress.advance(5, 0)
        clock.advance(6_000)
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "plan: 15/30 segments, 12.0 s, 12.0 s left",
        "plan: 15/30 segments, 18.0 s, 18.0 s left",
    ]
    quick = LineProgress("plan", stream, clock)
    quick.expect(30, 0)
    quick.advance(30, 0)
    quick.finish()
    assert len(stream.getvalue().splitlines()) == 2


def test_a_task_that_is_complete_is_told_once_with_its_own_time_unless_more_follows() -> None:
    clock, stream = FixedClock(0), io.StringIO()
    progress = LineProgress("replay", stream, clock)
    progress.expect(2, 40 * MIB)
    clock.advance(20_000)
    progress.advance(2, 40 * MIB)
    clock.advance(60_000)  # while segments are shipped
    progress.finish()
    complete = ["replay: 2/2 segments, 40.0 MiB/40.0 MiB, 20.0 s, 2.0 MiB/s"]
    assert stream.getvalue().splitlines() == complete
    progress.expect(1, 40 * MIB)  # a further round
    progress.advance(1, 40 * MIB)
    progress.finish()
    assert stream.getvalue().splitlines() == [
        *complete,
        "replay: 2/3 segments, 40.0 MiB/80.0 MiB, 1 m 20 s, 512.0 KiB/s, 1 m 20 s left",
        "replay: 3/3 segments, 80.0 MiB/80.0 MiB, 1 m 20 s, 1.0 MiB/s",
    ]


def test_what_was_read_is_told_to_be_combined_until_that_is_over() -> None:
    clock, stream = FixedClock(0), io.StringIO()
    progress = LineProgress("replay", stream, clock)
    progress.expect(2, 40 * MIB)
    clock.advance(5_000)
    progress.advance(2, 40 * MIB)
    for _ in range(2):
        clock.advance(10_000)
        progress.at_work("combining", 2)
    clock.advance(60_000)  # of other work
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "replay: 2/2 segments, 40.0 MiB/40.0 MiB, 15.0 s, 8.0 MiB/s, combining",
        "replay: 2/2 segments, 40.0 MiB/40.0 MiB, 25.0 s, 8.0 MiB/s, combining",
        "replay: 2/2 segments, 40.0 MiB/40.0 MiB, 25.0 s, 8.0 MiB/s",
    ]


def test_a_listing_is_told_before_a_segment_is_known() -> None:
    clock, stream = FixedClock(0), io.StringIO()
    progress = LineProgress("select", stream, clock)
    for _ in range(12):
        progress.expect(0, 0)
        clock.advance(1_000)
    progress.at_work("scanning", 1)
    progress.expect(30, 0)
    clock.advance(10_000)
    progress.advance(10, 0)
    assert stream.getvalue().splitlines() == [
        "select: listing files, 10.0 s",
        "select: 10/30 segments, 22.0 s, 20.0 s left",
    ]


@pytest.mark.parametrize("verb", ["scan", "check", "plan", "regenerate", "tier", "verify", "census"])
def test_the_selection_is_told_before_anything_else(
    verb: str, command: Resnap, broker_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resnap.scheduler.output.progress.LINE_INTERVAL_S", 0.0)
    to = {"regenerate": "--into", "tier": "--to"}
    words = (to[verb], (tmp_path / "made").as_uri(), "--dry-run") if verb in to else ()
    words += ("--engine", "local") if verb == "verify" else ()
    told = command(
        *(["producer", "census"] if verb == "census" else [verb]), broker_log, *words, "--topic", "orders"
    ).err
    lines = [line for line in told.splitlines() if re.match(r"[a-z ]+: (listing|[\d,]+/)", line)]
    assert lines[0].startswith("select: listing files, ")
    assert any(line.startswith("select: 3/3 segments, ") for line in lines), lines
    if verb in {"plan", "regenerate", "tier", "verify"}:
        assert any(line.startswith("plan: 3/3 segments, ") for line in lines), lines


def test_the_total_of_shipping_is_known_from_the_beginning(
    command: Resnap, broker_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resnap.scheduler.output.progress.LINE_INTERVAL_S", 0.0)
    tier = ("tier", broker_log, "--to", (tmp_path / "store").as_uri(), "--engine", "local", "--output", "json")
    ran = command(*tier)
    told = [row["progress"] for row in map(json.loads, ran.err.splitlines()) if "progress" in row]
    shipping = [one for one in told if one["task"] == "ship"]
    shipped = ran.document["summary"]["shipped"]
    assert max(one["segmentsTotal"] for one in shipping) == max(
        one["segmentsTotal"] for one in shipping if one["segments"] == 0
    )
    assert (shipping[-1]["segments"], shipping[-1]["segmentsTotal"]) == (shipped, shipped)
    assert [one["bytes"] for one in shipping][-1] == shipping[-1]["bytesTotal"]


@pytest.mark.slow
def test_the_first_replay_of_an_installation_says_that_it_makes_machine_code(
    resnap: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = fixture_set("kafka-2.7.2").data / "payments-0"
    variables = {"NUMBA_CACHE_DIR": str(tmp_path / "code")}
    said = [
        resnap("regenerate", data, "--into", tmp_path / str(run), "--engine", "local", **variables).err.count(
            "replay: preparing machine code (first run only)\n"
        )
        for run in range(2)
    ]
    assert said == [1, 0]


def test_a_state_in_json_has_rate_and_time_left_where_they_are_known() -> None:
    clock = FixedClock(0)
    progress = TrackedProgress("replay", clock, lambda _: None)
    progress.expect(2, 200)
    progress.at_work("combining", 1)
    clock.advance(2_000)
    assert "leftMs" not in progress_row(progress.state())
    progress.advance(1, 100)
    assert progress_row(progress.state()) == {
        "task": "replay", "phase": "combining", "tasksRunning": 1, "segments": 1, "segmentsTotal": 2, "bytes": 100,
        "bytesTotal": 200, "elapsedMs": 2000, "bytesPerSecond": 50, "leftMs": 2000,
    }  # fmt: skip
