"""Bloom filters in machine code: which of several layers has seen a producer id, and setting its bits in one.

``tiering/quota/bloom_store.py`` has the rule for places in words, and the same in Python, by a library's MurmurHash3;
this must equal it bit by bit. Callers keep the bytes of the layers alive, and have room for the answers.

Layers of a few megabytes are in no near cache. There the places of a whole group of ids are asked for before any of
them is looked at, so that the processor waits for all at once; that is four times as fast at ten million ids, and half
as fast where all is near.

Source: MurmurHash3_x64_128 by A. Appleby (public domain), of the eight bytes of an id; places by enhanced double
hashing (Dillinger and Manolios, 2004).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from resnap.replay.kernel.compiling import compiled, inlined
from resnap.replay.kernel.machine import Record, prefetch, record_at

LAYER_DTYPE: Final = np.dtype([("bits_at", "i8"), ("bits", "i8"), ("hashes", "i8")])
"""Where the bytes of a layer lie, how many bits they are, and how many of them an id sets."""
HASHES_DTYPE: Final = np.dtype([("first", "u8"), ("second", "u8")])
"""The hashes of an id, as far as they count."""
GROUP: Final = 16
"""Ids whose places are asked for together."""
MOST_ANNOUNCED: Final = 8
"""Places of an id that are asked for in a layer: all of them at half a per cent of false positives."""
FAR_BITS: Final = 1 << 22
"""Layers with more bits than this, together, count as far: half a megabyte, about what a near cache has to spare."""
UNSEEN: Final = -1

_layer_at = record_at(LAYER_DTYPE)
_id_at = record_at(np.dtype([("producer_id", "i8")]))
_byte_at = record_at(np.dtype([("byte", "u1")]))
_hashes_at = record_at(HASHES_DTYPE)
_answer_at = record_at(np.dtype([("layer", "i1")]))

_C1: Final = np.uint64(0x87C37B91114253D5)
_C2: Final = np.uint64(0x4CF5AD432745937F)
_M1: Final = np.uint64(0xFF51AFD7ED558CCD)
_M2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_LENGTH: Final = np.uint64(8)
_31: Final = np.uint64(31)
_32: Final = np.uint64(32)
_33: Final = np.uint64(33)


@inlined
def _mixed(value: np.uint64) -> np.uint64:
    value = (value ^ value >> _33) * _M1
    value = (value ^ value >> _33) * _M2
    return value ^ value >> _33


@inlined
def _hashes(producer_id: int, seed: int) -> tuple[np.uint64, np.uint64]:
    """Return the upper halves of both 64-bit numbers of the hash."""
    word = np.uint64(producer_id) * _C1
    first = np.uint64(seed) ^ (word << _31 | word >> _33) * _C2 ^ _LENGTH
    second = np.uint64(seed) ^ _LENGTH
    first += second
    second += first
    first, second = _mixed(first), _mixed(second)
    first += second
    second += first
    return first >> _32, second >> _32


@inlined
def _has(layer: Record, first: np.uint64, second: np.uint64) -> bool:
    bits = layer.bits
    place = np.int64(first * np.uint64(bits) >> _32)
    step = np.int64(second * np.uint64(bits) >> _32)
    for number in range(layer.hashes):
        if not _byte_at(layer.bits_at, place >> 3).byte >> (place & 7) & 1:
            return False
        place += step
        place -= bits if place >= bits else 0
        step += number + 1
        step -= bits if step >= bits else 0
    return True


@inlined
def _newest_with(table_at: int, layers: int, first: np.uint64, second: np.uint64) -> int:
    number = layers - 1
    while number >= 0 and not _has(_layer_at(table_at, number), first, second):
        number -= 1
    return number


@inlined
def _set(layer: Record, first: np.uint64, second: np.uint64) -> int:
    """Set the bits of an id; return 1 if any of them was not."""
    bits = layer.bits
    place = np.int64(first * np.uint64(bits) >> _32)
    step = np.int64(second * np.uint64(bits) >> _32)
    is_new = 0
    for number in range(layer.hashes):
        cell = _byte_at(layer.bits_at, place >> 3)
        before = cell.byte
        after = before | np.uint8(1 << (place & 7))
        if after != before:
            cell.byte = after
            is_new = 1
        place += step
        place -= bits if place >= bits else 0
        step += number + 1
        step -= bits if step >= bits else 0
    return is_new


@compiled
def find(table_at: int, layers: int, producer_id: int, seed: int) -> int:
    """Return the number of the newest of so many layers (``LAYER_DTYPE``) that has an id, or ``UNSEEN``."""
    first, second = _hashes(producer_id, seed)
    return _newest_with(table_at, layers, first, second)


@compiled
def add(table_at: int, layer: int, producer_id: int, seed: int) -> int:
    """Put an id into a layer; return 1 if the layer is another afterwards."""
    first, second = _hashes(producer_id, seed)
    return _set(_layer_at(table_at, layer), first, second)


@inlined
def _announce(layer: Record, first: np.uint64, second: np.uint64) -> None:
    """Ask for the places of an id in a layer."""
    bits = layer.bits
    place = np.int64(first * np.uint64(bits) >> _32)
    step = np.int64(second * np.uint64(bits) >> _32)
    for number in range(min(MOST_ANNOUNCED, layer.hashes)):
        prefetch(layer.bits_at + (place >> 3))
        place += step
        place -= bits if place >= bits else 0
        step += number + 1
        step -= bits if step >= bits else 0


@inlined
def _are_far(table_at: int, layers: int) -> bool:
    bits = 0
    for layer in range(layers):
        bits += _layer_at(table_at, layer).bits
    return bits > FAR_BITS


@compiled
def find_many(  # noqa: PLR0917 - machine code knows no names
    table_at: int, layers: int, ids_at: int, count: int, seed: int, into_at: int, spare_at: int
) -> None:
    """Write what ``find`` returns for each of ``count`` ids into as many signed bytes.

    At ``spare_at`` is room for the hashes of a group (``HASHES_DTYPE``).
    """
    far = _are_far(table_at, layers)
    for start in range(0, count, GROUP):
        end = min(start + GROUP, count)
        for number in range(start, end):
            hashes = _hashes_at(spare_at, number - start)
            first, second = _hashes(_id_at(ids_at, number).producer_id, seed)
            hashes.first, hashes.second = first, second
            for layer in range(layers if far else 0):
                _announce(_layer_at(table_at, layer), first, second)
        for number in range(start, end):
            hashes = _hashes_at(spare_at, number - start)
            answer = _answer_at(into_at, number)
            answer.layer = _newest_with(table_at, layers, hashes.first, hashes.second)


@compiled
def add_many(table_at: int, layer: int, ids_at: int, count: int, seed: int) -> int:
    """Put ids into a layer; return how many of them made it another."""
    added = 0
    into = _layer_at(table_at, layer)
    for number in range(count):
        first, second = _hashes(_id_at(ids_at, number).producer_id, seed)
        added += _set(into, first, second)
    return added
