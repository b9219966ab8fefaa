from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from Crypto.PublicKey import RSA
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.encryption import OVERHEAD_BYTES, KeyRing, RsaKey, WrappedKey, new_cipher
from resnap.storage.errors import ConfigurationError, FormatError
from resnap.storage.key_file import KeyFile
from resnap.storage.layouts.aiven.manifest import (
    AivenManifest,
    IndexRange,
    SegmentMetadata,
    read_manifest,
    write_manifest,
)
from resnap.storage.layouts.aiven.members import object_key, parse_key, segment_id
from resnap.storage.layouts.aiven.pieces import (
    INT_MAX,
    ChunkIndex,
    FixedSizes,
    ListedSizes,
    compress,
    decode_sizes,
    decompress,
    encode_sizes,
    frame_content_size,
    stored_piece,
)
from resnap.storage.log.checkpoints import LeaderEpoch
from resnap.storage.log.names import TopicPartition
from resnap.storage.messages.wire import uuid_text
from tests.cases import each
from tests.fixture_sets import AIVEN

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

    Sets = Callable[[str], FixtureSet]

TOPIC_ID: Final = "lZ6vvmajTWKDBUTV6SQAtQ"
SEGMENT_ID: Final = "-dh9f8BMS4anaUnD8KWf_g"
PAYMENTS: Final = TopicPartition("pay-ments", 42)


def manifests(fixture: FixtureSet) -> list[Path]:
    found = sorted(fixture.remote.rglob("*.rsm-manifest"))
    assert found
    return found


def a_document(**changes: Any) -> dict[str, Any]:
    """Return the document of a manifest as the plugin writes them."""
    return {
        "version": "1",
        "chunkIndex": {"type": "fixed", "originalChunkSize": 4096, "originalFileSize": 10_000,
                       "transformedChunkSize": 4096, "finalTransformedChunkSize": 1808},
        "segmentIndexes": {"offset": {"position": 0, "size": 16}, "timestamp": {"position": 16, "size": 24},
                           "producerSnapshot": {"position": 40, "size": 0}, "leaderEpoch": {"position": 40, "size": 8},
                           "transaction": None},
        "compression": False,
        "remoteLogSegmentMetadata": None,
    } | changes  # fmt: skip


def read(document: object) -> AivenManifest:
    return read_manifest(json.dumps(document).encode())


ids = st.uuids().map(lambda uuid: uuid_text(uuid.bytes))
topic_names = st.text("abzAZ019._-", min_size=1, max_size=60)


# Keys


def test_a_key_is_that_of_the_plugin() -> None:
    key = object_key(PAYMENTS, TOPIC_ID, 1234, SEGMENT_ID, "log", prefix="tier/")
    assert key == f"tier/pay-ments-{TOPIC_ID}/42/00000000000000001234-{SEGMENT_ID}.log"


@given(topic_names, ids, st.integers(0, INT_MAX), st.integers(0, 2**63 - 1), ids)
def test_keys_come_apart_as_they_were_put_together(topic: str, tid: str, number: int, base: int, sid: str) -> None:
    for prefix in ("", "tier/", "a/b/"):
        key = object_key(TopicPartition(topic, number), tid, base, sid, "rsm-manifest", prefix=prefix)
        found = parse_key(key)
        assert found is not None
        assert found.key == key
        assert (found.prefix, found.topic, found.topic_id) == (prefix, topic, tid)
        assert (found.partition, found.base_offset, found.segment_id) == (number, base, sid)


@each(
    "key",
    [
        "",
        f"pay-{TOPIC_ID}/0/00000000000000000000-{SEGMENT_ID}.snapshot",
        f"pay-{TOPIC_ID}/01/00000000000000000000-{SEGMENT_ID}.log",
        f"pay-{TOPIC_ID[1:]}/0/00000000000000000000-{SEGMENT_ID}.log",
        f"-{TOPIC_ID}/0/00000000000000000000-{SEGMENT_ID}.log",
        f"pay-{TOPIC_ID}/0/99999999999999999999-{SEGMENT_ID}.log",
        f"pay-{TOPIC_ID}/{2**31}/00000000000000000000-{SEGMENT_ID}.log",
        f"c/pay/{TOPIC_ID}/0/00000000000000000000-9347e368-7f13-58b2-a80e-cd487a8de498.log",
    ],
)
def test_other_keys_belong_to_no_segment(key: str) -> None:
    assert parse_key(key) is None


def test_every_object_of_the_plugin_has_a_key_of_the_layout(fixture_set: Sets) -> None:
    for name in AIVEN:
        root = fixture_set(name).remote
        for path in root.rglob("*"):
            if path.is_file():
                key = str(path.relative_to(root))
                found = parse_key(key)
                assert found is not None
                assert (found.key, found.prefix) == (key, "tiered/")


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3))
def test_a_segment_id_comes_from_its_identity_and_begins_with_no_dash(identity: dict[str, object]) -> None:
    made = segment_id(identity)
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", made)
    assert made == segment_id(identity)
    assert made != segment_id({**identity, "another": 1})


# Chunks


@pytest.mark.parametrize(
    ("sizes", "encoded"),
    [
        ((), "00000000"),
        ((7,), "00000001 00000007"),
        ((1_000_000, 1_000_010, 1_000_020, 3), "00000004 000f4240 01 00 0a 14 00000003"),
        ((5, 70_000, 1), "00000003 00000005 03 000000 01116b 00000001"),
    ],
)
def test_chunk_sizes_are_encoded_as_the_plugin_does(sizes: tuple[int, ...], encoded: str) -> None:
    assert encode_sizes(sizes) == bytes.fromhex(encoded)
    assert decode_sizes(bytes.fromhex(encoded)) == sizes


@given(st.lists(st.integers(1, INT_MAX), max_size=40))
def test_chunk_sizes_survive_their_encoding(sizes: list[int]) -> None:
    encoded = encode_sizes(sizes)
    assert decode_sizes(encoded) == tuple(sizes)
    with pytest.raises(FormatError):
        decode_sizes(encoded[:-1])
    with pytest.raises(FormatError):
        decode_sizes(encoded + b"\0")


@given(st.integers(1, 50), st.integers(1, 500), st.data())
def test_chunks_cover_a_file_without_a_gap(chunk_size: int, file_size: int, data: st.DataObject) -> None:
    count = -(-file_size // chunk_size)
    if data.draw(st.booleans()):
        stored: FixedSizes | ListedSizes = FixedSizes(count, chunk_size + 28, file_size - (count - 1) * chunk_size + 28)
    else:
        stored = ListedSizes(tuple(data.draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))))
    index = ChunkIndex(chunk_size, file_size, stored)
    at = stored_at = 0
    for chunk in index.chunks():
        assert (chunk.position, chunk.stored_position) == (at, stored_at)
        assert index.at(at) == index.at(at + chunk.size - 1) == chunk
        at, stored_at = at + chunk.size, stored_at + chunk.stored_size
    assert (at, stored_at) == (file_size, index.stored_size)


# Manifests


@pytest.mark.parametrize("name", AIVEN)
def test_manifests_of_the_plugin_are_written_byte_for_byte(name: str, fixture_set: Sets) -> None:
    for path in manifests(fixture_set(name)):
        data = path.read_bytes()
        manifest = read_manifest(data)
        again = write_manifest(manifest)
        if isinstance(manifest.chunks.stored, ListedSizes):
            # How well a list of sizes is compressed is up to the version of zstd.
            data, again = (re.sub(rb'"transformedChunks":"[^"]+"', b"", body) for body in (data, again))
        assert again == data


indexes = st.builds(
    IndexRange, st.integers(0, INT_MAX // 2), st.just(0) | st.integers(OVERHEAD_BYTES + 1, INT_MAX // 2)
)
longs = st.integers(-(2**63), 2**63 - 1)
segments = st.builds(
    SegmentMetadata,
    topic=topic_names,
    topic_id=ids,
    partition=st.integers(0, INT_MAX),
    segment_id=ids,
    start_offset=longs,
    end_offset=longs,
    max_timestamp_ms=longs,
    broker_id=st.integers(-1, INT_MAX),
    event_timestamp_ms=longs,
    leader_epochs=st.dictionaries(st.integers(0, 99), longs, max_size=3).map(
        lambda epochs: tuple(LeaderEpoch(epoch, start) for epoch, start in sorted(epochs.items()))
    ),
)


@st.composite
def any_manifest(draw: st.DrawFn) -> AivenManifest:
    encryption = draw(
        st.none()
        | st.builds(
            WrappedKey,
            st.text(min_size=1, max_size=9).filter(lambda name: name.strip() and ":" not in name),
            st.binary(min_size=1, max_size=300),
            st.binary(max_size=40),
        )
    )
    overhead = 0 if encryption is None else OVERHEAD_BYTES
    chunk_size, file_size = draw(st.integers(1, 1 << 20)), draw(st.integers(0, 1 << 21))
    chunk_size = max(chunk_size, file_size // 50)
    count = -(-file_size // chunk_size)
    is_compressed = draw(st.booleans())
    stored: FixedSizes | ListedSizes
    if is_compressed:
        sizes = st.integers(overhead + 1, 1 << 20)
        stored = ListedSizes(tuple(draw(st.lists(sizes, min_size=count, max_size=count))))
    else:
        last = file_size - (count - 1) * chunk_size + overhead if count else 0
        stored = FixedSizes(count, chunk_size + overhead, last)
    return AivenManifest(
        chunks=ChunkIndex(chunk_size, file_size, stored),
        indexes=draw(
            st.fixed_dictionaries(
                {
                    "offset": indexes,
                    "timestamp": indexes,
                    "producerSnapshot": indexes,
                    "leaderEpoch": indexes,
                    "transaction": st.none() | indexes,
                }
            )
        ),
        compression=is_compressed,
        encryption=encryption,
        segment=draw(st.none() | segments),
    )


@given(any_manifest())
def test_a_manifest_survives_writing(manifest: AivenManifest) -> None:
    assert read_manifest(write_manifest(manifest)) == manifest


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 1},
        {"encryption": None},
        {"remoteLogSegmentMetadata": "anything"},
        {"remoteLogSegmentMetadata": {"startOffset": 1, "more": []}},
        {"chunkIndex": {"type": "fixed", "originalChunkSize": INT_MAX, "originalFileSize": 10_000,
                        "transformedChunkSize": INT_MAX, "finalTransformedChunkSize": 10_000}},
    ],
)  # fmt: skip
def test_what_the_plugin_reads_is_read(changes: dict[str, Any]) -> None:
    assert read(a_document(**changes)).segment is None


def test_the_order_of_fields_and_the_last_one_are_as_they_please() -> None:
    document = a_document()
    del document["remoteLogSegmentMetadata"]
    backwards = dict(reversed(document.items()))
    assert read(backwards) == read(document) == read(a_document())


GARBAGE: Final[dict[str, Any]] = {
    "an unknown field": a_document(checksum="x"),
    "an unknown field of an index": a_document(
        segmentIndexes=a_document()["segmentIndexes"] | {"offset": {"position": 0, "size": 1, "crc": 2}}
    ),
    "an unknown index": a_document(segmentIndexes=a_document()["segmentIndexes"] | {"bloom": None}),
    "no transaction index, not even null": a_document(
        segmentIndexes={k: v for k, v in a_document()["segmentIndexes"].items() if k != "transaction"}
    ),
    "no snapshot": a_document(segmentIndexes=a_document()["segmentIndexes"] | {"producerSnapshot": None}),
    "no version": {k: v for k, v in a_document().items() if k != "version"},
    "another version": a_document(version="2"),
    "a version that is a truth": a_document(version=True),
    "no compression": {k: v for k, v in a_document().items() if k != "compression"},
    "a word for a truth": a_document(compression="false"),
    "an unknown chunk index": a_document(chunkIndex=a_document()["chunkIndex"] | {"type": "none"}),
    "both kinds of chunk index": a_document(chunkIndex=a_document()["chunkIndex"] | {"transformedChunks": ""}),
    "chunks of nothing": a_document(chunkIndex=a_document()["chunkIndex"] | {"originalChunkSize": 0}),
    "a size that is no number": a_document(chunkIndex=a_document()["chunkIndex"] | {"originalFileSize": "10000"}),
    "a size with a fraction": a_document(chunkIndex=a_document()["chunkIndex"] | {"originalFileSize": 1e4}),
    "a size that is no int": a_document(chunkIndex=a_document()["chunkIndex"] | {"originalFileSize": 2**31}),
    "two thousand million chunks": a_document(
        chunkIndex={"type": "fixed", "originalChunkSize": 1, "originalFileSize": INT_MAX,
                    "transformedChunkSize": 1, "finalTransformedChunkSize": 1}
    ),
    "chunks of other sizes than the file's": a_document(
        chunkIndex=a_document()["chunkIndex"] | {"finalTransformedChunkSize": 1809}
    ),
    "a plain file in chunks that are longer": a_document(
        chunkIndex=a_document()["chunkIndex"] | {"transformedChunkSize": 4097}
    ),
    "sizes in no frame": a_document(
        compression=True,
        chunkIndex={"type": "variable", "originalChunkSize": 9, "originalFileSize": 9,
                    "transformedChunks": base64.b64encode(b"abcdefghij").decode()},
    ),
    "sizes of another number of chunks": a_document(
        compression=True,
        chunkIndex={"type": "variable", "originalChunkSize": 9, "originalFileSize": 19,
                    "transformedChunks": base64.b64encode(compress(encode_sizes((5, 5)))).decode()},
    ),
    "a list of sizes without compression": a_document(
        chunkIndex={"type": "variable", "originalChunkSize": 9, "originalFileSize": 9,
                    "transformedChunks": base64.b64encode(compress(encode_sizes((9,)))).decode()},
    ),
    "two colons": a_document(encryption={"dataKey": "a:b:YWJj", "aad": "YWJj"}),
    "a key pair without a name": a_document(encryption={"dataKey": " :YWJj", "aad": "YWJj"}),
    "no base64": a_document(encryption={"dataKey": "a:YWJj", "aad": "~~~"}),
    "a list": [a_document()],
    "a number": 1,
}  # fmt: skip


@each("what", GARBAGE)
def test_what_no_broker_could_read_is_refused(what: str) -> None:
    with pytest.raises(FormatError):
        read(GARBAGE[what])


@each(
    "data",
    [
        b"",
        b"{",
        b"\xff{}",
        json.dumps(a_document()).encode() + b"{}",
        json.dumps(a_document()).replace('"compression": false', '"compression": false, "compression": false').encode(),
        json.dumps(a_document()).replace("4096", "NaN").encode(),
        json.dumps(a_document()).replace("4096", "9" * 5000).encode(),
        b"[" * 100_000,
    ],
)
def test_invalid_json_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        read_manifest(data)


def test_nothing_is_written_that_could_not_be_read() -> None:
    manifest = read(a_document())
    wrong = AivenManifest(
        chunks=ChunkIndex(4096, 10_000, FixedSizes(3, 4096, 1807)),
        indexes=manifest.indexes,
        compression=False,
        encryption=None,
        segment=None,
    )
    with pytest.raises(ValueError, match="expected 1808, found 1807"):
        write_manifest(wrong)


# Pieces


@given(st.binary(max_size=70_000) | st.integers(0, 1 << 20).map(bytes))
def test_a_frame_states_how_much_it_holds(data: bytes) -> None:
    frame = compress(data)
    assert frame_content_size(frame) == len(data)
    assert decompress(frame, len(data)) == data
    with pytest.raises(FormatError):
        decompress(frame, len(data) + 1)


@given(st.binary(max_size=60), st.sampled_from([b"", b"\x28\xb5\x2f\xfd"]))
def test_no_untrusted_frame_takes_more_than_it_may(data: bytes, magic: bytes) -> None:
    with pytest.raises(FormatError):
        decompress(magic + data, 1 << 20)


def test_a_frame_that_is_too_short_for_its_stated_size_takes_no_memory() -> None:
    told = (2**31 - 1).to_bytes(4, "little")
    with pytest.raises(FormatError, match="at most"):
        decompress(b"\x28\xb5\x2f\xfd\xa0" + told + bytes(40), 2**31 - 1)


@pytest.fixture(scope="session")
def pair(fixture_set: Sets) -> tuple[RsaKey, KeyRing]:
    """The plugin's own keys: the public one, and what opens."""
    keys = fixture_set("kafka-3.9.1-aiven-encrypted").root / "keys"
    private = RsaKey("key1", KeyFile.read(keys / "private.pem"))
    return RsaKey("key1", KeyFile.read(keys / "public.pem")), KeyRing((private,))


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_an_envelope_opens_for_its_key_alone(pair: tuple[RsaKey, KeyRing], size: int) -> None:
    public, ring = pair
    cipher, wrapped = new_cipher(public)
    piece = stored_piece(bytes(size), "log:0", is_compressed=False, cipher=cipher)
    assert len(piece) == size + OVERHEAD_BYTES
    assert piece == stored_piece(bytes(size), "log:0", is_compressed=False, cipher=cipher)
    ivs = {cipher.seal(body, place)[:12] for body in (bytes(size), b"other") for place in ("log:0", "log:1", "log:10")}
    assert len(ivs) == 6, "each piece has an IV of its own"
    opened = ring.cipher(wrapped)
    assert opened.open(piece) == bytes(size)
    for at in (0, 12, len(piece) - 1):
        damaged = bytearray(piece)
        damaged[at] ^= 1
        with pytest.raises(FormatError, match="tag"):
            opened.open(bytes(damaged))
    with pytest.raises(FormatError, match="tag"):
        ring.cipher(replace(wrapped, aad=b"other" + cipher.aad)).open(piece)
    with pytest.raises(FormatError, match="28 bytes or more"):
        opened.open(piece[:27])


def test_a_private_key_is_read_once_for_all_segments(
    pair: tuple[RsaKey, KeyRing], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, wrapped = new_cipher(pair[0])
    pair[1].cipher(wrapped)
    monkeypatch.setattr(RSA, "import_key", lambda _: pytest.fail("its primes are tested again"))
    pair[1].cipher(wrapped)


def test_a_key_that_is_not_at_hand_is_asked_for_by_name(pair: tuple[RsaKey, KeyRing]) -> None:
    _, wrapped = new_cipher(pair[0])
    with pytest.raises(ConfigurationError, match="key pair 'key1'; the given private keys are: none"):
        KeyRing().cipher(wrapped)
    with pytest.raises(ConfigurationError, match="does not open the segment's data key"):
        pair[1].cipher(WrappedKey("key1", bytes(256), b""))


def test_an_invalid_key_is_reported_without_showing_it(pair: tuple[RsaKey, KeyRing], tmp_path: Path) -> None:
    (tmp_path / "cut.pem").write_bytes(pair[1].keys[0].pem.content()[:-400])
    (tmp_path / "word.pem").write_bytes(b"hunter2")
    halves = [pair[0], *(RsaKey("key1", KeyFile.read(tmp_path / name)) for name in ("cut.pem", "word.pem"))]
    _, wrapped = new_cipher(pair[0])
    for half in halves:
        with pytest.raises(ConfigurationError, match="private key of 'key1' cannot be used") as caught:
            KeyRing((half,)).cipher(wrapped)
        assert "hunter2" not in str(caught.value)
        assert "hunter2" not in repr(half)


def test_nothing_that_holds_a_key_shows_it(pair: tuple[RsaKey, KeyRing]) -> None:
    public, ring = pair
    cipher, _ = new_cipher(public)
    assert "PRIVATE" not in repr(ring)
    assert repr(cipher) == f"SegmentCipher(aad={cipher.aad!r})"
