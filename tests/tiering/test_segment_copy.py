"""Copying a segment elsewhere: what goes there and what comes back are plain values, and the store is the same."""

from __future__ import annotations

import pickle
from functools import partial
from typing import TYPE_CHECKING

import pytest

from resnap.storage.layouts import SegmentForm
from resnap.storage.layouts.aiven.layout import Aiven
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.sources.files import PLAIN
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.shipping.segment_copy import CopiedSegment, Uploading, _delivery, copy_on_executor
from resnap.tiering.verifying.verification import StoreReader, read_stored_at
from tests.fixture_sets import AIVEN
from tests.scheduler.shipped import files_of
from tests.tiering.shipping import UPGRADED, an_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.storage.layouts.protocol import Layout
    from resnap.tiering.shipping.delivery import Delivery
    from resnap.tiering.shipping.segment_bundle import CopyOrder
    from resnap.tiering.shipping.shipment import PartitionShipment
    from tests.fixture_sets import FixtureSet
    from tests.tiering.shipping import Order

LAYOUTS = (
    pytest.param(Flat(), UPGRADED, id="flat"),
    pytest.param(Aiven(SegmentForm(key_prefix="tiered/", chunk_size=4096, compression="zstd")), AIVEN[0], id="aiven"),
)


def sent(value: object) -> object:
    """Give ``value`` as another process would get it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own


def ship(
    order: Order,
    root: Path,
    layout: Layout,
    task: Callable[[CopyOrder], CopiedSegment] | None = None,
    warnings: set[str] | None = None,
) -> PartitionShipment:
    """Ship ``order`` into ``root``; by ``task``, each segment twice, as if it were on an executor.

    What that warns of comes into ``warnings``.
    """

    def copy(one: CopyOrder, _: Delivery) -> CopiedSegment:
        there = sent(task)
        assert callable(there)
        for _attempt in range(2):
            copied = sent(there(sent(one)))
        assert isinstance(copied, CopiedSegment)
        if warnings is not None:
            warnings.update(copied.warnings)
        return copied

    assert order.result is not None
    shipper = order.shipper(LocalObjectStore(root), layout=layout, copy_elsewhere=None if task is None else copy)
    return shipper.ship_partition(order.provenance, order.candidates, order.result)


@pytest.mark.parametrize(("layout", "name"), LAYOUTS)
def test_what_is_copied_elsewhere_is_what_is_copied_here(
    layout: Layout, name: str, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    order = an_order(fixture_set(name).data, tmp_path / "staged")
    here, there = tmp_path / "here", tmp_path / "there"
    for root in (here, there):
        root.mkdir()
    task = partial(
        copy_on_executor,
        store_url=there.as_uri(),
        staged_url=order.staged.as_uri(),
        uploading=Uploading(layout=layout, verification="read-back", parallel=2, bytes_per_s=1 << 30),
        rules=order.rules,
        sources=PLAIN,
    )
    delivery, _ = _delivery(task.keywords["store_url"], task.keywords["sources"], task.keywords["uploading"])
    delivery.warn("the store does not copy")
    warnings: set[str] = set()
    expected, found = ship(order, here, layout), ship(order, there, layout, task, warnings)
    assert warnings == {"the store does not copy"}
    assert found.failures == []
    assert found.shipped
    assert found.shipped == expected.shipped
    assert files_of(there) == files_of(here)


@pytest.mark.parametrize(("layout", "name"), LAYOUTS)
def test_what_is_read_back_elsewhere_is_judged_as_what_is_read_here(
    layout: Layout, name: str, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    ship(an_order(fixture_set(name).data, tmp_path / "staged"), root, layout)
    damaged = max(root.rglob("*.log"), key=lambda path: path.stat().st_size)
    body = bytearray(damaged.read_bytes())
    body[len(body) // 2] ^= 1
    damaged.write_bytes(body)
    store = LocalObjectStore(root)
    listing = layout.listing(store, bool)

    def read(found: object) -> object:
        task = sent(partial(read_stored_at, root.as_uri(), PLAIN))
        assert callable(task)
        return sent(task(sent(found)))

    here = StoreReader(store=store, listing=listing)
    there = StoreReader(store=store, listing=listing, read_elsewhere=read)  # type: ignore[arg-type]
    found = [there.verify(key, reads_objects=True) for key in listing.manifests]
    assert found == [here.verify(key, reads_objects=True) for key in listing.manifests]
    assert sum(bool(one.problems) for one in found) == 1
