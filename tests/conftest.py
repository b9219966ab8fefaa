"""What every test may ask for: logs of real brokers, to read or to change."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

# Where nothing may be cached, each worker of each run would compile Hypothesis and hundreds of test files, and each
# process that a test starts what that imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Nor is what is imported and collected gone through again and again; see ``pytest_collection_finish``.
gc.disable()

import pytest
from hypothesis import HealthCheck, settings

from tests.disks import as_unprivileged_user, open_folder, quick, read_only_disk, tiny_disk  # noqa: F401 - found by their names here
from tests.fixture_sets import FixtureSet, copied_tree, unpack
from tests.processes import forget_processes, listen_to_processes, said_by_processes
from tests.s3_server import (  # noqa: F401 - pytest finds fixtures by their names here
    botocore_reads_once,
    no_aws_of_this_machine,
    s3_bucket,
    s3_client,
    s3_endpoint,
    s3_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator


# How long an example takes, or takes to draw, says more about what else the machine does than about the code; and what
# a change is held against is the same examples each time: a few, and with --hypothesis-profile=thorough as many as a
# test asks for. Others are looked for with --hypothesis-profile=searching.
settings.register_profile(
    "thorough", settings.default, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("thorough"), max_examples=20)
settings.register_profile("searching", settings.get_profile("thorough"), derandomize=False)
settings.load_profile("quick")

# A shell starts background jobs with interrupts ignored, and nohup with hangups; commands of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What the owner of this machine has set is not part of a test, and no proxy is before its servers.
os.umask(0o022)
for name in [name for name in os.environ if re.match("AWS_|XDG_|RESNAP_(?!TEST_)", name)]:
    del os.environ[name]
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost,::1"

listen_to_processes()

MEMORY_OF_A_WORKER: Final = 512 << 20
"""More than twice what one holds: the unpacked fixture sets, and what its test writes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=1, help="of the traffic that tests let real brokers take")


def pytest_configure(config: pytest.Config) -> None:
    """Keep what the quick tests write in memory, where there is room: they need not wait for the syncs of a busy disk.

    The other tests have a disk: brokers and stores need what only disks have, kills want syncs that take time.
    """
    in_memory = Path("/dev/shm")  # noqa: S108 - the one place that is memory
    is_quick = all(f"not {mark}" in config.option.markexpr for mark in ("slow", "heavy", "kafka", "stores"))
    if is_quick and os.access(in_memory, os.W_OK):
        place = os.statvfs(in_memory)
        room = MEMORY_OF_A_WORKER * pytest_xdist_auto_num_workers()
        if place.f_bavail * place.f_frsize > room and not place.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(in_memory))


def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are cores: tests also wait for deadlines, servers, brokers and processes."""
    return (os.cpu_count() or 1) + 1


class _Rotated(pytest.Dir):
    """What lies in a folder, for each worker from another place on.

    In a new clone one worker then compiles what the others only load; all have the same order when all is collected.
    """

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        found = list(super().collect())
        told = getattr(self.config, "workerinput", {"workerid": "gw0", "workercount": 1})
        start = len(found) * int(told["workerid"].removeprefix("gw")) // told["workercount"]
        return found[start:] + found[:start]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector:
    return _Rotated.from_parent(parent, path=path)


BEGINNING: Final = tuple(
    Path(__file__).parent / name
    for name in ("replay/test_spark_job.py", "storage/stores/test_s3.py", "fuzz/test_parsers.py")
)
"""One file that has machine code compiled, and two that need none: or each worker would compile it in a new clone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that start Spark, or one worker would end with them alone; then those of many tests."""
    slow = {item.path for item in items if item.get_closest_marker("spark")}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in BEGINNING, item.path not in slow, -tests[item.path], item.path))


def pytest_collection_finish() -> None:
    """Keep thousands of tests and all modules out of each garbage collection, which takes 0.2 s with them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_runtest_logstart() -> None:
    forget_processes()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beside a failure what processes of the test have said."""
    report = yield
    if report.failed:
        report.sections += said_by_processes()
    return report


@pytest.fixture(scope="session")
def fixture_set(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], FixtureSet]]:
    """Give the set of a name, unpacked once: all tests of the session share its files, so none may change them."""
    into = tmp_path_factory.mktemp("fixture-sets")

    @cache
    def unpacked(name: str) -> FixtureSet:
        return unpack(name, into)

    yield unpacked
    # pytest keeps the directories of three sessions; a killed broker's padded indexes are too large for that.
    shutil.rmtree(into)


@pytest.fixture
def writable_copy(tmp_path: Path) -> Callable[[Path], Path]:
    """Copy a file or directory of a fixture set, with its modification times, to where a test may change it."""

    def copied(source: Path) -> Path:
        target = tmp_path / source.name
        if source.is_dir():
            copied_tree(source, target)
        else:
            shutil.copy2(source, target)
        return target

    return copied
