"""What is an error is one for the shell command and for the service alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from resnap.scheduler.verbs.verify import chain_gaps, chain_overlaps
from resnap.storage.layouts.lineage import Overlap
from resnap.storage.log.names import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from resnap.storage.layouts.lineage import Chain


def test_gaps_breaks_and_two_histories_are_faults_and_one_lineage_is_none() -> None:
    chain = SimpleNamespace(
        topic_partition=TopicPartition("t", 0),
        gaps=[OffsetRange(1, 2)],
        breaks=[OffsetRange(3, 4)],
        overlaps=[Overlap(OffsetRange(5, 6), is_one_lineage=True), Overlap(OffsetRange(7, 8), is_one_lineage=False)],
    )
    said = [str(fault) for fault in (*chain_gaps(cast("Chain", chain)), *chain_overlaps(cast("Chain", chain)))]
    assert [any(f"[{start}, {start + 1})" in one for one in said) for start in (1, 3, 5, 7)] == [
        True,
        True,
        False,
        True,
    ]
