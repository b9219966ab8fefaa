"""The registry of layouts, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.storage.layouts import LayoutName, SegmentForm
from resnap.storage.layouts.aiven.layout import Aiven
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.local_tiered import ROOT, LocalTiered, key_for_brokers
from resnap.storage.layouts.mirror import Mirror

if TYPE_CHECKING:
    from resnap.storage.layouts.protocol import Layout, Tiered
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore

_FLAT, _AIVEN, _LOCAL_TIERED = Flat(), Aiven(), LocalTiered()
SHIPPED: Final[tuple[Layout, ...]] = (_FLAT, _AIVEN)
"""Layouts whose manifests show what was shipped."""
READABLE: Final[tuple[Tiered | Mirror, ...]] = (*SHIPPED, Mirror())
"""Layouts that are read as a log, as their keys show."""
READABLE_BY_KEYS_ALONE: Final[tuple[Tiered, ...]] = (_LOCAL_TIERED,)
"""Likewise, if there is nothing of the others: a manifest of ours may name the same objects."""

TIERED: Final[tuple[Tiered, ...]] = (_FLAT, _AIVEN, _LOCAL_TIERED)
"""Layouts in which Resnap or brokers tier."""


def layout_named(name: LayoutName, form: SegmentForm | None = None) -> Layout:
    """Return the layout called ``name``; ``form`` says how a layout with chunks writes segments."""
    match name:
        case "flat":
            return Flat()
        case "local-tiered":
            return Flat(name, object_key=key_for_brokers)
        case "aiven":
            return Aiven(form or SegmentForm())


def layout_in(store: ObjectStore, within: str = "") -> Tiered:
    """Return the layout of the first segment below ``within`` in ``store``; flat if there is none.

    Raises:
        StoreError: the store failed.

    """
    is_of_brokers = False
    for info in store.list(within):
        if _AIVEN.brokers_object(info.key) is not None:
            return _AIVEN
        if _FLAT.is_key(info.key):
            return _FLAT
        is_of_brokers = is_of_brokers or _LOCAL_TIERED.brokers_object(info.key) is not None
    return _LOCAL_TIERED if is_of_brokers else _FLAT


def manifests_above(url: str, sources: Sources) -> str | None:
    """Return the URL of the store whose manifests name the objects at ``url``, if that is a folder of brokers only.

    Raises:
        StoreError: the store failed.

    """
    above, _, folder = url.rpartition("/")
    return above if folder == ROOT and layout_in(sources.store(above)).has_digests else None


def brokers_layout(key: str) -> Tiered | None:
    """Return the layout in which brokers read the object at ``key``; None if there is none."""
    return next((layout for layout in TIERED if layout.brokers_object(key) is not None), None)
