"""One flipped bit in a time index: what decides where reading begins is looked up in the batches."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from resnap.replay.producer_state import Expiry
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.sources.files import Sources
from resnap.storage.words import instant
from resnap.tiering.judging.inventory import take_inventory
from resnap.tiering.judging.planning import load_facts, plan_replay
from tests.scheduler.files import flip
from tests.scheduler.installed import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resnap.replay.plan import PartitionPlan
    from resnap.storage.log.partition_dir import Segment
    from resnap.tiering.judging.inventory import PartitionInventory
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

ENTRY: Final = struct.Struct(">qi")
EXPIRATION_MS: Final = 172_800_000
REACH_MS: Final = 1_200_000
SLACK_MS: Final = 300_000
"""Windows begin so much earlier than they must, so that less than this decides nothing."""


@pytest.fixture
def data(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    return copied(fixture_set("kafka-2.7.2-nine-days").data, tmp_path / "data")


def time_indexes(data: Path, name: str = "payments-0") -> list[Path]:
    """Return the time indexes of the closed segments."""
    return sorted((data / name).glob("*.timeindex"))[:-1]


def largest_ms(path: Path) -> int:
    found: int = ENTRY.unpack(path.read_bytes()[-ENTRY.size :])[0]
    return found


def inventory_of(data: Path, name: str = "payments-0") -> PartitionInventory:
    found = take_inventory(load_log_dir(data)).partitions
    return next(one for one in found if str(one.partition.topic_partition) == name)


def planned(inventory: PartitionInventory, rules: Sequence[ReplayRules]) -> list[PartitionPlan]:
    facts, wanted = load_facts(inventory.partition), inventory.partition.boundaries
    return [plan_replay(inventory, facts, wanted, rule, to_end=True) for rule in rules]


def begins_no_later(found: PartitionPlan, expected: PartitionPlan) -> bool:
    """Whether all is read that should be, and each T is what it was, as far as it decides anything."""
    (*_, run), (*_, window) = found.runs, expected.runs
    seen, truly = (one.seen_since_ms or 0 for one in (run, window))
    if run.start > window.start or (run.start == window.start and seen < truly - SLACK_MS):
        return False
    if not found.rules.as_of.roll:
        return True
    pairs = zip(found.boundaries, expected.boundaries, strict=True)
    return all(abs(one.earliest_roll_ms - other.earliest_roll_ms) <= SLACK_MS for one, other in pairs)


def test_no_flipped_bit_of_the_last_entry_makes_a_window_begin_later(data: Path) -> None:
    indexes = time_indexes(data)
    moments = [largest_ms(path) + EXPIRATION_MS + REACH_MS + 1_000 for path in indexes[2::6]]
    expiry = Expiry(EXPIRATION_MS, 600_000)
    rules = [ReplayRules(as_of=AsOf(now_ms=moment), expiry=expiry) for moment in moments]
    rules.append(ReplayRules(as_of=AsOf(now_ms=moments[-1], roll=True), expiry=expiry))
    inventory = inventory_of(data)
    true = planned(inventory, rules)
    for path in indexes[1::2]:
        size = path.stat().st_size
        for bit in range(0, 8 * ENTRY.size, 7):
            flip(path, size - ENTRY.size + bit // 8, 1 << (bit % 8))
            found = planned(inventory, rules)
            assert all(map(begins_no_later, found, true)), (path.name, bit)
            flip(path, size - ENTRY.size + bit // 8, 1 << (bit % 8))


def test_the_snapshots_are_those_of_the_sound_log(command: Resnap, data: Path, tmp_path: Path) -> None:
    """The first segment of the window looks 50 days older than it is, though its producers are alive."""
    moment = instant(largest_ms(time_indexes(data)[-5]) + EXPIRATION_MS - 600_000)
    made = {}
    for name in ("sound", "flipped"):
        ran = command(
            "regenerate", data, "--topic", "payments", "--into", tmp_path / name, "--engine", "local", "-q",
            "--as-of", moment, "--producer-id-expiration-ms", EXPIRATION_MS, "--transaction-max-timeout-ms", 1,
        )  # fmt: skip
        assert ran.code == 0
        made[name] = {path.name: path.read_bytes() for path in (tmp_path / name).rglob("payments-0/*.snapshot")}
        path = time_indexes(data)[-5]
        flip(path, path.stat().st_size - ENTRY.size + 3, 0x01)
    assert made["flipped"] == made["sound"]
    assert any(len(body) > 10 for body in made["sound"].values())


def test_only_what_decides_is_looked_up(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sound log a few segments, whatever its length; of one that contradicts itself what does so, too."""
    inventory, opened = inventory_of(data), []
    opening = Sources.open

    def noted(self: Sources, locator: str, **more: int | None) -> object:
        opened.append(locator)
        return opening(self, locator, **more)

    monkeypatch.setattr(Sources, "open", noted)

    def logs(wrong: Segment | None = None) -> int:
        opened.clear()
        moment = largest_ms(time_indexes(data)[12]) + EXPIRATION_MS + REACH_MS + 1_000
        planned(inventory, [ReplayRules(as_of=AsOf(now_ms=moment), expiry=Expiry(EXPIRATION_MS, 600_000))])
        assert wrong is None or wrong.path in opened
        return sum(locator.endswith(".log") for locator in opened)

    sound = logs()
    assert 0 < sound <= 3
    path = time_indexes(data)[3]
    flip(path, path.stat().st_size - ENTRY.size + 3, 0x01)
    assert logs(inventory.partition.segments[3]) <= sound + 3
