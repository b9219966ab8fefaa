from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.errors import FormatError
from resnap.storage.log.properties import (
    MetaProperties,
    PartitionMetadata,
    read_meta_properties,
    read_partition_metadata,
    read_properties,
    write_partition_metadata,
)
from tests.cases import each
from tests.logs.log_writer import write_meta_properties, write_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet

TOPIC_ID = "4b5LHVYGSd6hZLkq1gTyOw"
META_V0 = b"#\n#Sat Nov 21 01:39:12 UTC 2026\nbroker.id=1\nversion=0\ncluster.id=z5W3VT5QSCibauYNT3y0NQ\n"
META_V1 = (
    b"#\n#Sat Nov 21 01:48:52 UTC 2026\nnode.id=1\ndirectory.id=fGe2UeJQWYb1M7Yg59iqtg\nversion=1\n"
    b"cluster.id=AAAAAAAAQACAAAAAAAAAAQ\n"
)

uuids = st.binary(min_size=16, max_size=16).map(lambda raw: base64.urlsafe_b64encode(raw).decode().rstrip("="))


@each(
    ("text", "expected"),
    [
        (b"a=b", {"a": "b"}),
        (b"a:b\nc d\ne\tf\ng\fh\r\ni=j\rk=l", {"a": "b", "c": "d", "e": "f", "g": "h", "i": "j", "k": "l"}),
        (b"  a  =  b  ", {"a": "b  "}),
        (b"a = = b", {"a": "= b"}),
        (b"a :=b", {"a": "=b"}),
        (b"a\nb=\nc:", {"a": "", "b": "", "c": ""}),
        (b"=a\n", {"": "a"}),
        (b"# x=1\n ! y=2\n\n \t\f\nz=3#4", {"z": "3#4"}),
        (b"# a comment does not go on \\\na=1", {"a": "1"}),
        (b"a=1\nb=2\na=3", {"a": "3", "b": "2"}),
        (b"a=1,\\\n   2,\\\r\n\t3", {"a": "1,2,3"}),
        (b"a\\\n b=1", {"ab": "1"}),
        (b"a=1\\\n#2", {"a": "1#2"}),
        (b"a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        (b"a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        (b"a=1\\", {"a": "1"}),
        (b"\\\nb=2", {"b": "2"}),
        (b"\\\n#b=2\nc=3", {"c": "3"}),
        (b"a=1\n\\", {"a": "1"}),
        (b"a\\ b\\=c\\:d=e", {"a b=c:d": "e"}),
        (b"a=\\t\\n\\r\\f\\\\\\q\\=", {"a": "\t\n\r\f\\q="}),
        (b"\\u0061=\\u00e9\\u20AC", {"a": "\u00e9\u20ac"}),
        (b"a=\\ud83d\\ude00", {"a": "\U0001f600"}),
        (b"a=\\ud83d", {"a": "\ud83d"}),
        (b"a=\xe9\x85", {"a": "\u00e9\u0085"}),
        (b"", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: bytes, expected: dict[str, str]) -> None:
    assert read_properties(text) == expected


@pytest.mark.parametrize("escape", [b"\\u", b"\\u12", b"\\u12g4", b"\\uuuuu"])
def test_a_malformed_unicode_escape_is_refused_with_the_place_of_its_line(escape: bytes) -> None:
    with pytest.raises(FormatError, match="property escape") as caught:
        read_properties(b"# first\na=1\nb=" + escape + b"\n")
    assert caught.value.position == 12


def test_a_continued_entry_is_placed_where_it_begins() -> None:
    with pytest.raises(FormatError) as caught:
        read_properties(b"a=1\nb=2,\\\n  \\u00")
    assert caught.value.position == 4


@given(st.dictionaries(st.text(), st.text()))
def test_properties_round_trip(properties: dict[str, str]) -> None:
    assert read_properties(write_properties(properties)) == properties


def test_properties_are_written_as_java_writes_them() -> None:
    written = write_properties({"a b": " c d", "#\u00e9": "=\U0001f600\t"})
    assert written == b"a\\ b=\\ c d\n\\#\\u00E9=\\=\\uD83D\\uDE00\\t\n"


def test_meta_properties_of_a_zookeeper_broker_name_broker_and_cluster() -> None:
    assert read_meta_properties(META_V0) == MetaProperties(
        version=0, node_id=1, cluster_id="z5W3VT5QSCibauYNT3y0NQ", directory_id=None
    )


def test_meta_properties_of_a_kraft_broker_name_node_cluster_and_directory() -> None:
    assert read_meta_properties(META_V1) == MetaProperties(
        version=1, node_id=1, cluster_id="AAAAAAAAQACAAAAAAAAAAQ", directory_id="fGe2UeJQWYb1M7Yg59iqtg"
    )


def test_meta_properties_of_the_first_brokers_may_name_nothing() -> None:
    nothing = MetaProperties(version=0, node_id=None, cluster_id=None, directory_id=None)
    assert read_meta_properties(b"version=0\nnode.id=9\n") == nothing


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        (b"", 0, "expected version, broker.id or cluster.id, found none of them"),
        (b"\0\xff garbage\n", 0, "found none of them"),
        (b"#\nversion=2\n", 2, "expected 0 or 1, found '2'"),
        (b"version=1\ncluster.id=x\n", 23, "expected node.id before the end"),
        (b"version=1\nnode.id=1\n", 20, "expected cluster.id before the end"),
        (b"version=0\nbroker.id=one\n", 10, "broker.id at byte 10: expected an integer of 32 bits, found 'one'"),
        (b"broker.id=2147483648\n", 0, "an integer of 32 bits"),
        (b"broker.id=1\ndirectory.id=short\n", 12, "22 characters of base64url"),
    ],
)
def test_meta_properties_that_kafka_refuses_are_refused(text: bytes, position: int, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_meta_properties(text)
    assert caught.value.position == position


@given(
    st.one_of(
        st.builds(
            MetaProperties,
            version=st.just(0),
            node_id=st.none() | st.integers(0, 2**31 - 1),
            cluster_id=st.none() | st.text(),
            directory_id=st.none() | uuids,
        ),
        st.builds(
            MetaProperties,
            version=st.just(1),
            node_id=st.integers(0, 2**31 - 1),
            cluster_id=st.text(),
            directory_id=st.none() | uuids,
        ),
    )
)
def test_meta_properties_round_trip(meta: MetaProperties) -> None:
    assert read_meta_properties(write_meta_properties(meta)) == meta


def test_partition_metadata_of_a_real_broker_is_written_back_byte_for_byte(
    fixture_set: Callable[[str], FixtureSet],
) -> None:
    files = [path.read_bytes() for path in fixture_set("kafka-3.9.1-kraft").data.glob("*/partition.metadata")]
    assert files
    assert [write_partition_metadata(read_partition_metadata(text)) for text in files] == files


def test_partition_metadata_names_the_topic_id() -> None:
    text = f"version: 0\ntopic_id: {TOPIC_ID}".encode()
    assert read_partition_metadata(text) == PartitionMetadata(version=0, topic_id=TOPIC_ID)


@given(uuids.filter(lambda topic_id: topic_id != "A" * 22), st.integers(0, 2**31 - 1))
def test_partition_metadata_round_trips(topic_id: str, version: int) -> None:
    metadata = PartitionMetadata(version=version, topic_id=topic_id)
    assert read_partition_metadata(write_partition_metadata(metadata)) == metadata


def test_a_topic_id_is_read_in_its_canonical_form() -> None:
    # The last of 22 characters carries four bits that belong to no byte; Java ignores them, and padding.
    text = b"version: 0\r\ntopic_id: " + b"B" * 21 + b"R==\n"
    assert read_partition_metadata(text).topic_id == "B" * 21 + "Q"


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        (b"", 0, "partition.metadata line"),
        (b"version:0\ntopic_id: x", 0, "partition.metadata line"),
        (b"version: -1\ntopic_id: x", 0, "expected at least 0, found -1"),
        (b"version: zero\ntopic_id: x", 0, "found 'zero'"),
        (b"version: 0\n", 11, "partition.metadata line"),
        (b"version: 0\ntopic_id: short", 11, "topic_id at byte 11: expected 22 characters of base64url"),
        (b"version: 0\ntopic_id: " + b"A" * 22, 11, "expected one that is not zero"),
    ],
)
def test_partition_metadata_that_kafka_refuses_is_refused(text: bytes, position: int, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read_partition_metadata(text)
    assert caught.value.position == position
