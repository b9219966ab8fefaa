"""Shows the objects of a segment in the layout ``aiven``: manifest and indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from resnap.scheduler.output.rendering import Answer, Column
from resnap.storage.errors import UsageError, in_file
from resnap.storage.layouts.aiven.manifest import read_manifest, segment_record
from resnap.storage.layouts.aiven.members import INDEX_NAMES, INDEXES, MANIFEST, Member
from resnap.storage.layouts.aiven.opening import stored_segment
from resnap.storage.log.checkpoints import read_leader_epochs
from resnap.storage.log.indexes import read_offset_index, read_time_index, read_transaction_index
from resnap.storage.log.producer_snapshot import read_snapshot_array
from resnap.storage.words import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

    from resnap.scheduler.output.rendering import Row
    from resnap.scheduler.verbs.inspect.opened_file import OpenedFile
    from resnap.storage.layouts.aiven.manifest import AivenManifest

_READERS: Final[dict[str, Callable[[bytes], Sized]]] = {
    "index": read_offset_index,
    "timeindex": read_time_index,
    "snapshot": read_snapshot_array,
    "leader-epoch-checkpoint": read_leader_epochs,
    "txnindex": read_transaction_index,
}


def inspect_manifest(file: OpenedFile) -> Answer:
    """Show a manifest: the segment and its chunks, and where each index is."""
    manifest = read_manifest(file.content())
    ranges = manifest.indexes.named()
    rows = [{"index": name, **part._asdict()} for name, part in ranges.items() if part is not None]
    columns = (Column(key="index"), Column(key="position", right=True), Column(key="size", right=True))
    return Answer(head=_head(manifest), name="indexes", kind="index", rows=rows, columns=columns)


def inspect_indexes(file: OpenedFile) -> Answer:
    """Show which indexes an object holds; its manifest, which is beside it, says where each begins.

    Raises:
        UsageError: its name does not say of which segment it is.

    """
    if file.stem is None:
        what = "without its manifest beside it one index cannot be distinguished from another"
        raise UsageError(f"{file.reader.locator}: {what}", hint=f"give it where it lies, beside the .{MANIFEST}")
    columns = (
        Column(key="index"),
        Column(key="position", right=True),
        Column(key="storedBytes", right=True, show=bytes_text),
        Column(key="bytes", right=True),
        Column(key="entries", right=True),
        Column(key="file"),
    )
    return Answer(name="indexes", kind="index", rows=_index_rows(file, file.stem), columns=columns)


def _head(manifest: AivenManifest) -> dict[str, object]:
    chunks = manifest.chunks
    head: dict[str, object] = {
        "chunks": len(chunks.stored),
        "originalChunkSize": chunks.chunk_size,
        "originalFileSize": chunks.file_size,
        "storedFileSize": chunks.stored_size,
        "compression": manifest.compression,
        # The encrypted data key is of no use to the reader.
        "encryptionKeyPair": None if manifest.encryption is None else manifest.encryption.data_key.key_id,
    }
    segment = manifest.segment
    if segment is None:
        return {**head, "remoteLogSegmentMetadata": None}
    record = segment_record(segment)
    del record["remoteLogSegmentId"]
    head |= {"topic": segment.topic, "partition": segment.partition}
    return {**head, "topicId": segment.topic_id, "id": segment.segment_id, **record}


def _index_rows(file: OpenedFile, stem: str) -> Iterator[Row]:
    segment = stored_segment(file.sources, stem)
    for suffix, name in INDEX_NAMES.items():
        place = segment.index_range(suffix)
        if place is None:
            continue
        member = Member(stem, suffix)
        with in_file(f"{stem}.{INDEXES}"):
            content = segment.index(file.reader.read(place.position, place.size), place)
        with in_file(member.locator):
            entries: Any = _READERS[suffix](content) if content else ()
        yield {
            "index": name,
            "position": place.position,
            "storedBytes": place.size,
            "bytes": len(content),
            "entries": len(entries),
            "file": member.locator,
        }
