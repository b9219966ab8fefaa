"""Logs written by columns: the same files as batch by batch, and nothing in between where they are sparse."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from resnap.storage.log.compression import decompress
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.storage.log.record import read_client_records
from resnap.storage.log.record_batch import COMPRESSION_NAMES, HEADER, RecordBatchHeader, check_crc, read_header
from tests.logs.bulk_log import BulkPartitionWriter
from tests.logs.log_writer import PartitionWriter
from tests.logs.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY = Traffic(producers=40, records=3, end_share=0.3, abort_share=0.3, fence_share=0.5, linger_ms=400,
               batches_per_leader=150)  # fmt: skip
TINY_BATCHES = replace(BUSY, records=1, ms_per_batch=0.3, linger_ms=20)
SEGMENTS = (2000, 30_000, 90_000, 60_000)


def written(directory: Path, traffic: Traffic, *, batch_bytes: int = 400, **options: Any) -> list[int]:
    """Write four segments and return their base offsets, and the log end."""
    writer = BulkPartitionWriter(directory, traffic, batch_bytes=batch_bytes, seed=7, **options)
    bases = []
    for size_bytes in SEGMENTS:
        bases.append(writer.next_offset)
        writer.write_segment(size_bytes)
        writer.write_snapshot()
    writer.close()
    return [*bases, writer.next_offset]


def batches(directory: Path, base_offset: int) -> Iterator[tuple[RecordBatchHeader, bytes]]:
    log, position = (directory / segment_name(base_offset, "log")).read_bytes(), 0
    while position < len(log):
        header = read_header(log, position)
        yield header, log[position : position + header.size_bytes]
        position += header.size_bytes


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".snapshot"}


@pytest.mark.parametrize("traffic", [BUSY, TINY_BATCHES], ids=["busy", "tiny batches"])
def test_all_files_are_what_the_writer_of_single_batches_makes_of_the_same_batches(
    tmp_path: Path, traffic: Traffic
) -> None:
    *bases, _ = written(tmp_path / "bulk-0", traffic, batch_bytes=400 if traffic is BUSY else 120)
    with PartitionWriter(tmp_path / "plain-0") as plain:
        for base in bases:
            plain.roll()
            for _, batch in batches(tmp_path / "bulk-0", base):
                plain.append_batch(batch)
    assert files(tmp_path / "bulk-0") == files(tmp_path / "plain-0")
    assert any(path.suffix == ".txnindex" for path in (tmp_path / "bulk-0").iterdir())


def test_every_checksum_is_right(tmp_path: Path) -> None:
    *bases, _ = written(tmp_path / "bulk-0", BUSY)
    for base in bases:
        for _, batch in batches(tmp_path / "bulk-0", base):
            check_crc(batch)


def test_records_are_compressed_by_any_codec_and_markers_are_not(tmp_path: Path) -> None:
    for codec in COMPRESSION_NAMES[1:]:
        base, *_ = written(tmp_path / f"{codec}-0", BUSY, batch_bytes=2000, codec=codec)
        for header, batch in batches(tmp_path / f"{codec}-0", base):
            check_crc(batch)
            assert header.compression == ("none" if header.is_control else codec)
            if not header.is_control:
                records = decompress(batch[HEADER.size :], codec)
                assert len(records) > 1.3 * (len(batch) - HEADER.size), codec
                assert len(list(read_client_records(records, header.records_count))) == BUSY.records


def test_holes_have_the_checksum_of_zeros_and_take_no_room(tmp_path: Path) -> None:
    *bases, _ = written(tmp_path / "full-0", BUSY)
    big = BulkPartitionWriter(tmp_path / "big-0", BUSY, batch_bytes=1 << 20, sparse=True)
    big.write_segment(50 << 20)
    for _, batch in batches(tmp_path / "big-0", 0):
        check_crc(batch)
    log = (tmp_path / "big-0" / segment_name(0, "log")).stat()
    assert log.st_size > 45 << 20
    assert log.st_blocks * 512 < 1 << 20
    *sparse_bases, _ = written(tmp_path / "sparse-0", BUSY, sparse=True)
    assert sparse_bases == bases
    assert without_checksums(tmp_path / "sparse-0", bases) == without_checksums(tmp_path / "full-0", bases)


def without_checksums(directory: Path, bases: list[int]) -> list[RecordBatchHeader]:
    return [header._replace(crc=0) for base in bases for header, _ in batches(directory, base)]


def test_there_are_plain_batches_commits_aborts_and_fenced_producers(tmp_path: Path) -> None:
    *bases, end = written(tmp_path / "bulk-0", BUSY)
    headers = [header for base in bases for header, _ in batches(tmp_path / "bulk-0", base)]
    assert any(not header.has_producer for header in headers)
    assert any(header.is_control for header in headers)
    assert any(header.partition_leader_epoch for header in headers)
    entries = read_snapshot((tmp_path / "bulk-0" / segment_name(end, "snapshot")).read_bytes()).values()
    assert any(entry.producer_epoch for entry in entries)
    assert any(entry.has_open_transaction for entry in entries)
