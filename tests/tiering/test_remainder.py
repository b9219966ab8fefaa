from __future__ import annotations

from dataclasses import replace
from hashlib import md5
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, uuid4, uuid5

import pytest

from resnap.storage.layouts.flat.keys import object_key
from resnap.storage.layouts.flat.layout import Flat
from resnap.storage.layouts.manifest import ObjectKind, write_manifest
from resnap.storage.log.checkpoints import epochs_in
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.judging.eligibility import Candidates, before_replay
from resnap.tiering.judging.inventory import take_inventory
from resnap.tiering.judging.refusal import Reason
from resnap.tiering.shipping.remainder import remainder
from resnap.tiering.shipping.segment_bundle import EpochHistory
from resnap.tiering.shipping.shipped import ShippedTopic, written_version
from tests.cases import each
from tests.storage.layouts.manifests import a_manifest, an_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.stores.protocol import ObjectInfo
    from tests.fixture_sets import FixtureSet


def _holding(candidates: Candidates, *ranges: tuple[int, int], log_bytes: int = 0) -> ShippedTopic:
    """Return a topic of which the store holds just these ranges, of the same history."""
    store = MemoryObjectStore(f"remainder-{uuid4()}")
    partition = candidates.inventory.partition
    number = partition.topic_partition.partition
    there = {segment.base_offset: Path(segment.path) for segment in partition.segments}
    known = EpochHistory(partition).up_to(candidates.segments[-1])
    for base, end in ranges:
        where = {"cluster_id": None, "topic": "payments", "topic_id": None, "partition": number, "base_offset": base}
        name = uuid5(NAMESPACE_URL, f"{base}-{end}")
        keys = {kind: object_key(**where, segment_id=name, extension=kind) for kind in ("log", "snapshot", "manifest")}
        body = there[base].read_bytes() if base in there else b""
        store.put(keys["log"], body[:log_bytes].ljust(log_bytes, b"\0"))
        store.put(keys["snapshot"], bytes(10))
        manifest = a_manifest(
            **where,
            segment_id=name,
            next_base_offset=end,
            last_offset=end - 1,
            leader_epochs=epochs_in(known, base, end),
            objects=(
                an_object(ObjectKind.LOG, key=keys["log"], size_bytes=log_bytes),
                an_object(ObjectKind.SNAPSHOT, key=keys["snapshot"], size_bytes=10),
            ),
        )
        store.put(keys["manifest"], write_manifest(manifest))
    return ShippedTopic(store, Flat(), None, "payments")


@pytest.fixture
def candidates(fixture_set: Callable[[str], FixtureSet]) -> Candidates:
    log_dir = load_log_dir(fixture_set("kafka-2.7.2").data)
    inventory = next(
        found for found in take_inventory(log_dir).partitions if str(found.partition.topic_partition) == "payments-0"
    )
    return before_replay(inventory)


def test_what_overlaps_and_shares_no_boundary_is_refused_with_all_that_depends_on_it(candidates: Candidates) -> None:
    first, *others = candidates.segments
    late = replace(candidates, segments=tuple(others))
    left = remainder(late, _holding(candidates, (first.base_offset, (first.next_base_offset or 0) + 1)))
    assert (left.already, left.candidates.segments) == (0, ())
    conflicts = [refusal for refusal in left.candidates.refusals if refusal.reason is Reason.LINEAGE_CONFLICT]
    assert [refusal.base_offset for refusal in conflicts] == [segment.base_offset for segment in others]
    assert left.candidates.blocking == conflicts[0]
    assert "the logs agree" in conflicts[0].hint
    assert "ship to another prefix" in conflicts[0].hint


class _Etags(MemoryObjectStore):
    """Lists another etag, and counts what is read."""

    etag: str
    read: int

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix):
            yield replace(info, etag=self.etag)

    def get(self, key: str) -> bytes:
        self.read += 1
        return super().get(key)


@each("of", ["the bytes", "all objects", "nothing"])
def test_a_manifest_is_recalled_only_where_the_etag_is_the_md5_of_its_bytes(candidates: Candidates, of: str) -> None:
    """Of any other store it is read, as it is if anything else was recalled, or it was written again since.

    One that was written by an earlier run is recalled by the etag alone, unless it is not that of its bytes.
    """
    first = candidates.segments[0]
    held = first.base_offset, first.next_base_offset or 0
    store = _Etags(_holding(candidates, held, log_bytes=first.size_bytes).store.url.removeprefix("memory://"))
    (info,) = (info for info in MemoryObjectStore.list(store) if info.key.endswith(".manifest"))
    body = MemoryObjectStore.get(store, info.key)
    digest = f'"{md5(body, usedforsecurity=False).hexdigest()}"'
    etag = {"the bytes": digest, "all objects": '"same"', "nothing": ""}[of]
    store.etag, store.read = etag, 0
    version, later = f"{etag} {info.modified_ms}", f"{etag} {info.modified_ms + 1}"
    seen: list[dict[str, bytes]] = []
    written = f"{etag} "
    assert (written == written_version(body)) == (of == "the bytes")
    read = ({}, {later: body}, {version: b"another"}, {written: b"another"}, {written_version(b"another"): body})
    for recalled in (*read, {version: body}, {written: body}):
        shipped = ShippedTopic(store, Flat(), None, "payments")
        with shipped.recalling(recalled) as used:
            assert remainder(candidates, shipped).already == 1
        seen.append(used)
    assert seen == [{version: body} if of == "the bytes" else {}] * 7
    assert store.read == (len(read) if of == "the bytes" else 7)


def test_other_bytes_at_the_same_offsets_are_of_another_log(candidates: Candidates) -> None:
    first, *others = candidates.segments
    held = _holding(candidates, (first.base_offset, first.next_base_offset or 0), log_bytes=first.size_bytes + 1)
    left = remainder(candidates, held)
    assert left.already == 0
    assert left.candidates.blocking is not None
    assert "bytes of the same offsets" in left.candidates.blocking.detail
    assert "resnap verify" in left.candidates.blocking.hint
    assert left.candidates.segments == tuple(others)
