"""Whatever bytes a parser gets, it takes them or raises the library's own errors, in memory bounded by their length."""

from __future__ import annotations

import random
import tracemalloc
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.examples import examples, mutated
from tests.fuzz.parsers import HELD_PER_BYTE, NEVER_REFUSE, PARSERS, try_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

SPARE_BYTES: Final = 4 << 20
BYTES_PER_BYTE: Final = 2_000
"""What a parser may hold for each byte it is given: objects of Python are large, and still bounded."""


@pytest.fixture
def good(request: pytest.FixtureRequest, fixture_set: Callable[[str], FixtureSet]) -> list[bytes]:
    return examples(request.getfixturevalue("name"), fixture_set("kafka-2.7.2-then-3.9.1").data)


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_taken_or_refused(name: str, data: bytes) -> None:
    try_one(name, data)


@pytest.mark.parametrize(
    "inputs", [200, pytest.param(600, marks=pytest.mark.slow), pytest.param(1_000_000, marks=pytest.mark.heavy)]
)
@pytest.mark.parametrize("name", PARSERS)
def test_good_files_that_were_changed_are_taken_or_refused(name: str, good: list[bytes], inputs: int) -> None:
    draw, refused = random.Random(name), 0
    assert all(try_one(name, one) for one in good)
    for _ in range(inputs):
        refused += not try_one(name, mutated(draw.choice(good), draw))
    assert refused or name in NEVER_REFUSE


@pytest.mark.parametrize("name", PARSERS)
def test_no_length_field_is_trusted_before_it_is_checked(name: str, good: list[bytes]) -> None:
    draw = random.Random(name)
    tracemalloc.start()
    try:
        for _ in range(300):
            data = mutated(draw.choice(good), draw)
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            try_one(name, data)
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < SPARE_BYTES + HELD_PER_BYTE.get(name, BYTES_PER_BYTE) * len(data)
    finally:
        tracemalloc.stop()
