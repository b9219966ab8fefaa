"""The floor: what disk and memory give at best, and how far from it a replay is."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from resnap.storage.crc32c import crc32c
from tests.benchmarks.datasets import LogOptions
from tests.benchmarks.measuring import Contender, Outcome, contest, warm
from tests.benchmarks.resnap_jobs import all_of, plans_of, run_locally
from tests.benchmarks.tables import Table, amount, rate, seconds, times

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.benchmarks.datasets import Log
    from tests.benchmarks.options import Options

NAME = "floor"
BLOCK = 1 << 20
IN_MEMORY = 256 << 20
HEADER_BYTES = 61
SIZES = {200: 512 << 20, 16 << 10: 2 << 30, 1 << 20: 2 << 30}
COLD_READ, WARM_READ = "read in blocks of 1 MiB, cold", "read in blocks of 1 MiB, warm"


def run(options: Options) -> Iterator[Table]:
    """Measure memory alone, then each batch size with what its files give."""
    yield _memory(options)
    for batch_bytes, usual in SIZES.items():
        if not options.wants(batch_bytes):
            continue
        size_bytes = options.size(usual, max(4 << 20, 24 * batch_bytes))
        log = options.log(LogOptions(size_bytes=size_bytes, batch_bytes=batch_bytes, segment_bytes=size_bytes // 4))
        yield _files(log, options)
        options.done_with(log)


def _memory(options: Options) -> Table:
    size = 8 << 20 if options.quick else IN_MEMORY
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    jobs = {
        "copy (memcpy)": partial(np.copyto, target, source),
        "read (sum of 8-byte words)": source.view(np.int64).sum,
        "CRC-32C": partial(crc32c, memoryview(source)),
    }
    contenders = [
        Contender(name=name, run=partial(_only, job), covered_bytes=size, rehearsed=True) for name, job in jobs.items()
    ]
    results = contest(contenders, rounds=max(options.rounds, 3), on_disk=options.place)
    table = Table(f"Memory, {amount(size)}, one core", ["what", "time", "rate"])
    for name, result in results.items():
        table.add(name, seconds(result.seconds), rate(size, result.seconds))
    return table


def _only(job: partial[object]) -> None:
    job()


def _files(log: Log, options: Options) -> Table:
    segments = log.segments
    warm(segments)
    plain, checked = (plans_of(log.log_dir, all_of(log, verify_crc=verify)) for verify in (False, True))
    contenders = [
        Contender(name=WARM_READ, run=partial(_read_all, segments)),
        Contender(name="Resnap, local, warm", run=partial(run_locally, plain), rehearsed=True),
        Contender(name="Resnap, local, with CRC, warm", run=partial(run_locally, checked), rehearsed=True),
        Contender(name=COLD_READ, run=partial(_read_all, segments), cold=segments),
        Contender(name="one header of 61 bytes in each MiB, cold", run=partial(_read_headers, segments), cold=segments),
        Contender(name="Resnap, local, cold", run=partial(run_locally, plain), cold=segments),
        Contender(name="Resnap, local, with CRC, cold", run=partial(run_locally, checked), cold=segments),
    ]
    # The cold ones come last, so that the warm ones of the next round find everything in place.
    results = {}
    for kind in ("warm", "cold"):
        warm(segments)
        results |= contest([one for one in contenders if one.name.endswith(kind)], rounds=options.rounds,
                           on_disk=options.place)  # fmt: skip
    title = f"Files, batches of {amount(log.options.batch_bytes)}: {log.options}; {log.batches:,} batches, one core"
    table = Table(title, ["what", "time", "covers", "asked for", "from disk", "x reading it all"])
    for name, result in results.items():
        floor = results[COLD_READ if name.endswith("cold") else WARM_READ].seconds
        disk = "-" if result.disk_bytes is None else amount(result.disk_bytes)
        table.add(name, seconds(result.seconds), rate(log.size_bytes, result.seconds),
                  amount(result.outcome.asked_bytes or 0), disk, times(floor / result.seconds))  # fmt: skip
    return table


def _read_all(files: Sequence[Path]) -> Outcome:
    block, read = bytearray(BLOCK), 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(block):
                read += got
    return Outcome(asked_bytes=read)


def _read_headers(files: Sequence[Path]) -> Outcome:
    read = 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            for position in range(0, path.stat().st_size, BLOCK):
                read += len(os.pread(file.fileno(), HEADER_BYTES, position))
    return Outcome(asked_bytes=read)
