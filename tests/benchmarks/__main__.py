"""``python -m tests.benchmarks``: one command, one table for each question, as Markdown on standard output."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from tests.benchmarks import (
    against_dump_log,
    against_kafka,
    all_boundaries,
    cluster,
    consumed,
    fleet,
    floor,
    many,
    quota,
    quota_day,
    replicas,
    sanity,
    scaling,
    service,
    simulated_scale,
    upload,
    window,
)
from tests.benchmarks.broker import find_kafkas
from tests.benchmarks.datasets import LogStore
from tests.benchmarks.machine import machine_facts
from tests.benchmarks.measuring import report
from tests.benchmarks.options import Options
from tests.benchmarks.tables import compact, size_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

BENCHMARKS = {
    module.NAME: module
    for module in (
        against_kafka,
        against_dump_log,
        consumed,
        all_boundaries,
        scaling,
        window,
        floor,
        sanity,
        quota,
        quota_day,
        replicas,
        fleet,
        upload,
        many,
        simulated_scale,
        cluster,
        service,
    )
}


def main(arguments: Sequence[str]) -> int:
    """Run what ``arguments`` ask for."""
    asked = _parser().parse_args(arguments)
    names = list(BENCHMARKS) if asked.benchmark == "all" else [asked.benchmark]
    sections = [section for name in names for section in _sections(name, asked.batch)]
    with ExitStack() as stack:
        options = _options(asked, stack)
        for section in sections:
            report(f"{section.name}:")
            facts = machine_facts(options.place, rounds=options.rounds)
            sys.stdout.write(f"`{_command(section, asked)}`: {facts}.\n\n")
            for table in BENCHMARKS[section.name].run(replace(options, batch_bytes=section.batch_bytes)):
                sys.stdout.write(f"{table.markdown()}\n")
                sys.stdout.flush()  # a run may take an hour
    return 0


class Section(NamedTuple):
    """What is measured by one command."""

    name: str
    batch_bytes: int | None


def _sections(name: str, batch_bytes: int | None) -> list[Section]:
    """Return one section for each batch size of a benchmark that takes long for each, else one for all."""
    apart = getattr(BENCHMARKS[name], "BATCHES_APART", ())
    if not apart:
        return [Section(name, batch_bytes)]
    return [Section(name, size) for size in apart if batch_bytes in (None, size)]


def _command(section: Section, asked: argparse.Namespace) -> str:
    """Return the command that measures the same again, without this machine's paths."""
    words = ["python -m tests.benchmarks", section.name]
    sizes = {"size": asked.size, "batch": section.batch_bytes}
    words += [f"--{option} {compact(value)}" for option, value in sizes.items() if value]
    words += [f"--rounds {asked.rounds}"] if asked.rounds else []
    words += [f"--{option}" for option in ("quick", "no-spark") if getattr(asked, option.replace("-", "_"))]
    return " ".join(words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.partition(":")[0])
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, module in BENCHMARKS.items():
        _add_options(subparsers.add_parser(name, help=module.__doc__.partition("\n")[0], description=module.__doc__))
    _add_options(subparsers.add_parser("all", help="every benchmark, one after the other"))
    return parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    jars = os.environ.get("KAFKA_JARS")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--size", type=size_of, help="of each log, such as 512M or 2G; by default what suits each")
    parser.add_argument("--batch", type=size_of, help="the only one of a benchmark's batch sizes: 200, 16K or 1M")
    parser.add_argument("--rounds", type=int, help="how often each is measured; the best counts (3)")
    parser.add_argument("--quick", action="store_true", help="small and once, to see that it runs: no figures")
    parser.add_argument(
        "--data", type=Path, help="where logs are made, and kept for the next run; else a temporary one"
    )
    parser.add_argument("--kafka-jars", type=Path, default=jars and Path(jars), help="holds brokers' jars (KAFKA_JARS)")
    parser.add_argument("--no-kafka", action="store_true", help="leave real brokers out")
    parser.add_argument("--no-spark", action="store_true", help="leave Spark out")


def _options(asked: argparse.Namespace, stack: ExitStack) -> Options:
    root = asked.data or Path(stack.enter_context(TemporaryDirectory(prefix="resnap-benchmarks-")))
    root.mkdir(parents=True, exist_ok=True)
    with_kafka = asked.kafka_jars is not None and not asked.no_kafka
    return Options(
        store=LogStore(root.absolute()),
        keep=asked.data is not None,
        rounds=asked.rounds or (1 if asked.quick else 3),
        quick=asked.quick,
        size_bytes=asked.size,
        batch_bytes=asked.batch,
        kafkas=tuple(find_kafkas(asked.kafka_jars)[-1 if asked.quick else 0 :]) if with_kafka else (),
        spark=not asked.no_spark,
    )


def _end(number: int, _: FrameType | None) -> None:
    """End as if by itself, so that no broker and no log is left behind."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    raise SystemExit(main(sys.argv[1:]))
