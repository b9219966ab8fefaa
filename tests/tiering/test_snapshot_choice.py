from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.replay.comparison import Comparison, SnapshotVerdict
from resnap.replay.plan import Coverage
from resnap.replay.staging import snapshot_key
from resnap.storage.crc32c import crc32c
from resnap.storage.errors import ObjectNotFoundError, VerificationError
from resnap.storage.layouts.manifest import SnapshotHow
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import (
    COUNT_POSITION,
    CRC_POSITION,
    ENTRY,
    HEADER,
    LeftOut,
    load_snapshot,
    read_snapshot,
    snapshot_bytes,
)
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.shipping.segment_copy import choose_snapshot
from tests.tiering.shipping import HOUR_MS, ROLL, UPGRADED, an_order, newest_ms, rules_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.replay.results import BoundaryResult
    from resnap.tiering.shipping.segment_bundle import ChosenSnapshot
    from tests.fixture_sets import FixtureSet
    from tests.tiering.shipping import Order

    Sets = Callable[[str], FixtureSet]
    Copy = Callable[[Path], Path]

PAYMENTS = TopicPartition("payments", 0)


@pytest.fixture
def data(fixture_set: Sets, writable_copy: Copy) -> Path:
    return writable_copy(fixture_set(UPGRADED).data)


@pytest.fixture
def order(data: Path, tmp_path: Path) -> Order:
    return an_order(data, tmp_path / "staged")


def results(order: Order) -> tuple[BoundaryResult, ...]:
    assert order.result is not None
    return order.result.boundaries


def chosen(order: Order, result: BoundaryResult) -> ChosenSnapshot:
    return choose_snapshot(PAYMENTS, result, order.rules, LocalObjectStore(order.staged))


def one(order: Order, *, existing: bool) -> BoundaryResult:
    """Return the last boundary with or without a snapshot of the broker's own."""
    return [found for found in results(order) if (found.boundary.existing is not None) == existing][-1]


def test_the_brokers_own_is_shipped_where_it_is_proven_and_the_rebuilt_one_elsewhere(order: Order) -> None:
    for result in results(order):
        is_own = result.boundary.existing is not None
        assert chosen(order, result).origin.how is (SnapshotHow.PROVEN if is_own else SnapshotHow.REGENERATED)
    assert {result.boundary.existing is None for result in results(order)} == {True, False}


def reversed_bytes(body: bytes) -> bytes:
    """Return the snapshot ``body`` with its entries the other way round, as a broker's hash table may have them."""
    entries = [body[at : at + ENTRY.size] for at in range(HEADER.size, len(body), ENTRY.size)]
    covered = body[COUNT_POSITION : HEADER.size] + b"".join(reversed(entries))
    return body[:CRC_POSITION] + crc32c(covered).to_bytes(4, "big") + covered


def test_equal_states_are_equal_objects_in_whatever_order_the_broker_wrote(order: Order) -> None:
    result = one(order, existing=True)
    before = chosen(order, result).body
    path = Path(result.boundary.existing or "")
    path.write_bytes(reversed_bytes(before))
    assert load_snapshot(path) == read_snapshot(before)
    assert chosen(order, result).body == before != path.read_bytes()


@pytest.mark.parametrize("verdict", [verdict for verdict in SnapshotVerdict if verdict is not SnapshotVerdict.PROVEN])
def test_what_a_replay_has_not_proven_is_replaced(verdict: SnapshotVerdict, order: Order) -> None:
    result = replace(one(order, existing=True), comparison=Comparison(verdict=verdict))
    found = chosen(order, result)
    assert found.origin.how is SnapshotHow.REGENERATED
    assert found.body == (order.staged / snapshot_key(PAYMENTS, result.offset)).read_bytes()


def test_a_false_empty_snapshot_of_a_broker_is_found_out_and_replaced(data: Path, tmp_path: Path) -> None:
    offset = one(an_order(data, tmp_path / "before"), existing=True).offset
    path = data / snapshot_key(PAYMENTS, offset)
    before = load_snapshot(path)
    assert before
    path.write_bytes(snapshot_bytes([]))
    order = an_order(data, tmp_path / "after")
    (result,) = (found for found in results(order) if found.offset == offset)
    assert result.comparison is not None
    assert result.comparison.verdict is SnapshotVerdict.FALSE_EMPTY
    assert read_snapshot(chosen(order, result).body) == before


def deleted(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [deleted, cut_short, made_a_folder])
def test_the_rebuilt_one_is_shipped_where_the_brokers_own_is_gone_meanwhile(
    change: Callable[[Path], None], order: Order
) -> None:
    """A live 2.7 broker deletes all but the newest snapshots whenever it rolls."""
    result = one(order, existing=True)
    before = chosen(order, result)
    change(Path(result.boundary.existing or ""))
    after = chosen(order, result)
    assert (before.origin.how, after.origin.how) == (SnapshotHow.PROVEN, SnapshotHow.REGENERATED)
    assert read_snapshot(after.body) == read_snapshot(before.body)


def test_a_staged_snapshot_that_changed_is_not_shipped(order: Order) -> None:
    result = one(order, existing=False)
    path = order.staged / snapshot_key(PAYMENTS, result.offset)
    path.write_bytes(snapshot_bytes([]))
    with pytest.raises(VerificationError, match=path.name):
        chosen(order, result)
    path.unlink()
    with pytest.raises(ObjectNotFoundError, match=path.name):
        chosen(order, result)


def test_the_origin_states_what_the_snapshot_depends_on(order: Order) -> None:
    result = replace(one(order, existing=False), left_out=((7, "unexplained"),))
    origin = chosen(order, result).origin
    assert origin.as_of == "roll"
    assert origin.as_of_ms == result.as_of_ms
    assert (origin.window_start_offset, origin.known_from_offset) == (0, 0)
    assert (origin.producer_id_expiration_ms, origin.check_interval_ms) == ROLL.expiry
    assert origin.entries_count == result.entries == len(read_snapshot(chosen(order, result).body)) > 0
    assert origin.left_out == (LeftOut(producer_id=7, reason="unexplained"),)


def test_beyond_the_window_nothing_is_called_proven(data: Path, tmp_path: Path) -> None:
    rules = rules_at(newest_ms(data) + 2 * HOUR_MS)
    order = an_order(data, tmp_path / "staged", rules=rules)
    hows = {chosen(order, result).origin.how for result in results(order)}
    assert {result.coverage for result in results(order)} == {Coverage.BEYOND_WINDOW}
    assert hows == {SnapshotHow.KEPT, SnapshotHow.BEYOND_WINDOW}
