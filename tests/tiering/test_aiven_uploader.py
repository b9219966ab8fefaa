"""What is refused before a byte goes into the layout ``aiven``; the rest is in ``test_aiven_tier.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import ConfigurationError
from resnap.storage.layouts import SegmentForm
from resnap.storage.layouts.aiven.layout import Aiven
from resnap.storage.layouts.aiven.pieces import INT_MAX
from resnap.storage.stores.local import LocalObjectStore
from tests.fixture_sets import AIVEN
from tests.tiering.shipping import an_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
