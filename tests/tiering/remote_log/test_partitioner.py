from __future__ import annotations

import pytest

from resnap.tiering.remote_log.records import TopicIdPartition, metadata_partition, murmur2
from tests.cases import each

WHERE = {
    ("AAAAAAAAAAEAAAAAAAAAAg", 3): 15,
    ("LWgrMmVrT0a__7a4SasuPA", 0): 1,
    ("LWgrMmVrT0a__7a4SasuPA", 1): 18,
    ("LWgrMmVrT0a__7a4SasuPA", 7): 23,
    ("jF8s79t9SrG_PNqlwv7bAA", 0): 30,
    ("jF8s79t9SrG_PNqlwv7bAA", 1): 24,
    ("jF8s79t9SrG_PNqlwv7bAA", 7): 32,
    ("i_zX0Gm7SgWBdoaOUF9PDw", 0): 3,
    ("i_zX0Gm7SgWBdoaOUF9PDw", 1): 5,
    ("i_zX0Gm7SgWBdoaOUF9PDw", 7): 14,
}
"""What Kafka's own partitioner says of fifty partitions."""


@each("topic_id, number", WHERE)
def test_records_go_where_kafkas_partitioner_puts_them(topic_id: str, number: int) -> None:
    partition = TopicIdPartition(name="whatever", id=topic_id, partition=number)
    assert metadata_partition(partition, 50) == WHERE[topic_id, number]


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_murmur2_is_that_of_the_java_client(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFFFFFF
