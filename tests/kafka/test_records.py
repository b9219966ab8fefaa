"""Records as rows of ``kafka_log`` are what Kafka's own dump tool prints of the same files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from resnap.replay.spark.header_rows import read_record_rows
from resnap.replay.spark.source import find_segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release

pytestmark = pytest.mark.kafka
RECORD = re.compile(
    r"^\| offset: (\d+) \w+: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+) "
    r"(?:.*?headerKeys: \[(.*?)\])?.*?(?: key: (\S*))? payload:",
    flags=re.MULTILINE,
)


@pytest.mark.parametrize("name", ["kafka-2.7.2", "kafka-4.4.0-kraft"])
def test_records_are_what_kafkas_tool_prints(
    release: Callable[[str], Release], fixture_set: Callable[[str], FixtureSet], name: str
) -> None:
    segments = [one for one in find_segments([fixture_set(name).data]) if not str(one.topic).startswith("__")]
    files = ",".join(one.range.locator for one in segments)
    said = release("3.9.1").tool("kafka.tools.DumpLogSegments", "--print-data-log", "--files", files)
    by_kafka = [
        (int(offset), int(at), int(key_size), int(size), len(headers.split(",")) if headers else 0, key)
        for offset, at, key_size, size, headers, key in RECORD.findall(said)
    ]
    by_us = [
        (
            row["offset"],
            -1 if row["timestamp"] is None else row["timestamp"],
            -1 if row["key"] is None else len(row["key"]),
            -1 if row["valueSize"] is None else row["valueSize"],
            row["headersCount"],
            (row["key"] or b"").decode(),
        )
        for segment in segments
        for batch in read_record_rows(segment)
        for row in batch.to_pylist()
    ]
    assert len(by_us) > 1000
    assert sorted(by_us) == sorted(by_kafka)
