from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.kernel.fold import MANY_SLOTS
from resnap.replay.kernel.summary import SUMMARY_DTYPE
from resnap.replay.scan.producer_fold import ProducerFold, order_of
from resnap.replay.scan.producer_table import ProducerTable
from resnap.replay.scan.splits import Piece
from tests.cases import each
from tests.examples import examples
from tests.replay.specification import NOTHING, columns, join, piece_of
from tests.replay.strategies import EXPIRY, event_lists
from tests.replay.test_partial_state import cuts

if TYPE_CHECKING:
    from resnap.replay.producer_state import Event

SILENCE_MS = EXPIRY.certain_silence_ms
thorough = examples(400)


def pieces_of(events: list[Event], points: list[int]) -> list[Piece]:
    return [piece_of(part, SILENCE_MS) for part in cuts(events, points)]


def held(table: ProducerTable) -> tuple[list[object], int]:
    return table.rows().tolist(), table.clock_ms


def contents(piece: Piece) -> tuple[list[object], int]:
    return piece.rows.tolist(), piece.clock_ms


@thorough
@given(events=event_lists(max_events=40), points=st.lists(st.integers(0, 40), max_size=12), look=st.booleans())
def test_a_table_holds_what_joining_its_pieces_gives(events: list[Event], points: list[int], look: bool) -> None:
    table, joined = ProducerTable(SILENCE_MS), NOTHING
    for piece in pieces_of(events, points):
        table.append(piece)
        joined = join(joined, piece, SILENCE_MS)
        if look:
            assert held(table) == contents(joined)
    assert held(table) == contents(joined)
    assert held(table) == contents(joined)


@thorough
@given(events=event_lists(max_events=40), points=st.lists(st.integers(0, 40), max_size=4))
def test_a_fold_that_has_given_a_piece_begins_anew(events: list[Event], points: list[int]) -> None:
    fold = ProducerFold(SILENCE_MS)
    for part in cuts(events, points):
        rows, trailing_ms = columns(part)
        fold.append(rows)
        assert contents(fold.finish(trailing_ms)) == contents(piece_of(part, SILENCE_MS))


def many_pieces(seed: int, *, producers: int, pieces: int, share: float) -> list[Piece]:
    """Make pieces of which each has another share of the producers, with values of every sign of plausibility."""
    chance = np.random.default_rng(seed)
    made = []
    for number in range(pieces):
        ids = np.flatnonzero(chance.random(producers) < share) * 7
        rows = np.zeros(len(ids), dtype=SUMMARY_DTYPE)
        for name in SUMMARY_DTYPE.names or ():
            low, high = (0, 2) if rows[name].dtype == bool else (-1, 3)
            rows[name] = chance.integers(low, high, len(ids))
        rows["producer_id"] = ids
        made.append(Piece(rows, int(chance.integers(-1, 5)) + number % 3))
    return made


@pytest.mark.slow
@each("seed", range(6))
@each("share", [0.02, 0.5, 1.0])
def test_tables_of_many_producers_grow_and_stay_in_order(seed: int, share: float) -> None:
    pieces = many_pieces(seed, producers=5_000, pieces=12, share=share)
    table = ProducerTable(1)
    for number, (piece, expected) in enumerate(
        zip(pieces, accumulate(pieces, lambda one, other: join(one, other, 1)), strict=True)
    ):
        table.append(piece)
        if number % 3 != 1:
            assert held(table) == contents(expected)


def test_a_table_whose_slots_are_fetched_in_advance_holds_what_joining_its_pieces_gives() -> None:
    pieces = many_pieces(1, producers=MANY_SLOTS // 3, pieces=3, share=0.9)
    table = ProducerTable(1)
    for piece in pieces:
        table.append(piece)
    assert held(table) == contents(reduce(lambda one, other: join(one, other, 1), pieces))


@given(
    start=st.integers(-(1 << 63), (1 << 63) - 1),
    steps=st.lists(st.integers(0, 1 << 64) | st.integers(0, 1 << 17), max_size=50),
)
def test_producer_ids_are_ordered_as_numpy_does_and_equal_ones_stay_in_order(start: int, steps: list[int]) -> None:
    ids = np.array([(start + step + (1 << 63)) % (1 << 64) - (1 << 63) for step in steps], np.int64)
    assert order_of(ids).tolist() == ids.argsort(kind="stable").tolist()
    repeated = np.repeat(ids, 2)
    assert order_of(repeated).tolist() == repeated.argsort(kind="stable").tolist()


def test_appending_changes_no_piece() -> None:
    pieces = many_pieces(3, producers=100, pieces=3, share=0.5)
    before = [contents(piece) for piece in pieces]
    table = ProducerTable(SILENCE_MS)
    for piece in pieces:
        table.append(piece)
        table.rows()
    assert [contents(piece) for piece in pieces] == before


def test_tables_that_several_threads_put_in_order_at_once_keep_their_rows() -> None:
    ids = np.random.default_rng(1).permutation(20_000)
    rows = np.zeros(len(ids), dtype=SUMMARY_DTYPE)
    for name in SUMMARY_DTYPE.names or ():
        rows[name] = ids % 100
    rows["producer_id"] = ids
    in_order = rows[ids.argsort()]

    def differs(_: int) -> bool:
        table = ProducerTable(SILENCE_MS)
        table.append(Piece(rows, 0))
        # Not byte by byte: between the fields of rows that numpy has picked stands what was in that memory before.
        return not np.array_equal(table.rows(), in_order)

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(differs, range(50)))


def test_clocks_that_fall_from_piece_to_piece_are_all_kept() -> None:
    clocks = [Piece(NOTHING.rows, 10_000 - number) for number in range(300)]
    pieces = [many_pieces(0, producers=9, pieces=1, share=1)[0], *clocks]
    table = ProducerTable(SILENCE_MS)
    for piece in pieces:
        table.append(piece)
    assert held(table) == contents(reduce(lambda one, other: join(one, other, SILENCE_MS), pieces))


@pytest.mark.heavy
def test_two_million_producers_fit_into_600_megabytes() -> None:
    program = (
        "import resource\n"
        "import numpy as np\n"
        "from resnap.replay.scan.producer_table import ProducerTable\n"
        "from resnap.replay.kernel.summary import SUMMARY_DTYPE\n"
        "from resnap.replay.scan.splits import Piece\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "table = ProducerTable(1_100)\n"
        "table.append(Piece(np.zeros(0, dtype=SUMMARY_DTYPE), -1)); table.rows()\n"
        "before = peak()\n"
        "chance = np.random.default_rng(0)\n"
        "for number in range(40):\n"
        "    rows = np.zeros(100_000, dtype=SUMMARY_DTYPE)\n"
        "    rows['producer_id'] = np.sort(chance.permutation(2_000_000)[:100_000]) if number > 20 else (\n"
        "        np.arange(100_000) * 20 + number % 20)\n"
        "    table.append(Piece(rows, number)); table.rows()\n"
        "print(len(table.rows()), peak() - before)\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parent.parent.parent,
    ).stdout.split()  # fmt: skip
    assert output[0] == "2000000"
    assert int(output[1]) < 600
