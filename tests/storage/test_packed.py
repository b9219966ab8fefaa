from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.packed import _MOST_REMEMBERED, pack_all

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    name: str | None
    offset: int
    size: int | None
    other: float | bool | str | int | None


def named(number: int) -> str:
    return f"/disk/topic-0/{number:020d}.log"


KEPT = st.builds(
    Kept,
    name=st.one_of(st.none(), st.text(max_size=3), st.integers(0, 9).map(named)),
    offset=st.one_of(st.integers(0, 9), st.just(1 << 63)),
    size=st.one_of(st.none(), st.integers(-(1 << 70), 1 << 70), st.just(1)),
    other=st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False), st.integers(0, 1)),
)


def same(one: Sequence[Kept], other: Sequence[Kept]) -> bool:
    """Whether they are equal, and so are the types of all that is in them."""
    return one == other and list(map(repr, one)) == list(map(repr, other))


@given(st.lists(KEPT, max_size=12))
def test_what_was_packed_is_what_it_was(values: list[Kept]) -> None:
    found, wanted = pack_all(values, "offset"), tuple(values)
    assert same(tuple(found), wanted)
    assert same(tuple(found[at] for at in range(len(found))), wanted)
    assert [found[at] for at in range(-len(found), 0)] == values
    assert found[1:-1] == wanted[1:-1]
    assert found == wanted
    assert wanted == found
    assert hash(found) == hash(wanted)
    assert same(tuple(pickle.loads(pickle.dumps(found))), wanted)  # noqa: S301 - our own


@given(st.lists(st.integers(0, 1 << 62), min_size=8, max_size=12))
def test_names_that_follow_from_offsets_are_what_they_were(offsets: list[int]) -> None:
    values = [Kept(name=named(offset), offset=offset, size=1, other="x") for offset in offsets]
    assert same(tuple(pack_all(values, "offset")), tuple(values))


def test_a_segment_takes_less_than_a_hundred_bytes() -> None:
    values = [Kept(name=named(one), offset=one, size=1 << 30, other=None) for one in range(1000)]
    assert len(pickle.dumps(pack_all(values, "offset"))) < 100 * len(values)


def test_a_column_that_goes_on_behind_the_values_is_not_kept_again() -> None:
    sizes = range(100, 200)
    values = [Kept(name=None, offset=at, size=100 + at, other=None) for at in range(8)]
    assert tuple(pack_all(values, "offset", size=sizes)) == tuple(values)


def test_of_a_long_sequence_no_value_is_kept() -> None:
    values = [Kept(name=None, offset=at, size=1, other="x") for at in range(_MOST_REMEMBERED + 1)]
    long, short = pack_all(values, "offset"), pack_all(values[:8], "offset")
    assert list(long) == values
    assert long[2:5] == tuple(values[2:5])
    assert next(iter(long)) is not next(iter(long))
    assert next(iter(short)) is next(iter(short))
