"""The layouts by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from resnap.storage.layouts.aiven.body import AivenForm
from resnap.storage.layouts.aiven.keys import parse_key as parse_aiven_key
from resnap.storage.layouts.aiven.layout import Aiven
from resnap.storage.layouts.flat.keys import parse_key as parse_flat_key
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.local_tiered.layout import LocalTiered, key_for_brokers
from resnap.storage.layouts.mirror import Mirror

if TYPE_CHECKING:
    from resnap.storage.layouts.protocol import Layout, ReadByBrokers, Shipped, Stored
    from resnap.storage.stores.protocol import ObjectStore

LayoutName: TypeAlias = Literal["flat", "local-tiered", "aiven"]
"""Those in which segments are shipped."""
SHIPPED: Final[tuple[Shipped, ...]] = (Flat(), Aiven())
"""Those whose manifests show what was shipped."""
READ_BY_BROKERS: Final[tuple[ReadByBrokers, ...]] = (LocalTiered(), Aiven())
"""Those in which brokers tier."""
READABLE: Final[tuple[Stored, ...]] = (*SHIPPED, Mirror())
"""Those that are read as a log, as their keys show."""
READABLE_BY_KEYS_ALONE: Final[tuple[Stored, ...]] = (LocalTiered(),)
"""Likewise, where nothing of the others is there: a manifest of ours may name the same objects."""


def layout_named(name: LayoutName, form: AivenForm | None = None) -> Layout:
    """Return the layout that is called ``name``; ``form`` is how one that stores chunks writes segments."""
    match name:
        case "flat":
            return Flat()
        case "local-tiered":
            return Flat(name, object_key=key_for_brokers)
        case "aiven":
            return Aiven(form or AivenForm())


def layout_in(store: ObjectStore, within: str = "") -> Layout:
    """Return the layout of the first segment that is met below ``within`` in ``store``; flat if there is none.

    Raises:
        StoreError: the store failed.

    """
    for info in store.list(within):
        if parse_aiven_key(info.key) is not None:
            return Aiven()
        if parse_flat_key(info.key) is not None:
            break
    return Flat()


def brokers_layout(key: str) -> ReadByBrokers | None:
    """Return the layout in which brokers read the object at ``key``; None if they read it in none."""
    return next((one for one in READ_BY_BROKERS if one.brokers_object(key) is not None), None)
