"""Shipping into the layout ``aiven``, killed after any write: what is visible is whole, and the next run completes."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.layouts.aiven.layout import Aiven
from resnap.storage.layouts.segment_form import SegmentForm
from resnap.storage.stores.local import LocalObjectStore
from resnap.tiering.shipping.delivery import Delivery
from resnap.tiering.shipping.shipment import Shipper
from resnap.tiering.verifying.verification import StoreReader
from tests.fixture_sets import AIVEN
from tests.tiering.shipping import LATER_MS, an_order
from tests.tiering.stores import ActingStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.storage.stores.protocol import ObjectStore
    from tests.fixture_sets import FixtureSet
    from tests.tiering.shipping import Order

pytestmark = pytest.mark.slow

FORM: Final = SegmentForm(key_prefix="tiered/", chunk_size=4096, compression="zstd")
OBJECTS = 4
"""Of a segment: those of the plugin, and where its snapshot comes from."""
KILLED: Final = 137
PATIENCE_S: Final = 120


def ship(order: Order, root: Path, writes: int) -> None:
    """Ship ``order``, and die of its write number ``writes``, before it is acknowledged; 0 for not at all."""
    done = 0

    def die(_: ObjectStore, _key: str) -> None:
        nonlocal done
        done += 1
        if done == writes:
            os._exit(KILLED)

    assert order.result is not None
    shipper = Shipper(
        delivery=Delivery(store=ActingStore(LocalObjectStore(root), die)),
        staged=LocalObjectStore(order.staged),
        rules=order.rules,
        layout=Aiven(FORM),
        now_ms=lambda: LATER_MS,
        expect=lambda _segments, _size: None,
        progress=lambda _segments, _size: None,
    )
    assert shipper.ship_partition(order.provenance, order.candidates, order.result).failures == []


def visible(root: Path) -> list[str]:
    """Make sure that a broker could read whatever has a manifest; return the keys of the manifests."""
    store = LocalObjectStore(root)
    listing = Aiven(FORM).listing(store, bool)
    reader = StoreReader(store=store, listing=listing)
    for key in listing.manifests:
        assert reader.verify(key, reads_objects=True).problems == ()
    return sorted(listing.manifests)


def objects(root: Path) -> dict[str, bytes]:
    store = LocalObjectStore(root)
    return {info.key: store.get(info.key) for info in store.list("tiered/")}


def test_after_a_kill_at_any_write_one_more_run_completes_the_store(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    order = an_order(fixture_set(AIVEN[0]).data, tmp_path / "staged")
    (tmp_path / "whole").mkdir()
    ship(order, tmp_path / "whole", 0)
    whole, expected = objects(tmp_path / "whole"), visible(tmp_path / "whole")
    assert len(whole) == OBJECTS * len(expected) > OBJECTS

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    for writes in range(1, len(whole) + 1):
        root = tmp_path / str(writes)
        root.mkdir()
        process = context.Process(target=ship, args=(order, root, writes))
        process.start()
        process.join(PATIENCE_S)
        assert process.exitcode == KILLED
        assert visible(root) == expected[: writes // OBJECTS]
        ship(order, root, 0)
        assert objects(root) == whole
