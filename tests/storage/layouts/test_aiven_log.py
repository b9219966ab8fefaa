"""What the plugin tiered is read where it lies, and is what the broker had on its disk."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.encryption import KeyRing, RsaKey
from resnap.storage.errors import ConfigurationError, FormatError, ObjectNotFoundError, UsageError
from resnap.storage.key_file import KeyFile
from resnap.storage.layouts.aiven.members import ChunkedReader, Member, member_of
from resnap.storage.layouts.aiven.opening import stored_segment
from resnap.storage.log.log_dir import load_partition_dir
from resnap.storage.log.names import TopicPartition
from resnap.storage.readers import BytesReader
from resnap.storage.sources.files import PLAIN, Sources
from resnap.storage.sources.log_dirs import open_source
from resnap.storage.stores.memory import MemoryObjectStore
from tests.fixture_sets import AIVEN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.storage.log.log_dir import LogDir
    from resnap.storage.log.partition_dir import Segment
    from tests.fixture_sets import FixtureSet

    Sets = Callable[[str], FixtureSet]

ENCRYPTED: Final = "kafka-3.9.1-aiven-encrypted"
ZSTD: Final = "kafka-3.9.1-aiven-zstd"


def readers_of(fixture: FixtureSet) -> Sources:
    """Return what reads a set: with its private key, where it has one."""
    private = fixture.root / "keys" / "private.pem"
    return Sources(keys=KeyRing((RsaKey("key1", KeyFile.read(private)),))) if private.exists() else PLAIN


def in_memory(remote: Path) -> MemoryObjectStore:
    """Return a store, which is not a directory, with the objects below ``remote``."""
    store = MemoryObjectStore(f"aiven-{os.urandom(8).hex()}")
    for path in remote.rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(remote)), path.read_bytes())
    return store


def opened(fixture: FixtureSet, *, is_remote: bool = False) -> tuple[LogDir, Sources]:
    sources = readers_of(fixture)
    url = f"{in_memory(fixture.remote).url}/tiered" if is_remote else f"{fixture.remote.as_uri()}/tiered"
    return open_source(url, sources), sources


def check_equal(segment: Segment, theirs: Segment, sources: Sources) -> int:
    """Compare every file of a segment with that on the broker's disk; return how many there were."""
    files = {"log": theirs.path} | {kind: theirs.sibling(kind) for kind in ("index", "timeindex", "txnindex")}
    compared = 0
    for kind, path in files.items():
        locator = segment.path if kind == "log" else segment.sibling(kind)
        try:
            expected = PLAIN.read(path)
        except Exception:  # noqa: BLE001 - the broker has none
            with pytest.raises(ObjectNotFoundError):
                sources.read(locator)
            continue
        assert sources.read(locator) == expected
        assert sources.read_range(locator, 3, 7) == expected[3:7]
        assert sources.facts(locator).size_bytes == len(expected)
        with sources.open_body(locator) as body:
            assert body.read() == expected
        compared += 1
    return compared


@pytest.mark.parametrize("is_remote", [False, True], ids=["directory", "store"])
@pytest.mark.parametrize("name", AIVEN)
def test_every_file_of_a_tiered_segment_is_that_of_the_brokers_disk(
    name: str, is_remote: bool, fixture_set: Sets
) -> None:
    fixture = fixture_set(name)
    log_dir, sources = opened(fixture, is_remote=is_remote)
    assert not log_dir.problems
    assert log_dir.broker_id == 1
    compared = 0
    for partition in log_dir.partitions:
        broker = load_partition_dir(fixture.data / str(partition.topic_partition))
        theirs = {segment.base_offset: segment for segment in broker.segments}
        assert partition.topic_id == broker.topic_id
        for segment in partition.segments:
            assert segment.next_base_offset == theirs[segment.base_offset].next_base_offset
            assert segment.size_bytes == theirs[segment.base_offset].size_bytes
            compared += check_equal(segment, theirs[segment.base_offset], sources)
        for snapshot in partition.snapshots:
            expected = fixture.expected / str(partition.topic_partition) / f"{snapshot.offset:020d}.snapshot"
            assert sources.read(snapshot.path) == expected.read_bytes()
            assert snapshot.size_bytes == expected.stat().st_size
    assert compared > 20


@pytest.fixture(scope="module")
def chunked(fixture_set: Sets) -> dict[str, tuple[ChunkedReader, bytes]]:
    """A segment of each set that is stored in pieces, opened, and its bytes."""
    made = {}
    for name in (ENCRYPTED, ZSTD):
        log_dir, sources = opened(fixture_set(name))
        member = member_of(log_dir.partitions[0].segments[1].path)
        assert member is not None
        stored = BytesReader(sources.read(f"{member.stem}.log"))
        reader = stored_segment(sources, member.stem).open_log(stored, member.locator)
        assert isinstance(reader, ChunkedReader)
        made[name] = (reader, sources.read(member.locator))
    return made


@given(data=st.data())
@pytest.mark.parametrize("name", [ENCRYPTED, ZSTD])
def test_any_range_of_a_segment_in_pieces_is_that_of_the_segment(
    name: str, chunked: dict[str, tuple[ChunkedReader, bytes]], data: st.DataObject
) -> None:
    reader, body = chunked[name]
    assert reader.size_bytes == len(body)
    position = data.draw(st.integers(0, len(body) + 10))
    length = data.draw(st.integers(0, len(body) + 10))
    assert reader.read(position, length) == body[position : position + length]


def test_only_the_chunks_that_are_asked_for_are_fetched_and_two_are_kept(fixture_set: Sets) -> None:
    log_dir, sources = opened(fixture_set(ZSTD))
    member = member_of(log_dir.partitions[0].segments[0].path)
    assert member is not None
    segment = stored_segment(sources, member.stem)
    fetched: list[tuple[int, int]] = []

    class Watched(BytesReader):
        def read(self, position: int, length: int) -> bytes:
            fetched.append((position, length))
            return super().read(position, length)

    reader = segment.open_log(Watched(sources.read(f"{member.stem}.log")), member.locator)
    chunks = list(segment.manifest.chunks.chunks())
    for position in (4096 * 2, 4096 * 2 + 61, 4096 * 3 - 1):
        reader.read(position, 1)
    assert fetched == [(chunks[2].stored_position, chunks[2].stored_size)]
    reader.read(4096 * 3 - 5, 61)
    reader.read(4096 * 2, 61)
    assert [at for at, _ in fetched] == [chunks[2].stored_position, chunks[3].stored_position]
    reader.read(0, 1)
    reader.read(4096 * 2, 1)
    assert len(fetched) == 3


def test_one_topic_or_one_partition_of_a_store_is_a_source_too(fixture_set: Sets) -> None:
    root = f"{fixture_set(ZSTD).remote.as_uri()}/tiered"
    (partition, other) = open_source(root, PLAIN).partitions
    alone = open_source(str(partition.path), PLAIN)
    assert alone.partitions == (partition,)
    topic = open_source(str(partition.path.parent), PLAIN)
    assert topic.partitions == (partition, other)
    wanted = open_source(root, PLAIN, topics=lambda one: one == other.topic_partition)
    assert wanted.partitions == (other,)


def test_a_key_prefix_without_a_slash_is_separated_from_the_topic_by_the_manifest(
    fixture_set: Sets, tmp_path: Path
) -> None:
    (topic,) = (fixture_set(ZSTD).remote / "tiered").iterdir()
    shutil.copytree(topic, tmp_path / f"tier{topic.name}")
    log_dir = open_source(tmp_path.as_uri(), PLAIN)
    assert not log_dir.problems
    assert [str(partition.topic_partition) for partition in log_dir.partitions] == ["payments-0", "payments-1"]


@pytest.fixture
def copy(fixture_set: Sets, tmp_path: Path) -> Path:
    """The objects of the zstd set, to be changed."""
    return shutil.copytree(fixture_set(ZSTD).remote / "tiered", tmp_path / "tiered")


def objects(copy: Path, suffix: str) -> list[Path]:
    return sorted(copy.glob(f"*/0/*.{suffix}"))


def test_a_segment_without_a_manifest_is_not_there(copy: Path) -> None:
    objects(copy, "rsm-manifest")[-1].unlink()
    log_dir = open_source(copy.as_uri(), PLAIN)
    assert not log_dir.problems
    assert [len(partition.segments) for partition in log_dir.partitions] == [3, 4]


@pytest.mark.parametrize("suffix", ["log", "indexes"])
def test_an_object_that_is_gone_or_shorter_makes_its_partition_a_problem(copy: Path, suffix: str) -> None:
    path = objects(copy, suffix)[1]
    path.write_bytes(path.read_bytes()[:-1])
    for change in (lambda: None, path.unlink):
        change()
        log_dir = open_source(copy.as_uri(), PLAIN)
        assert [partition.topic_partition for partition in log_dir.partitions] == [TopicPartition("payments", 1)]
        assert path.name in str(log_dir.problems[0].error)


def test_a_gap_and_an_overlap_are_reported(copy: Path) -> None:
    for path in copy.glob("*/0/*"):
        if path.name.startswith(f"{130:020d}"):
            path.unlink()
    (problem,) = open_source(copy.as_uri(), PLAIN).problems
    assert "[0, 130) and [261, 397) leave a gap" in str(problem.error)


def test_of_two_copies_of_the_same_offsets_the_later_one_is_taken(copy: Path) -> None:
    manifest = objects(copy, "rsm-manifest")[0]
    old = manifest.name[21:43]
    new = "A" * 22
    for path in copy.glob(f"*/0/*{old}*"):
        path.with_name(path.name.replace(old, new)).write_bytes(path.read_bytes())
    document = json.loads(manifest.read_text())
    document["remoteLogSegmentMetadata"]["remoteLogSegmentId"]["id"] = new
    for later, taken in ((1, new), (-1, old)):
        changed = json.loads(json.dumps(document))
        changed["remoteLogSegmentMetadata"]["eventTimestampMs"] += later
        manifest.with_name(manifest.name.replace(old, new)).write_text(json.dumps(changed))
        segment = open_source(copy.as_uri(), PLAIN).partitions[0].segments[0]
        assert taken in segment.path


def test_a_manifest_of_another_segment_or_of_none_is_refused(copy: Path) -> None:
    first, second, *_ = objects(copy, "rsm-manifest")
    document = json.loads(first.read_text())
    for strange in (second.read_text(), json.dumps(document | {"remoteLogSegmentMetadata": None}), "{}"):
        first.write_text(strange)
        (problem,) = open_source(copy.as_uri(), PLAIN).problems
        assert isinstance(problem.error, FormatError)
        assert problem.error.file is not None
        assert problem.error.file.endswith(first.name)


@pytest.mark.parametrize("name", [ENCRYPTED, ZSTD])
def test_a_damaged_chunk_is_reported_with_its_object(name: str, fixture_set: Sets, tmp_path: Path) -> None:
    fixture = fixture_set(name)
    copy = shutil.copytree(fixture.remote / "tiered", tmp_path / "tiered")
    draw = random.Random(5)
    path = objects(copy, "log")[0]
    good = path.read_bytes()
    log_dir = open_source(copy.as_uri(), PLAIN)
    segment, sources = log_dir.partitions[0].segments[0], readers_of(fixture)
    body = sources.read(segment.path)
    for _ in range(30):
        bad = bytearray(good)
        bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        path.write_bytes(bad)
        try:
            found = sources.read(segment.path)
        except FormatError as error:
            assert str(error.file).endswith(path.name)  # noqa: PT017 - zstd has no checksum, so not all is noticed
        else:
            assert name == ZSTD
            assert len(found) == len(body)


def test_without_its_key_a_segment_stays_shut(fixture_set: Sets) -> None:
    fixture = fixture_set(ENCRYPTED)
    log_dir = open_source(f"{fixture.remote.as_uri()}/tiered", PLAIN)
    segment = log_dir.partitions[0].segments[0]
    with pytest.raises(ConfigurationError, match="key pair 'key1'"):
        PLAIN.read(segment.path)


def test_what_opens_a_segment_travels_to_other_processes(fixture_set: Sets) -> None:
    log_dir, sources = opened(fixture_set(ENCRYPTED))
    segment = log_dir.partitions[0].segments[0]
    assert pickle.loads(pickle.dumps(sources)).read(segment.path) == sources.read(segment.path)  # noqa: S301 - our own
    assert "PRIVATE" not in repr(sources)


def test_other_locators_are_not_files_of_a_segment() -> None:
    stem = "s3://b/p/t-AAAAAAAAAAAAAAAAAAAAAA/0/00000000000000000000-AAAAAAAAAAAAAAAAAAAAAA"
    assert member_of(f"{stem}#.log") == Member(stem, "log")
    for locator in (f"{stem}.log", f"{stem}#.lock", f"{stem[:-1]}#.log", "/data/t-0/00000000000000000000.log"):
        assert member_of(locator) is None


def test_a_url_above_the_prefix_is_a_usage_error(fixture_set: Sets) -> None:
    store = in_memory(fixture_set(ZSTD).remote)
    with pytest.raises(UsageError, match="holds neither"):
        open_source(store.url, PLAIN)
