"""Chains: gaps and overlaps are exactly what counting offsets one by one shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.layouts.lineage import chain_of, chains_of
from resnap.storage.log.checkpoints import LeaderEpoch
from tests.storage.layouts.manifests import a_manifest

if TYPE_CHECKING:
    from resnap.storage.layouts.manifest import ManifestFacts

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), min_size=1, max_size=8)


def segment(base: int, length: int) -> ManifestFacts:
    return a_manifest(
        topic="t",
        partition=0,
        topic_id="id",
        base_offset=base,
        next_base_offset=base + length,
        last_offset=base + length - 1,
        leader_epochs=(LeaderEpoch(0, 0),),
    ).facts


@given(RANGES)
def test_gaps_and_overlaps_are_what_counting_shows(ranges: list[tuple[int, int]]) -> None:
    [chain] = chains_of(segment(*one) for one in ranges)
    counts = dict.fromkeys(range(chain.start, chain.end), 0)
    for base, length in set(ranges):
        for offset in range(base, base + length):
            counts[offset] += 1
    assert {o for gap in chain.gaps for o in range(*gap)} == {o for o, count in counts.items() if not count}
    shared = {o for one in chain.overlaps for o in range(*one.offsets)}
    assert shared == {o for o, count in counts.items() if count > 1}
    assert all(one.is_one_lineage for one in chain.overlaps)
    assert chain.segments == len(set(ranges))


@given(RANGES)
def test_a_chain_breaks_off_where_no_segment_begins_at_an_offset_that_others_lead_to(
    ranges: list[tuple[int, int]],
) -> None:
    found = [segment(*one) for one in ranges]
    [chain] = chains_of(found)
    links = [range(one.base_offset, one.next_base_offset) for one in chain_of(found)]
    taken = [offset for link in links for offset in link]
    assert len(taken) == len(set(taken))
    lacking = {offset for gap in (*chain.gaps, *chain.breaks) for offset in range(*gap)}
    assert set(range(chain.start, chain.end)) - set(taken) == lacking


def test_a_segment_that_no_other_leads_to_is_in_no_chain() -> None:
    a, b, c = segment(1, 1), segment(0, 2), segment(1, 2)
    assert chain_of([a, b, c]) == [b]
    [chain] = chains_of([a, b, c])
    assert (chain.gaps, chain.breaks) == ((), ((2, 3),))


def test_an_epoch_that_begins_at_another_offset_is_another_lineage() -> None:
    below = replace(segment(0, 10), leader_epochs=(LeaderEpoch(0, 0), LeaderEpoch(3, 7)))
    above = replace(segment(5, 10), leader_epochs=(LeaderEpoch(0, 0), LeaderEpoch(3, 8)))
    [[overlap]] = [chain.overlaps for chain in chains_of([below, above])]
    assert not overlap.is_one_lineage
    same = replace(above, leader_epochs=below.leader_epochs)
    [[overlap]] = [chain.overlaps for chain in chains_of([below, same])]
    assert overlap.is_one_lineage
