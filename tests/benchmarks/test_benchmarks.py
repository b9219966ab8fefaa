"""The benchmarks run: on little data, once. No test here checks a duration."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.storage.log.producer_snapshot import load_snapshot
from tests.benchmarks import cluster, consumed
from tests.benchmarks.__main__ import BENCHMARKS, main
from tests.benchmarks.broker import find_kafkas
from tests.benchmarks.datasets import LogOptions, LogStore
from tests.benchmarks.descendants import forget_peaks, processor_s, python_peak_bytes
from tests.benchmarks.machine import cores
from tests.benchmarks.measuring import Contender, Outcome, contest, drop_from_cache, pinned, warm
from tests.benchmarks.resnap_jobs import regenerate
from tests.benchmarks.tables import amount, compact, rate, seconds, size_of, times

if TYPE_CHECKING:
    from collections.abc import Callable

ALONE = ("--quick", "--no-spark", "--no-kafka")
SMALL = LogOptions(size_bytes=1 << 20, segment_bytes=128 << 10, producers=200)

BUSY = """
import sys, time
b"x" * (64 << 20)
while time.process_time() < 0.3:
    pass
print(flush=True)
sys.stdin.read()
"""


def rows(markdown: str) -> list[list[str]]:
    """Return the cells of all tables, without their heads."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    heads = {number - 1 for number, line in enumerate(lines) if set(line) <= set("|- ")}
    body = [line for number, line in enumerate(lines) if number not in heads and number - 1 not in heads]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in {cluster.NAME, consumed.NAME}])
def test_each_benchmark_runs_alone_and_gives_tables(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, *ALONE, "--batch", "200", "--data", str(tmp_path)]) == 0
    written = capsys.readouterr().out
    assert f"`python -m tests.benchmarks {name}" in written
    assert f"{len(cores())} cores in use" in written
    assert any(re.fullmatch(r"[\d.e+-]+ m?s", cell) for cells in rows(written) for cell in cells)


@pytest.mark.heavy
def test_real_brokers_logs_are_all_as_their_brokers_wrote_them(capsys: pytest.CaptureFixture[str]) -> None:
    main(["sanity", *ALONE])
    results = [cells[-1] for cells in rows(capsys.readouterr().out) if cells[0].startswith("kafka-")]
    assert len(results) >= 9
    assert all(same == count for same, count in (result.split(" of ") for result in results))


@pytest.mark.heavy
@pytest.mark.spark
def test_spark_takes_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["scaling", "--quick", "--size", "2M", "--data", str(tmp_path)])
    engines = {cells[2] for cells in rows(capsys.readouterr().out) if len(cells) > 4}
    assert {"local", "Spark warm"} <= engines
    assert any(engine.endswith(" splits") for engine in engines)


@pytest.mark.heavy
@pytest.mark.spark
def test_executors_take_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["cluster", "--quick", "--data", str(tmp_path)])
    ((executors, _, segments, *_),) = rows(capsys.readouterr().out)
    assert (executors, int(segments) > 1) == ("1", True)


@pytest.mark.heavy
@pytest.mark.spark
def test_records_are_read_by_spark_whose_worker_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["consumer", "--quick", "--no-kafka", "--batch", "200", "--data", str(tmp_path)])
    cells = rows(capsys.readouterr().out)
    assert {row[1] for row in cells if len(row) == 6} == set(consumed.QUERIES)
    assert [row[0] for row in cells if len(row) == 3] == ["none", "1 MiB"]


def test_processor_time_and_peaks_are_those_of_processes_below() -> None:
    before_s = processor_s()
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert processor_s() - before_s >= 0.25
        assert python_peak_bytes() > 64 << 20
        forget_peaks()
        assert python_peak_bytes() < 64 << 20
        process.stdin.close()
    assert processor_s() - before_s >= 0.25, "it has ended"


def test_overlap_is_that_of_replays_with_what_is_shipped() -> None:
    alone, beside = cluster.Stretch(0, 100, ships=False), cluster.Stretch(50, 250, ships=True)
    assert cluster.overlap([alone, beside, cluster.Stretch(200, 300, ships=False)]) == 0.5
    assert cluster.overlap([beside]) == 0.0


@pytest.mark.heavy
@pytest.mark.skipif("KAFKA_JARS" not in os.environ, reason="brokers' jars are not there: docs/performance.md says how")
def test_a_real_broker_takes_part_and_writes_the_same_snapshots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["kafka", "--quick", "--no-spark", "--batch", "200", "--data", str(tmp_path)])
    written = capsys.readouterr().out
    assert re.search(r"\| Kafka \d\.\d\.\d, recovery, 2 threads \|", written)
    same, count = re.findall(r"(\d+) of (\d+) snapshots that Kafka", written)[0]
    assert same == count != "0"


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in BENCHMARKS)], ids=" ".join)
def test_help_says_what_each_benchmark_is_for(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert "usage: python -m tests.benchmarks" in said
    assert words[0] == "--help" or "--size" in said


@pytest.mark.slow
def test_one_batch_size_is_measured_alone_and_logs_are_gone_afterwards_unless_they_were_given_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    floor = ["floor", *ALONE, "--batch", "16K"]
    assert main(floor) == 0
    assert re.findall(r"batches of (\S+ \S+):", capsys.readouterr().out) == ["16 KiB"]
    assert not list((tmp_path / "temporary").iterdir())
    assert main([*floor, "--data", str(tmp_path / "kept")]) == 0
    assert list((tmp_path / "kept").rglob("*.log"))


@pytest.mark.slow
def test_a_run_that_is_terminated_leaves_no_log_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks", "floor", "--no-spark", "--no-kafka", "--size", "256M"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], env=environment, stderr=subprocess.DEVNULL
    ) as running:
        while not list(tmp_path.rglob("*.log")):
            assert running.poll() is None
            time.sleep(0.01)
        running.terminate()
    assert running.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def test_contenders_take_turns_every_other_time_in_reverse_order(tmp_path: Path) -> None:
    order: list[str] = []

    def noted(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    contest([Contender(name=name, run=noted(name)) for name in "ab"], rounds=3, on_disk=tmp_path)
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_the_best_time_counts_and_a_contenders_own_clock_goes_before_ours(tmp_path: Path) -> None:
    times_told = iter([3.0, 1.0, 2.0])
    contender = Contender(name="a", run=lambda: Outcome(seconds=next(times_told), says="so"))
    result = contest([contender], rounds=3, on_disk=tmp_path)["a"]
    assert (result.seconds, result.all_seconds, result.outcome.says) == (1.0, [3.0, 1.0, 2.0], "so")


def test_a_contender_gets_no_more_processors_than_it_is_named_with() -> None:
    before = cores()
    with pinned(1):
        assert len(cores()) == 1
    assert cores() == before


def test_files_are_brought_into_memory_and_forgotten_without_a_change(tmp_path: Path) -> None:
    full, hollow = tmp_path / "full", tmp_path / "hollow"
    full.write_bytes(b"x" * 100_000)
    with hollow.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(b"y")
    for treat in (drop_from_cache, warm):
        treat([full, hollow])
    assert full.read_bytes() == b"x" * 100_000
    assert hollow.stat().st_size == 1 << 30


@pytest.mark.slow
def test_a_log_has_no_snapshots_but_those_kept_aside_which_are_those_of_a_replay(tmp_path: Path) -> None:
    log = LogStore(tmp_path).log(SMALL)
    assert not list(log.log_dir.rglob("*.snapshot"))
    regenerate(log, tmp_path / "rebuilt", engine="local", verify_crc=True)
    for number in (0, 1):
        rebuilt = tmp_path / "rebuilt" / log.partition(number).name
        below_the_log_end = [path for path in log.kept(number) if (log.partition(number) / f"{path.stem}.log").exists()]
        assert len(below_the_log_end) >= 3
        assert all(load_snapshot(path) == load_snapshot(rebuilt / path.name) for path in below_the_log_end)


def test_brokers_are_found_by_their_jar_wherever_it_lies_the_oldest_first(tmp_path: Path) -> None:
    for name in ("b/kafka_2.13-4.1.1.jar", "a/lib/kafka_2.13-3.10.0.jar", "a/9/kafka_2.13-3.9.1.jar",
                 "c/kafka_2.13-2.7.2.jar", "d/kafka_2.13-4.1.1-test.jar"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [kafka.version for kafka in find_kafkas(tmp_path)] == ["3.9.1", "3.10.0", "4.1.1"]


def test_numbers_are_as_people_read_them() -> None:
    assert [size_of(text) for text in ("200", "16K", "1.5g", "1T")] == [200, 16 << 10, 3 << 29, 1 << 40]
    assert [compact(size) for size in (200, 16 << 10, 3 << 29)] == ["200", "16K", "1536M"]
    assert [amount(size) for size in (0, 200, 1536, 1 << 40)] == ["0 B", "200 B", "1.5 KiB", "1 TiB"]
    assert [seconds(value) for value in (0.0012345, 1.5, 71.2)] == ["1.23 ms", "1.5 s", "71.2 s"]
    assert (times(12.345), times(1234.5), rate(5e9, 2)) == ("12.3x", "1234x", "2.5 GB/s")
