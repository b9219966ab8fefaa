"""``resnap inspect --output dump-log`` prints, line by line, what Kafka's own dump tool prints of the same file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.scheduler.files import flip
from tests.scheduler.installed import copied

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

TOOL = "kafka.tools.DumpLogSegments"
DUMPED = re.compile(r"^Dumping (.+)$", flags=re.MULTILINE)


def dumped_by_kafka(release: Release, files: list[Path]) -> dict[str, str]:
    """Return what the tool prints of each file; one start does for all."""
    told = DUMPED.split(release.tool(TOOL, "--files", ",".join(map(str, files))))
    assert told[0] == ""
    return dict(zip(told[1::2], told[2::2], strict=True))


def dumped_by_us(command: Resnap, files: list[Path]) -> dict[str, str]:
    found = {}
    for path in files:
        ran = command("inspect", path, "--output", "dump-log")
        assert ran.code == 0, ran.err
        found[str(path)] = ran.out.removeprefix(f"Dumping {path}")
    return found


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("kafka-2.7.2", "3.9.1"),
        ("kafka-4.4.0-kraft", "3.9.1"),  # the tool of 4.4 is of a module of its own
        pytest.param("kafka-4.1.1-kraft", "4.1.1", marks=pytest.mark.heavy),
    ],
)
def test_every_file_of_a_broker_is_dumped_alike(
    command: Resnap,
    release: Callable[[str], Release],
    fixture_set: Callable[[str], FixtureSet],
    name: str,
    version: str,
) -> None:
    suffixes = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    files = sorted(path for path in fixture_set(name).data.rglob("*") if path.suffix in suffixes)
    assert {path.suffix for path in files} == suffixes
    assert dumped_by_us(command, files) == dumped_by_kafka(release(version), files)


def test_damage_is_dumped_alike(
    command: Resnap, release: Callable[[str], Release], fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    partition = copied(fixture_set("kafka-2.7.2").data / "payments-0", tmp_path / "payments-0")
    changed, torn, padded = sorted(partition.glob("*.log"))[:3]
    flip(changed, 100)
    with torn.open("ab") as file:
        file.write(changed.read_bytes()[:50])
    empty = padded.with_suffix(".index")
    empty.write_bytes(bytes(4096))
    none = torn.with_suffix(".index")
    none.write_bytes(b"")
    told = dumped_by_kafka(release("3.9.1"), [changed, torn, empty, none])
    assert "isvalid: false" in told[str(changed)]
    assert "invalid bytes at the end" in told[str(torn)]
    alike = dumped_by_us(command, [changed, empty, none])
    assert alike == {path: told[path] for path in alike}
    ran = command("inspect", torn, "--output", "dump-log")
    assert ran.out == f"Dumping {torn}{told[str(torn)]}"
    assert ran.code == 1
    assert "bytes after the last whole batch" in ran.err
