"""What is refused on its way into the layout ``aiven``; the rest is in ``test_aiven_tier.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from resnap.storage.errors import ConfigurationError
from resnap.storage.layouts import SegmentForm
from resnap.storage.layouts.aiven.layout import Aiven
from resnap.storage.layouts.aiven.pieces import INT_MAX
from resnap.storage.stores.local import LocalObjectStore
from tests.cases import each
from tests.fixture_sets import AIVEN
from tests.storage.stores.test_probe import IgnoresConditions, Wired
from tests.tiering.shipping import an_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.storage.stores.protocol import BodyOpener
    from tests.fixture_sets import FixtureSet


def test_a_chunk_behind_which_the_plugin_would_read_wrong_ones_is_a_setting_that_is_wrong(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    order = an_order(fixture_set(AIVEN[0]).data, tmp_path / "staged")
    assert order.result is not None
    smallest = min(segment.size_bytes for segment in order.candidates.segments)
    layout = Aiven(SegmentForm(chunk_size=INT_MAX - smallest + 1))
    shipper = order.shipper(LocalObjectStore(tmp_path / "store"), layout=layout)
    with pytest.raises(ConfigurationError, match="beyond which the plugin reads wrong chunks") as caught:
        shipper.ship_partition(order.provenance, order.candidates, order.result)
    assert (caught.value.exit_code, caught.value.hint) == (10, "give a smaller --chunk-size")
    assert not list(tmp_path.rglob("*.rsm-manifest"))


@each("kind", [Wired, IgnoresConditions])
def test_what_a_broker_ships_while_the_same_segment_is_copied_is_found_before_the_manifest(
    kind: type[Wired], fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    """It takes no lease, so what was listed under ours does not show it."""
    order = an_order(fixture_set(AIVEN[0]).data, tmp_path / "staged")
    assert order.result is not None
    brokers: list[str] = []

    class Shared(kind):  # type: ignore[misc, valid-type]
        def put_stream(self, key: str, open_body: BodyOpener, **facts: Any) -> None:
            super().put_stream(key, open_body, **facts)
            if key.endswith(".indexes") and not brokers:
                stem, _, own_id = key.removesuffix(".indexes").rpartition("-")
                brokers.append(f"{stem}-{own_id[::-1]}.rsm-manifest")
                self.put(brokers[0], b"of a broker")

    store = Shared()
    shipment = order.shipper(store, layout=Aiven(SegmentForm())).ship_partition(
        order.provenance, order.candidates, order.result
    )
    assert (shipment.failures, shipment.already) == ([], 1)
    assert len(shipment.shipped) == len(order.candidates.segments) - 1 > 0
    visible = {info.key for info in store.list() if info.key.endswith(".rsm-manifest")}
    assert visible == {*brokers, *(one.manifest_key for one in shipment.shipped)}
