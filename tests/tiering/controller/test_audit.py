from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.names import TopicPartition
from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes
from resnap.storage.log.properties import MetaProperties
from resnap.tiering.controller.audit import Carrier, Claims, Fault, audit
from resnap.tiering.controller.metadata.folding import fold, load_image
from resnap.tiering.controller.metadata.image import BlockSource, MetadataImage, ProducerIdBlock
from tests.logs.log_writer import PartitionWriter, write_log_dir_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

    Sets: TypeAlias = Callable[[str], FixtureSet]

PARTITION = TopicPartition("payments", 0)


def block(first: int, after: int) -> ProducerIdBlock:
    return ProducerIdBlock(
        first_producer_id=first, next_producer_id=after, broker_id=1, broker_epoch=6, source=BlockSource.ALLOCATED,
        offset=1, timestamp=5,
    )  # fmt: skip


def image(*blocks: ProducerIdBlock) -> MetadataImage:
    return replace(fold([]), producer_id_blocks=blocks)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two segments of the producers 7, 1500 and 2500, and a snapshot that also knows 3500."""
    directory = tmp_path / str(PARTITION)
    with PartitionWriter(directory) as log:
        for producer_id in (7, 1500, 1500, 7):
            log.append_data(timestamps=1, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        log.append_data(timestamps=1)
        log.roll()
        for producer_id in (2500, 1500):
            log.append_data(timestamps=1, producer_id=producer_id, producer_epoch=0, base_sequence=0)
        entries = [ProducerEntry(producer_id, 0, 0, 1, 0, 1, -1, -1) for producer_id in (7, 3500)]
        log.write_snapshot(5, snapshot_bytes(entries))
    meta = MetaProperties(version=1, node_id=1, cluster_id="c", directory_id=None)
    write_log_dir_files(tmp_path, meta=meta, high_watermarks={PARTITION: 7})
    return tmp_path


@pytest.mark.parametrize(
    "name", ["kafka-3.9.1-kraft", "kafka-4.1.1-kraft", "kafka-4.4.0-kraft", "kafka-3.9.1-tiered", "kafka-4.4.0-tiered"]
)
def test_every_producer_id_of_a_real_broker_was_allocated(name: str, fixture_set: Sets) -> None:
    data = fixture_set(name).data
    found = audit(load_log_dir(data), lambda: load_image(data))
    assert found.findings == found.problems == ()
    assert found.producer_ids > 3
    assert found.files > 10


def test_ids_in_no_block_are_reported_with_the_batches_that_carry_them(log_dir: Path) -> None:
    found = audit(load_log_dir(log_dir), lambda: image(block(0, 1000), block(2000, 3000)))
    directory = log_dir / str(PARTITION)
    first, second = f"{directory}/{0:020d}.log", f"{directory}/{5:020d}.log"
    snapshot = f"{directory}/{5:020d}.snapshot"
    assert [(finding.producer_id, finding.fault, finding.blocks, finding.carriers) for finding in found.findings] == [
        (
            1500,
            Fault.UNALLOCATED,
            (),
            (
                Carrier(file=first, base_offsets=(1, 2), batches=2),
                Carrier(file=second, base_offsets=(6,), batches=1),
            ),
        ),
        (3500, Fault.UNALLOCATED, (), (Carrier(file=snapshot, base_offsets=(), batches=0),)),
    ]
    assert (found.producer_ids, found.files) == (4, 3)


def test_ids_that_two_blocks_claim_are_reported_with_both(log_dir: Path) -> None:
    two = block(1000, 2000), block(1400, 2400)
    found = audit(load_log_dir(log_dir), lambda: image(block(0, 1000), *two, block(2400, 4000)))
    assert [(one.producer_id, one.fault, one.blocks) for one in found.findings] == [(1500, Fault.DISPUTED, two)]


def test_a_block_given_out_while_the_log_is_read_is_known(log_dir: Path) -> None:
    listed = load_log_dir(log_dir)
    segment = log_dir / str(PARTITION) / f"{5:020d}.log"

    def load() -> MetadataImage:
        assert segment.exists()
        return image(block(0, 4000))

    assert audit(listed, load).findings == ()


def test_a_damaged_file_is_a_problem_and_the_rest_is_audited(log_dir: Path) -> None:
    (log_dir / str(PARTITION) / f"{5:020d}.snapshot").write_bytes(b"\0" * 10)
    found = audit(load_log_dir(log_dir), lambda: image(block(0, 1000), block(2000, 3000)))
    assert [finding.producer_id for finding in found.findings] == [1500]
    assert "producer snapshot version" in str(found.problems[0])


def test_a_snapshot_that_retention_takes_meanwhile_is_not_a_problem(log_dir: Path) -> None:
    listed = load_log_dir(log_dir)
    (log_dir / str(PARTITION) / f"{5:020d}.snapshot").unlink()
    found = audit(listed, lambda: image(block(0, 4000)))
    assert (found.problems, found.findings, found.files) == ((), (), 2)


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda one: block(one[0], sum(one))), max_size=6)


@given(blocks=SPANS, ids=st.lists(st.integers(0, 90), max_size=20))
def test_claims_are_counted_as_one_by_one(blocks: list[ProducerIdBlock], ids: list[int]) -> None:
    expected = [sum(one.first_producer_id <= each < one.next_producer_id for one in blocks) for each in ids]
    assert list(Claims(blocks).count(np.array(ids, dtype=np.int64))) == expected


def test_a_partition_that_cannot_be_listed_is_a_problem(log_dir: Path) -> None:
    (log_dir / str(PARTITION) / "partition.metadata").write_text("garbage")
    found = audit(load_log_dir(log_dir), lambda: image(block(0, 4000)))
    assert (found.files, found.findings) == (0, ())
    assert "partition.metadata" in str(found.problems[0])


def test_retention_between_the_two_readings_keeps_the_finding(log_dir: Path) -> None:
    def load() -> MetadataImage:
        (log_dir / str(PARTITION) / f"{5:020d}.log").unlink()
        return image(block(0, 2000), block(3000, 4000))

    found = audit(load_log_dir(log_dir), load)
    assert [finding.producer_id for finding in found.findings] == [2500]
    assert found.findings[0].carriers[0].base_offsets == ()


def test_blocks_are_looked_through_once_for_neighbours() -> None:
    claims = Claims([block(0, 2000), block(1000, 3000), block(1000, 2000)])
    named = {pid: claims.finding(pid, ()).blocks for pid in (5, 1500, 1501, 2000, 9_000, 9_001)}
    assert [len(blocks) for blocks in named.values()] == [1, 3, 3, 1, 0, 0]
    assert named[1500] is named[1501]
