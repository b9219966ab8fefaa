"""Audits the producer ids in a log dir: each must be in exactly one allocated block.

An id in no block was never allocated by this cluster: the log, or a part of it, or the metadata log, belongs to another
one. An id in two blocks may belong to two producers at once, which break each other's sequences. Both are reported with
the files and batches that contain them.

The log dir is read first and the metadata log after it, so that a block allocated in between is known.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from resnap.replay.scan.header_scan import ScanFacts, SegmentRange, read_blocks
from resnap.storage.errors import ResnapError, StoreError, in_file
from resnap.storage.log.partition_dir import Segment
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.storage.log.record_batch import NO_PRODUCER_ID
from resnap.storage.sources.files import GONE, PLAIN
from resnap.tiering.controller.metadata.records import ProducerIdsRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import PartitionDir, SnapshotFile
    from resnap.storage.sources.files import Sources
    from resnap.tiering.controller.metadata.image import MetadataImage, ProducerIdBlock

    Ids = npt.NDArray[np.int64]

SHOWN_BATCHES: Final = 10


class Fault(StrEnum):
    """What is wrong with a producer id."""

    UNALLOCATED = "unallocated"
    """It is in no block."""
    DISPUTED = "disputed"
    """It is in several blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """A file that contains a producer id."""

    file: str
    base_offsets: tuple[int, ...]
    """Base offsets of the first batches that carry it; none from a snapshot, or from a segment that has gone."""
    batches: int
    """How many there are; 0 of a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdFinding:
    """A producer id that was not allocated, or was allocated twice."""

    producer_id: int
    fault: Fault
    blocks: tuple[ProducerIdBlock, ...]
    """That it is in."""
    carriers: tuple[Carrier, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The result of an audit."""

    image: MetadataImage
    producer_ids: int
    """How many different ones there are."""
    files: int
    """Snapshots and segments that were read."""
    findings: tuple[ProducerIdFinding, ...]
    """The findings by producer id."""
    problems: tuple[ResnapError, ...]
    """Files that could not be read."""


def audit(log_dir: LogDir, load: Callable[[], MetadataImage], sources: Sources = PLAIN) -> Audit:
    """Compare the producer ids in all snapshots and segments of ``log_dir`` with the blocks of an image.

    Args:
        log_dir: the log dir to read.
        load: returns the image; called after everything else was read.
        sources: how files are opened.

    Raises:
        StoreError: the store of the log dir failed.
        ResnapError: what ``load`` raises.

    """
    problems = [problem.error for problem in log_dir.problems]
    read = [block for partition in log_dir.partitions for block in _read_partition(partition, sources, problems)]
    image = load().relying_on(ProducerIdsRecord)
    claims = Claims(image.producer_id_blocks)
    carriers: dict[int, list[Carrier]] = {}
    for file, ids in read:
        for producer_id, carrier in _carriers(file, claims.wrong(ids), sources):
            carriers.setdefault(producer_id, []).append(carrier)
    everything = np.unique(np.concatenate([ids for _, ids in read])) if read else np.empty(0)
    return Audit(
        image=image,
        producer_ids=len(everything),
        files=len(read),
        findings=tuple(claims.finding(producer_id, tuple(carriers[producer_id])) for producer_id in sorted(carriers)),
        problems=tuple(problems),
    )


class Claims:
    """Finds the blocks that contain a producer id."""

    def __init__(self, blocks: Iterable[ProducerIdBlock]) -> None:
        """``blocks`` may come in any order, overlap, and leave gaps."""
        self._blocks = tuple(blocks)
        self._claiming: dict[tuple[int, int], tuple[ProducerIdBlock, ...]] = {}
        """Blocks that claim an id, by how many begin and end up to it; neighbours share them."""
        self._starts = np.sort(np.array([block.first_producer_id for block in self._blocks], dtype=np.int64))
        self._ends = np.sort(np.array([block.next_producer_id for block in self._blocks], dtype=np.int64))

    def count(self, ids: Ids) -> Ids:
        """Return the number of blocks that contain each of ``ids``."""
        begun, ended = self._begun_and_ended(ids)
        return np.asarray(begun - ended, dtype=np.int64)

    def wrong(self, ids: Ids) -> Ids:
        """Return the ``ids`` that are not in exactly one block."""
        return np.asarray(ids[self.count(ids) != 1], dtype=np.int64)

    def finding(self, producer_id: int, carriers: tuple[Carrier, ...]) -> ProducerIdFinding:
        """Return what is wrong with an id that ``wrong`` returned."""
        blocks = self._blocks_of(producer_id)
        fault = Fault.DISPUTED if blocks else Fault.UNALLOCATED
        return ProducerIdFinding(producer_id=producer_id, fault=fault, blocks=blocks, carriers=carriers)

    def _begun_and_ended(self, ids: Ids) -> tuple[Ids, Ids]:
        begun, ended = (np.searchsorted(edges, ids, side="right") for edges in (self._starts, self._ends))
        return begun, ended

    def _blocks_of(self, producer_id: int) -> tuple[ProducerIdBlock, ...]:
        begun, ended = self._begun_and_ended(np.array([producer_id], dtype=np.int64))
        place = int(begun[0]), int(ended[0])
        if place not in self._claiming:
            self._claiming[place] = tuple(
                block for block in self._blocks if block.first_producer_id <= producer_id < block.next_producer_id
            )
        return self._claiming[place]


def _read_partition(
    partition: PartitionDir, sources: Sources, problems: list[ResnapError]
) -> Iterator[tuple[SnapshotFile | Segment, Ids]]:
    """Yield the distinct ids in the files of a partition; files that retention deleted are skipped."""
    files: list[SnapshotFile | Segment] = [*partition.snapshots, *partition.segments]
    for file in files:
        try:
            yield file, _ids_in(file, sources)
        except GONE:
            continue
        except StoreError:
            raise
        except ResnapError as error:
            problems.append(error)


def _ids_in(file: SnapshotFile | Segment, sources: Sources) -> Ids:
    if isinstance(file, Segment):
        found = [np.unique(ids) for _, ids in _batches(file, sources)]
        return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)
    data = sources.read(file.path)
    with in_file(file.path):
        return np.unique(read_snapshot_array(data)["producer_id"].astype(np.int64))


def _batches(segment: Segment, sources: Sources) -> Iterator[tuple[Ids, Ids]]:
    """Yield base offsets and producer ids of the batches that have one, block by block."""
    whole = SegmentRange.whole(segment)
    with sources.open(segment.path) as reader:
        for block in read_blocks(reader, whole, ScanFacts()):
            ids = block.headers["producer_id"].astype(np.int64)
            produced = ids > NO_PRODUCER_ID
            yield block.headers["base_offset"].astype(np.int64)[produced], ids[produced]


def _carriers(file: SnapshotFile | Segment, ids: Ids, sources: Sources) -> Iterator[tuple[int, Carrier]]:
    """Yield each of ``ids`` in the file, with the batches that contain it."""
    shown: dict[int, list[int]] = {int(producer_id): [] for producer_id in ids}
    batches = dict.fromkeys(shown, 0)
    if isinstance(file, Segment) and shown:
        with suppress(*GONE):  # retention may take it between the two readings; its ids stay wrong
            for base_offsets, found in _batches(file, sources):
                for index in np.flatnonzero(np.isin(found, ids)):
                    producer_id = int(found[index])
                    batches[producer_id] += 1
                    if len(shown[producer_id]) < SHOWN_BATCHES:
                        shown[producer_id].append(int(base_offsets[index]))
    for producer_id, base in shown.items():
        yield producer_id, Carrier(file=file.path, base_offsets=tuple(base), batches=batches[producer_id])
