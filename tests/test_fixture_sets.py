from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.fixture_sets import ARCHIVED, ARCHIVES, FixtureSet, unpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Sets: TypeAlias = Callable[[str], FixtureSet]


@pytest.mark.parametrize("name", ARCHIVED)
def test_every_set_has_a_log_dir_and_a_snapshot_for_each_boundary(name: str, fixture_set: Sets) -> None:
    fixture = fixture_set(name)
    partitions = [path for path in fixture.data.iterdir() if (fixture.expected / path.name).is_dir()]
    assert partitions
    for partition in partitions:
        bases = sorted(path.stem for path in partition.glob("*.log"))
        assert set(bases[1:]) <= {path.stem for path in (fixture.expected / partition.name).glob("*.snapshot")}


def test_a_killed_broker_leaves_padded_indexes_and_no_clean_shutdown_marker(fixture_set: Sets) -> None:
    data = fixture_set("kafka-2.7.2-killed").data
    active = max((data / "payments-0").glob("*.index"))
    assert active.stat().st_size == 10_485_760
    assert not (data / ".kafka_cleanshutdown").exists()


def test_a_set_is_unpacked_once(fixture_set: Sets) -> None:
    assert fixture_set("kafka-2.7.2-no-producers") is fixture_set("kafka-2.7.2-no-producers")


def test_modification_times_survive_unpacking_and_copying(
    fixture_set: Sets, writable_copy: Callable[[Path], Path]
) -> None:
    fixture = fixture_set("kafka-2.7.2-no-producers")
    copy = writable_copy(fixture.data)
    with tarfile.open(ARCHIVES / f"{fixture.name}.tar.xz") as archive:
        times = {member.name: float(member.mtime) for member in archive if member.name.endswith(".log")}
    assert len(times) > 1
    for name, mtime in times.items():
        assert (fixture.root / name).stat().st_mtime == pytest.approx(mtime, abs=1e-5)
        assert (copy.parent / name).stat().st_mtime == pytest.approx(mtime, abs=1e-5)


def test_an_unknown_name_is_reported_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match=r"no fixture set 'kafka-1.0', there are kafka-2.7.2, "):
        unpack("kafka-1.0", tmp_path)
