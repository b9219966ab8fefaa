from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.producer_state import Expiry
from resnap.replay.rebuild import rebuild_locally
from resnap.replay.window import AsOf, ReplayRules
from resnap.storage.errors import FormatError
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.names import TopicPartition
from resnap.tiering.judging.inventory import take_partition_inventory
from resnap.tiering.judging.planning import (
    SavedPlan,
    load_facts,
    plan_replay,
    read_saved_plan,
    usable_snapshots,
    write_saved_plan,
)
from tests.builders import a_partition
from tests.replay.memory_sink import MemorySink
from tests.strategies import PlainEvent
from tests.tiering.shipping import ROLL, UPGRADED

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.tiering.judging.inventory import PartitionInventory
    from tests.fixture_sets import FixtureSet

    Sets = Callable[[str], FixtureSet]
    Copy = Callable[[Path], Path]

PAYMENTS = TopicPartition("payments", 0)
longs = st.integers(0, 2**63 - 1)
expiries = st.builds(Expiry, longs, longs)
rules = st.builds(
    ReplayRules,
    as_of=st.builds(AsOf, now_ms=longs, roll=st.booleans()),
    expiry=expiries,
    history=st.none() | expiries,
    transaction_max_timeout_ms=longs,
    max_reach_back_ms=st.none() | longs,
    full=st.booleans(),
    verify_crc=st.booleans(),
)
boundaries = st.dictionaries(
    st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 2**31 - 1)), st.lists(longs).map(tuple)
)


@st.composite
def saved_plans(draw: st.DrawFn) -> SavedPlan:
    made = draw(boundaries)
    return SavedPlan(
        sources=tuple(draw(st.lists(st.text()))),
        rules=draw(rules),
        boundaries=made,
        fingerprints={key: draw(st.text()) for key in made},
    )


def an_inventory(directory: Path) -> PartitionInventory:
    return take_partition_inventory(load_partition_dir(directory))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return a_partition(tmp_path, [[PlainEvent(records=10)]] * 4)


@given(saved_plans())
def test_a_saved_plan_comes_back_as_it_was(plan: SavedPlan) -> None:
    found = read_saved_plan(write_saved_plan(plan))
    assert found == plan
    assert isinstance(found.rules.expiry, Expiry)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


def paths_in(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths_in(item, (*path, key)))]


PLAN = json.loads(
    write_saved_plan(
        SavedPlan(sources=("/var/lib/kafka",), rules=ROLL, boundaries={PAYMENTS: (10,)}, fingerprints={PAYMENTS: "ab"})
    )
)


@given(path=st.sampled_from([path for path in paths_in(PLAN) if path]), value=json_values)
def test_a_plan_with_one_value_replaced_is_read_as_written_or_refused(path: tuple[Any, ...], value: object) -> None:
    content = json.loads(json.dumps(PLAN))
    at = content
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    try:
        found = read_saved_plan(json.dumps(content))
    except FormatError:
        return
    again = json.loads(write_saved_plan(found))
    assert json.dumps(again, sort_keys=True) == json.dumps(content, sort_keys=True), "nothing was bent to fit"


@given(path=st.sampled_from([path for path in paths_in(PLAN) if path and isinstance(path[-1], str)]))
def test_an_incomplete_plan_is_a_format_error(path: tuple[Any, ...]) -> None:
    content = json.loads(json.dumps(PLAN))
    at = content
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    with pytest.raises(FormatError):
        read_saved_plan(json.dumps(content))


def test_a_planned_replay_compares_with_the_snapshots_of_the_directory_or_with_those_given(
    fixture_set: Sets, writable_copy: Copy
) -> None:
    inventory = an_inventory(writable_copy(fixture_set(UPGRADED).data / "payments-0"))
    facts, wanted = load_facts(inventory.partition), inventory.partition.boundaries
    usable = usable_snapshots(inventory)
    (own,) = rebuild_locally([plan_replay(inventory, facts, wanted, ROLL)], MemorySink())
    assert {b.offset for b in own.boundaries if b.comparison is not None} == set(usable)
    (none,) = rebuild_locally([plan_replay(inventory, facts, wanted, ROLL, compare={})], MemorySink())
    assert {b.comparison for b in none.boundaries} == {None}
    assert [b.digest for b in none.boundaries] == [b.digest for b in own.boundaries]


@pytest.mark.parametrize(("given", "expected"), [(None, None), (0, 0), (25, 25)])
def test_a_given_high_watermark_outweighs_the_checkpoint(
    given: int | None, expected: int | None, directory: Path
) -> None:
    inventory = an_inventory(directory)
    plan = plan_replay(inventory, load_facts(inventory.partition), [10], ROLL, high_watermark=given)
    assert plan.high_watermark == expected


def test_what_a_transaction_index_does_not_show_is_read_from_the_log_itself(
    fixture_set: Sets, writable_copy: Callable[[Path], Path]
) -> None:
    """It may name a transaction that hung below the window, which no snapshot above would show then."""
    data = writable_copy(fixture_set(UPGRADED).data)
    inventory = take_partition_inventory(load_partition_dir(data / "payments-0"))
    now = ReplayRules(as_of=AsOf(now_ms=2_000_000_000_000))
    wanted = inventory.partition.boundaries
    told = plan_replay(inventory, load_facts(inventory.partition), wanted, now)
    index = next(segment.sibling("txnindex") for segment in inventory.partition.segments if segment.txnindex_bytes)
    Path(index).unlink()
    Path(index).mkdir()
    unread = plan_replay(inventory, load_facts(inventory.partition), wanted, now)
    assert not told.rules.full
    assert unread.rules.full
    assert unread.runs[0].start == 0
