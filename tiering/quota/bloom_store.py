"""The layers of one principal as Bloom filters: fixed arrays of bits, oldest first, written only at the newest end.

The place of an id's bits follows from nothing but the id, a seed, and the filter's shape, so that the same input gives
the same bits everywhere. ``h1`` and ``h2`` are the numbers of MurmurHash3_x64_128 of the id's eight bytes, little
endian; with ``m`` bits, the first place is ``(h1 >> 32) * m >> 32`` and the first step ``(h2 >> 32) * m >> 32``; after
each bit the place grows by the step and the step by 1, 2, 3 and so on, modulo ``m``. Bit ``i`` is bit ``i % 8`` of byte
``i // 8``.

Hashing is a must: producer ids come in blocks of a thousand, and unmixed they fill filters badly. A seed of one's own
keeps clients, who choose the ids they send, from looking for ids that collide.

``places`` is the rule in Python, by a library's hash; ``replay/kernel/bloom.py`` the same in machine code, which is
used where it can be made.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import mmh3
import numpy as np
import numpy.typing as npt

from resnap.tiering.quota.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

Ids = npt.NDArray[np.int64]
Answers = npt.NDArray[np.int8]
UNSEEN: Final = -1
MAX_LAYERS: Final = 96
"""Numbers of layers are signed bytes in answers of batches; a life cycle adds some to those that bursts add."""
_SPARE_BYTES: Final = 256
"""Room for the hashes of a group of ids, in machine code."""
_ROW: Final = np.dtype([("bits_at", "i8"), ("bits", "i8"), ("hashes", "i8")])


@cache
def machine_code() -> Any:  # noqa: ANN401 - a module
    """Return ``replay.kernel.bloom``, None where machine code cannot be made; loads numba.

    All of it is compiled here: the first call of a function would do it, while its caller holds a lock.
    """
    try:
        code = import_module("resnap.replay.kernel.bloom")
    except (ImportError, OSError, AttributeError):
        return None
    store, ids = BloomStore(0, compiled=False), np.zeros(1, dtype=np.int64)
    store._code = code  # noqa: SLF001 - of this very class
    store.open(Shape(bits=64, hashes=1))
    store.add(store.find(0))
    store.add_many(ids)
    store.find_many(ids)
    return code


def places(producer_id: int, seed: int, shape: Shape) -> Iterator[int]:
    """Yield the numbers of the bits that an id sets in a filter of ``shape``."""
    h1, h2 = mmh3.mmh3_x64_128_utupledigest((producer_id & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little"), seed)
    place, step = (h1 >> 32) * shape.bits >> 32, (h2 >> 32) * shape.bits >> 32
    for number in range(1, shape.hashes + 1):
        yield place
        place = (place + step) % shape.bits
        step = (step + number) % shape.bits


class BloomStore:
    """Layers by number, 0 the oldest. Not thread-safe: who holds it, locks."""

    def __init__(self, seed: int, *, compiled: bool = True) -> None:
        """``seed`` is any number of 32 bits; without ``compiled``, or numba, everything is done in Python."""
        self._seed = seed
        self._code = machine_code() if compiled else None
        self._shapes: list[Shape] = []
        self._bits: list[npt.NDArray[np.uint8]] = []
        self._cells: list[memoryview] = []
        self._table = np.zeros(0, dtype=_ROW)
        self._at = 0
        self._spare = np.zeros(_SPARE_BYTES, dtype=np.uint8)
        self.items: list[int] = []
        """Number of ids that changed each layer: fewer than were put in, if some collide."""

    def __len__(self) -> int:
        return len(self._bits)

    @property
    def size_bytes(self) -> int:
        """Memory of all bits."""
        return sum(bits.nbytes for bits in self._bits)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the layers, oldest first."""
        return tuple(self._shapes)

    def bits_of(self, layer: int) -> bytes:
        """Return a copy of the bits of a layer."""
        return self._bits[layer].tobytes()

    def open(self, shape: Shape) -> None:
        """Add an empty layer at the newest end."""
        self._shapes.append(shape)
        self._bits.append(np.zeros(shape.size_bytes, dtype=np.uint8))
        self.items.append(0)
        self._changed()

    def drop_oldest(self, count: int) -> None:
        """Forget so many layers."""
        del self._shapes[:count], self._bits[:count], self.items[:count]
        self._changed()

    def _changed(self) -> None:
        self._cells = [bits.data for bits in self._bits]
        rows = [(b.ctypes.data, s.bits, s.hashes) for b, s in zip(self._bits, self._shapes, strict=True)]
        self._table = np.array(rows, dtype=_ROW)
        self._at = self._table.ctypes.data

    def find(self, producer_id: int) -> int:
        """Return the number of the newest layer that has an id, or ``UNSEEN``."""
        if self._code is not None:
            newest: int = self._code.find(self._at, len(self._bits), producer_id, self._seed)
            return newest
        for layer in reversed(range(len(self._bits))):
            cells = self._cells[layer]
            if all(
                cells[place >> 3] >> (place & 7) & 1 for place in places(producer_id, self._seed, self._shapes[layer])
            ):
                return layer
        return UNSEEN

    def add(self, producer_id: int) -> None:
        """Put an id into the newest layer."""
        if self._code is not None:
            self.items[-1] += self._code.add(self._at, len(self._bits) - 1, producer_id, self._seed)
            return
        is_new, cells = False, self._cells[-1]
        for place in places(producer_id, self._seed, self._shapes[-1]):
            is_new = is_new or not cells[place >> 3] >> (place & 7) & 1
            cells[place >> 3] |= 1 << (place & 7)
        self.items[-1] += is_new

    def find_many(self, producer_ids: Ids) -> Answers:
        """Return what ``find`` returns for each of ``producer_ids``."""
        if self._code is None:
            return np.array([self.find(one) for one in producer_ids.tolist()], dtype=np.int8)
        ids, found = np.ascontiguousarray(producer_ids, dtype=np.int64), np.empty(len(producer_ids), dtype=np.int8)
        self._code.find_many(
            self._at,
            len(self._bits),
            ids.ctypes.data,
            len(ids),
            self._seed,
            found.ctypes.data,
            self._spare.ctypes.data,
        )
        return found

    def add_many(self, producer_ids: Ids) -> None:
        """Put ids into the newest layer."""
        if self._code is None:
            for one in producer_ids.tolist():
                self.add(one)
            return
        ids = np.ascontiguousarray(producer_ids, dtype=np.int64)
        self.items[-1] += self._code.add_many(self._at, len(self._bits) - 1, ids.ctypes.data, len(ids), self._seed)
