"""A metadata log is read while its quorum deletes what a checkpoint replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from resnap.storage.errors import FileGoneError
from resnap.tiering.controller.metadata import folding
from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.metadata.records import ProducerIdsRecord
from resnap.tiering.controller.metadata.writer import open_metadata_log
from tests.logs.metadata_checkpoint import checkpoint_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.controller.metadata.log_files import MetadataLogFiles


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Some segments with blocks of producer ids, and a checkpoint at the second."""
    with open_metadata_log(tmp_path / "__cluster_metadata-0", leader_id=1, timestamp=5, segment_bytes=300) as writer:
        for number in range(1, 10):
            record = ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=number * 1000)
            writer.append([record], timestamp=6)
    segments = sorted((tmp_path / "__cluster_metadata-0").glob("*.log"))
    end_offset = int(segments[1].stem)
    # Offset 0 says who leads, so that so many blocks lie below the checkpoint.
    below = ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=(end_offset - 1) * 1000)
    name = f"{end_offset:020d}-{1:010d}.checkpoint"
    (segments[0].parent / name).write_bytes(checkpoint_bytes([below], epoch=1, timestamp=6))
    return segments[0].parent


def after_listing(monkeypatch: pytest.MonkeyPatch, do: Callable[[MetadataLogFiles], object]) -> list[MetadataLogFiles]:
    """Let ``do`` happen between listing and reading; return what was listed."""
    listed, look = [], folding.list_metadata_log

    def list_and_do(directory: Path) -> MetadataLogFiles:
        listed.append(look(directory))
        do(listed[-1])
        return listed[-1]

    monkeypatch.setattr(folding, "list_metadata_log", list_and_do)
    return listed


def test_a_segment_that_was_deleted_meanwhile_causes_another_listing(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = log / f"{0:020d}.log"
    listed = after_listing(monkeypatch, lambda _: first.unlink(missing_ok=True))
    image = load_image(log)
    assert [files.start_offset == 0 for files in listed] == [True, False]
    assert (image.next_producer_id, image.producer_id_blocks[0].source) == (9000, "checkpoint")


def test_listings_are_not_repeated_for_ever(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def come_and_go(files: MetadataLogFiles) -> None:
        files.checkpoints[-1].path.unlink()

    segment = log / f"{0:020d}.log"
    segment.unlink()
    checkpoint = next(log.glob("*.checkpoint"))
    content = checkpoint.read_bytes()
    look = folding.list_metadata_log

    def with_checkpoint(directory: Path) -> MetadataLogFiles:
        checkpoint.write_bytes(content)
        return look(directory)

    monkeypatch.setattr(folding, "list_metadata_log", with_checkpoint)
    listed = after_listing(monkeypatch, come_and_go)
    with pytest.raises(FileGoneError, match="checkpoint"):
        load_image(log)
    assert len(listed) == folding.READ_ATTEMPTS
