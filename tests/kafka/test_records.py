"""Records as rows of ``kafka_log`` are what Kafka's own dump tool prints of the same files, and what consumers read."""

from __future__ import annotations

import hashlib
import re
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.replay.spark.record_rows import read_record_rows
from resnap.replay.spark.source import Pruning, find_segments
from resnap.storage.encryption import KeyRing, RsaKey
from resnap.storage.key_file import KeyFile
from resnap.storage.sources.files import PLAIN, Sources
from tests.kafka.brokers import SMALL, Broker
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka
TOPIC: Final = "payments"
PLACES: Final = (f"{TOPIC}-0", f"{TOPIC}-1")
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
    files = ",".join(segment.range.locator for segment in segments)
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


AIVEN: Final = ("--layout", "aiven", "--key-prefix", "tiered/", "--chunk-size", 4096)
FORMS: Final[dict[str, tuple[object, ...]]] = {
    "flat": (),
    "local-tiered": ("--layout", "local-tiered"),
    "aiven": AIVEN,
    "encrypted": (*AIVEN, "--chunk-compression", "zstd"),
}


@pytest.mark.parametrize("version", [pytest.param("3.9.1", marks=pytest.mark.heavy), "4.4.0"])
def test_committed_records_are_what_a_consumer_of_committed_records_reads(
    command: Resnap,
    release: Callable[[str], Release],
    fixture_set: Callable[[str], FixtureSet],
    tmp_path: Path,
    version: str,
) -> None:
    data, keys = tmp_path / "data", fixture_set("kafka-3.9.1-aiven-encrypted").root / "keys"
    sources = Sources(keys=KeyRing((RsaKey("key1", KeyFile.read(keys / "private.pem")),)))
    broker = Broker(release(version), [data])
    with broker.running():
        broker.drive("create", TOPIC, 2, *SMALL[version])
        broker.drive("traffic", TOPIC, 2, 200, 38)
        for name in PLACES:
            broker.drive("delete", TOPIC, name[-1], bases(data / name)[1] + 3)
    local = rows_of(data)
    read = {name: [(first_open(rows), rows)] for name, rows in local.items()}
    to = ("tier", data, "--topic", TOPIC, "--as-of", "roll", "--engine", "local")
    for form, flags in FORMS.items():
        own = ("--encryption-public-key", f"key1={keys / 'public.pem'}") if form == "encrypted" else ()
        store, half = (tmp_path / form).as_uri(), shutil.copytree(data, tmp_path / f"half-of-{form}")
        command(*to, "--to", store, *flags, *own)
        url = f"{store}/tiered" if "aiven" in flags else store
        for name, rows in rows_of(url, sources).items():
            start = min(row["offset"] for row in local[name])
            read[name].append((first_open(rows), [row for row in rows if row["offset"] >= start]))
            for log in sorted((half / name).glob("*.log"))[: len({row["segment"] for row in rows}) // 2 + 1]:
                log.unlink()
        assert rows_of(half, sources, url) == local
    with broker.running():
        for name, seen in read.items():
            assert len(seen) == 1 + len(FORMS)
            assert {row["committed"] for row in seen[0][1]} == {True, False, None}
            for end, rows in seen:
                committed = [row for row in rows if row["committed"] and row["offset"] < end]
                told = dict(map(str.split, broker.drive("read", TOPIC, name[-1], "read_committed", end).splitlines()))
                assert (told["end"], told["records"]) == (str(end), str(len(committed)))
                assert told["sha256"] == digest(committed)
        ends = {name: int(re.findall(r"end (\d+)", broker.drive("read", TOPIC, name[-1]))[0]) for name in read}
        assert ends == {name: seen[0][0] for name, seen in read.items()}, "the last stable offsets"


def rows_of(source: str | Path, sources: Sources = PLAIN, remote: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return the records of the topic, by partition, in the order of their offsets, without where they lie."""
    found: dict[str, list[dict[str, Any]]] = {}
    for segment in find_segments([source], TOPIC, Pruning(sources=sources), remote):
        for batch in () if segment.is_below_start else read_record_rows(segment, sources):
            found.setdefault(f"{segment.topic}-{segment.partition}", []).extend(batch.to_pylist())
    return found


def first_open(rows: list[dict[str, Any]]) -> int:
    """Return the first offset that is not known to be committed or aborted."""
    return min([row["offset"] for row in rows if row["committed"] is None], default=rows[-1]["offset"] + 1)


def digest(rows: list[dict[str, Any]]) -> str:
    """Return what ``Driver.java`` prints of the same records."""

    def hexed(content: bytes | None) -> str:
        return "null" if content is None else content.hex()

    told = hashlib.sha256()
    for row in rows:
        fields = [str(row[name]) for name in ("offset", "timestamp", "leaderEpoch")]
        fields += [hexed(row["key"]), hexed(row["value"])]
        fields += [f"{header['key']}={hexed(header['value'])}" for header in row["headers"]]
        told.update(f"{' '.join(fields)}\n".encode())
    return told.hexdigest()
