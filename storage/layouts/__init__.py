"""Layouts: the keys that the objects of a segment have in a store, and the manifest that names them.

It names the layouts in which segments are shipped, and says how one with chunks writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from resnap.storage.encryption import RsaKey

LayoutName: TypeAlias = Literal["flat", "local-tiered", "aiven"]
"""The layouts in which segments are shipped."""
Compression: TypeAlias = Literal["none", "zstd", "heuristic"]
CHUNK_BYTES: Final = 4 << 20
"""What Aiven's RemoteStorageManager recommends."""
MAX_CHUNK_BYTES: Final = (1 << 30) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentForm:
    """How a layout that stores segments in chunks writes them: the settings of the brokers' plugin, by its names."""

    key_prefix: str = ""
    chunk_size: int = CHUNK_BYTES
    compression: Compression = "none"
    """``heuristic``: only segments whose first batch is not compressed."""
    encryption_key: RsaKey | None = None
    """The public key that data keys are encrypted under; None for no encryption."""
