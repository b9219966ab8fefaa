"""The chains of segments that the manifests of a store make, per partition, with their gaps and overlaps.

A chain is what a reader can follow: segments in offset order, each beginning where the previous one ends. It breaks if
there are further segments, but none begins where it ends. An overlap is of one lineage if the leader epochs of both
segments agree in the shared offsets: the same log, cut at other boundaries by another replica. Otherwise two histories
claim the same offsets, as after an unclean leader election.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.layouts.lineage import Span, chain_of, is_one_lineage
from resnap.storage.log.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resnap.storage.layouts.manifest import ManifestFacts


class Overlap(NamedTuple):
    """Offsets [start, end) that two segments share."""

    start: int
    end: int
    is_one_lineage: bool
    """Whether the leader epochs of both agree there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The segments of one partition of one topic, in all [start, end)."""

    cluster_id: str | None
    topic_id: str | None
    topic_partition: TopicPartition
    start: int
    end: int
    segments: int
    gaps: tuple[Span, ...]
    """Offsets that no segment of the chain has, between others."""
    overlaps: tuple[Overlap, ...]
    breaks: tuple[Span, ...]
    """Offsets that the chain lacks though there are segments with them: none of those begins where another ends."""
    layout: str = ""
    """Name of the layout whose manifests or keys name its segments; a store may hold several."""
    is_beside_unread: bool = False
    """Whether a manifest beside its own could not be read: what seems to be a gap may be the segment of that."""


def chains_of(manifests: Iterable[ManifestFacts]) -> list[Chain]:
    """Return the chains that ``manifests`` make, by cluster, partition and topic id."""
    found: dict[tuple[str, TopicPartition, str], list[ManifestFacts]] = {}
    for manifest in manifests:
        key = manifest.cluster_id or "", TopicPartition(manifest.topic, manifest.partition), manifest.topic_id or ""
        found.setdefault(key, []).append(manifest)
    return [_chain(found[key]) for key in sorted(found)]


def _chain(manifests: list[ManifestFacts]) -> Chain:
    """Return the chain of one partition; segments with the same offsets count once."""
    by_range = {(manifest.base_offset, manifest.next_base_offset): manifest for manifest in manifests}
    ordered = [by_range[offsets] for offsets in sorted(by_range)]
    last = ordered[-1]
    return Chain(
        cluster_id=last.cluster_id,
        topic_id=next((manifest.topic_id for manifest in ordered if manifest.topic_id is not None), None),
        topic_partition=TopicPartition(last.topic, last.partition),
        start=ordered[0].base_offset,
        end=max(manifest.next_base_offset for manifest in ordered),
        segments=len(ordered),
        gaps=tuple(_gaps(ordered)),
        overlaps=tuple(_overlaps(ordered)),
        breaks=tuple(_breaks(ordered)),
    )


def _gaps(ordered: Sequence[ManifestFacts]) -> Iterator[Span]:
    reached = ordered[0].base_offset
    for manifest in ordered:
        if manifest.base_offset > reached:
            yield Span(reached, manifest.base_offset)
        reached = max(reached, manifest.next_base_offset)


def _breaks(ordered: Sequence[ManifestFacts]) -> Iterator[Span]:
    gaps = set(_gaps(ordered))
    start, end = ordered[0].base_offset, max(manifest.next_base_offset for manifest in ordered)
    links = [(manifest.base_offset, manifest.next_base_offset) for manifest in chain_of(ordered)]
    for below, above in pairwise([(start, start), *links, (end, end)]):
        between = Span(below[1], above[0])
        if between.start < between.end and between not in gaps:
            yield between


def _overlaps(ordered: Sequence[ManifestFacts]) -> Iterator[Overlap]:
    """Yield the offsets that a segment shares with the segment below it that has the highest end."""
    farthest = ordered[0]
    for manifest in ordered[1:]:
        if manifest.base_offset < farthest.next_base_offset:
            start, end = manifest.base_offset, min(manifest.next_base_offset, farthest.next_base_offset)
            yield Overlap(start, end, is_one_lineage(farthest, manifest))
        farthest = max(farthest, manifest, key=lambda segment: segment.next_base_offset)
