from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError, ObjectExistsError, UsageError
from resnap.storage.json_values import json_checksum
from resnap.storage.log.names import TopicPartition
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.cluster_state.group_offsets import CommittedOffset, OffsetsPartition
from resnap.tiering.cluster_state.state import (
    ClusterState,
    KnownMetadata,
    KnownTopic,
    delete_older,
    keep_state,
    merge_documents,
    newest_states,
    read_state,
    state_key,
    write_state,
)
from resnap.tiering.controller.metadata.image import ConfigResource
from resnap.tiering.controller.metadata.records import AccessControlEntryRecord, UserScramCredentialRecord

TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
BYTES: Final = st.binary(max_size=12)
INT8, INT32, INT64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (7, 31, 63))
NODE: Final = st.integers(0, 2**31 - 1)
MAP: Final = st.dictionaries(TEXT, TEXT, min_size=1, max_size=3)
ENTRIES: Final = st.builds(
    AccessControlEntryRecord, id=TEXT, resource_type=INT8, resource_name=TEXT, pattern_type=INT8, principal=TEXT,
    host=TEXT, operation=INT8, permission_type=INT8,
)  # fmt: skip
CREDENTIALS: Final = st.builds(
    UserScramCredentialRecord, name=TEXT, mechanism=INT8, salt=BYTES, stored_key=BYTES, server_key=BYTES,
    iterations=INT32,
)  # fmt: skip
METADATA: Final = st.builds(
    KnownMetadata,
    offset=INT64,
    topics=st.dictionaries(TEXT, st.builds(KnownTopic, topic_id=TEXT, partitions=INT32), max_size=3),
    configs=st.dictionaries(st.builds(ConfigResource, INT8, TEXT), MAP, max_size=3),
    quotas=st.dictionaries(
        st.lists(st.tuples(TEXT, TEXT | st.none()), min_size=1, max_size=2).map(tuple),
        st.dictionaries(TEXT, st.floats(allow_nan=False), min_size=1, max_size=2),
        max_size=2,
    ),
    access_control_entries=st.lists(ENTRIES, max_size=2).map(tuple),
    scram_credentials=st.lists(CREDENTIALS, max_size=2).map(tuple),
    secrets_left_out=INT32,
    scram_left_out=st.lists(st.tuples(TEXT, INT8), max_size=2).map(tuple),
)
OFFSETS: Final = st.builds(
    OffsetsPartition,
    partition=INT32,
    end_offset=INT64,
    groups=st.dictionaries(
        TEXT,
        st.dictionaries(
            st.builds(TopicPartition, TEXT, INT32), st.builds(CommittedOffset, INT64, INT32, TEXT), max_size=3
        ),
        max_size=3,
    ),
    share_groups=st.lists(TEXT, max_size=2).map(tuple),
)
STATES: Final = st.builds(
    ClusterState,
    cluster_id=TEXT,
    node_id=NODE,
    taken_ms=st.integers(0, 2**40),
    metadata=METADATA | st.none(),
    offsets=st.lists(OFFSETS, max_size=3).map(tuple),
)
ID: Final = "AAAAAAAAQACAAAAAAAAAAQ"
EMPTY: Final = ClusterState(cluster_id=ID, node_id=1, taken_ms=1_700_000_000_123, metadata=None, offsets=())


def kept(store: MemoryObjectStore, state: ClusterState) -> str:
    keep_state(store, state_key(state), write_state(state))
    return state_key(state)


def knows(partition: int, end_offset: int) -> OffsetsPartition:
    return OffsetsPartition(partition=partition, end_offset=end_offset, groups={})


@given(STATES)
def test_every_state_is_read_back(state: ClusterState) -> None:
    assert read_state(write_state(state)) == state


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"[]", b'{"version":"1"}', b'{"version":1}', b'{"version":2}', write_state(EMPTY)[:-2],
     write_state(EMPTY).replace(b'"version":1', b'"version": 1'), write_state(EMPTY).replace(b"[]", b"[{}]"),
     write_state(EMPTY).replace(b'"nodeId":1', b'"nodeId":true')],
)  # fmt: skip
def test_what_is_no_state_is_refused(document: bytes) -> None:
    with pytest.raises(FormatError, match="state of a cluster"):
        read_state(document)


@given(STATES, st.data())
def test_no_changed_bit_is_taken_for_another_state(state: ClusterState, data: st.DataObject) -> None:
    document = bytearray(write_state(state))
    document[data.draw(st.integers(0, len(document) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FormatError):
        read_state(bytes(document))


def test_a_document_is_plain_json() -> None:
    assert json.loads(write_state(EMPTY)) == {
        "version": 1, "clusterId": ID, "nodeId": 1, "takenMs": 1_700_000_000_123, "metadata": None, "offsets": [],
        "crc32c": "777e5602",
    }  # fmt: skip


def test_a_document_without_share_groups_and_names_of_users_is_read() -> None:
    metadata = KnownMetadata(offset=9, topics={}, configs={}, quotas={}, access_control_entries=())
    state = replace(EMPTY, offsets=(knows(0, 10),), metadata=metadata)
    document = json.loads(write_state(state))
    del document["offsets"][0]["shareGroups"], document["metadata"]["scramLeftOut"], document["crc32c"]
    document["crc32c"] = json_checksum(document)
    assert read_state(json.dumps(document, separators=(",", ":")).encode()) == state


def test_each_partition_is_taken_from_the_node_that_knows_most_of_it() -> None:
    old = replace(EMPTY, offsets=(knows(0, 10), knows(1, 7)))
    new = replace(EMPTY, node_id=2, taken_ms=EMPTY.taken_ms + 1, offsets=(knows(1, 5), knows(2, 1)))
    for states in ((old, new), (new, old)):
        assert merge_documents(states).offsets == (knows(0, 10), knows(1, 7), knows(2, 1))


def test_metadata_are_taken_from_the_node_that_has_read_most_of_them() -> None:
    def known(offset: int) -> KnownMetadata:
        return KnownMetadata(offset=offset, topics={}, configs={}, quotas={}, access_control_entries=())

    later = replace(EMPTY, node_id=2, taken_ms=EMPTY.taken_ms + 1)
    assert merge_documents([replace(EMPTY, metadata=known(9)), replace(later, metadata=known(5))]).metadata == known(9)
    assert merge_documents([replace(EMPTY, metadata=known(9)), later]).metadata == known(9)


def test_of_equal_metadata_those_with_their_secrets_are_taken() -> None:
    told, read = (
        KnownMetadata(offset=9, topics={}, configs={}, quotas={}, access_control_entries=(), secrets_left_out=secrets)
        for secrets in (1, 0)
    )
    states = [replace(EMPTY, node_id=None, metadata=told), replace(EMPTY, metadata=read)]
    assert merge_documents(states).metadata == merge_documents(states[::-1]).metadata == read


def test_credentials_are_taken_from_an_older_state_of_the_users_that_there_still_are() -> None:
    def known(offset: int, **own: Any) -> ClusterState:
        metadata = KnownMetadata(offset=offset, topics={}, configs={}, quotas={}, access_control_entries=(), **own)
        return replace(EMPTY, metadata=metadata)

    older, newer, removed = (
        UserScramCredentialRecord(name=name, mechanism=1, salt=salt, stored_key=b"", server_key=b"", iterations=1)
        for name, salt in (("alice", b"1"), ("alice", b"2"), ("bob", b"3"))
    )
    told = known(9, secrets_left_out=3, scram_left_out=(("alice", 1), ("carol", 1)))
    states = [told, known(5, scram_credentials=(newer,)), known(3, scram_credentials=(older, removed))]
    metadata = merge_documents(states).metadata
    assert metadata is not None
    assert (metadata.offset, metadata.scram_credentials, metadata.secrets_left_out) == (9, (newer,), 2)
    assert (metadata.scram_left_out, metadata.scram_older) == ((("carol", 1),), ("alice",))


def test_a_state_is_never_overwritten() -> None:
    store = MemoryObjectStore("a")
    assert kept(store, EMPTY) == f".resnap/cluster/{ID}/20231114T221320123Z-1.json"
    with pytest.raises(ObjectExistsError):
        kept(store, replace(EMPTY, offsets=(knows(0, 1),)))
    assert newest_states(store, ()) == [(state_key(EMPTY), EMPTY)]


def test_the_newest_of_each_node_is_read_and_older_ones_can_be_deleted() -> None:
    store = MemoryObjectStore("b")
    moments = [replace(EMPTY, taken_ms=EMPTY.taken_ms + minute * 60_000) for minute in range(4)]
    other = replace(EMPTY, node_id=11)
    keys = [kept(store, state) for state in (*moments, other)]
    assert [state for _, state in newest_states(store, [ID])] == [moments[-1], other]
    assert delete_older(store, keys[3], 3) == 1
    assert {info.key for info in store.list()} == {*keys[1:]}
    assert delete_older(store, keys[3], 3) == 0


def test_states_of_another_cluster_are_not_taken() -> None:
    store = MemoryObjectStore("c")
    other = replace(EMPTY, cluster_id="B" * 22)
    for state in (EMPTY, other):
        kept(store, state)
    assert [state for _, state in newest_states(store, [other.cluster_id])] == [other]
    assert newest_states(store, ["C" * 22]) == []
    with pytest.raises(UsageError, match="states of the clusters"):
        newest_states(store, ())
