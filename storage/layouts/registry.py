"""The layouts by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from resnap.storage.layouts.aiven.body import AivenForm
from resnap.storage.layouts.aiven.layout import Aiven
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.local_tiered.layout import LocalTiered

if TYPE_CHECKING:
    from resnap.storage.layouts.protocol import Layout

LayoutName: TypeAlias = Literal["flat", "local-tiered", "aiven"]
"""Those in which segments are shipped."""
LAYOUT_NAMES: Final[tuple[LayoutName, ...]] = get_args(LayoutName)


def layout_named(name: LayoutName, form: AivenForm | None = None) -> Layout:
    """Return the layout that is called ``name``; ``form`` is how one that stores chunks writes segments."""
    match name:
        case "flat":
            return Flat()
        case "local-tiered":
            return LocalTiered()
        case "aiven":
            return Aiven(form or AivenForm())
