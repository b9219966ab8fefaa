from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.replay.spark.settings import PROJECT_ROOT
from resnap.storage.crc32c import crc32c
from resnap.storage.errors import FormatError
from resnap.storage.layouts.manifest import (
    FORMAT_VERSION,
    Manifest,
    ObjectKind,
    manifest_record,
    read_manifest,
    write_manifest,
)
from resnap.storage.log.checkpoints import LeaderEpoch
from tests.examples import examples
from tests.storage.layouts.manifests import a_manifest, an_object, manifests

FOREIGN_SCHEMA: dict[str, Any] = {"type": "record", "name": "X", "fields": [{"name": "long", "type": "long"}]}


def schema_inside(data: bytes) -> dict[str, Any]:
    return json.loads(fastavro.reader(io.BytesIO(data)).metadata["avro.schema"])


def forged(record: dict[str, Any], *, schema: dict[str, Any] | None = None, count: int = 1, **options: Any) -> bytes:
    """A file that another writer could make: any record, with the checksum that fits it."""
    parsed = fastavro.parse_schema(schema or schema_inside(write_manifest(a_manifest())))
    body, stream = io.BytesIO(), io.BytesIO()
    fastavro.schemaless_writer(body, parsed, record)
    checksum = {"resnap.crc32c": f"{crc32c(body.getvalue()):08x}"}
    fastavro.writer(stream, parsed, [record] * count, **({"metadata": checksum} | options))
    return stream.getvalue()


@given(manifests())
def test_what_was_written_is_read(manifest: Manifest) -> None:
    assert read_manifest(write_manifest(manifest)) == manifest


@given(manifests())
def test_the_same_manifest_gives_the_same_bytes(manifest: Manifest) -> None:
    assert write_manifest(manifest) == write_manifest(replace(manifest))


def test_every_process_writes_the_same_bytes() -> None:
    write = (
        "from resnap.storage.layouts.manifest import write_manifest\n"
        "from tests.storage.layouts.manifests import a_manifest\n"
        "print(write_manifest(a_manifest()).hex())"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", write], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=PROJECT_ROOT,
            check=True, capture_output=True,
        ).stdout
        for seed in "1234"
    }  # fmt: skip
    assert written == {f"{write_manifest(a_manifest()).hex()}\n".encode()}


def test_any_avro_reader_shows_it_under_camel_case_names() -> None:
    (record,) = fastavro.reader(io.BytesIO(write_manifest(a_manifest())))
    assert record == manifest_record(a_manifest())
    assert record["formatVersion"] == FORMAT_VERSION
    assert record["nextBaseOffset"] == 200
    assert record["leaderEpochs"] == [{"epoch": 0, "startOffset": 100}, {"epoch": 4, "startOffset": 150}]
    assert record["objects"][1] == {
        "kind": "snapshot", "key": "c/t/none/0/0.snapshot", "sizeBytes": 5, "sha256": "ab" * 32, "crc32c": 7
    }  # fmt: skip
    assert record["snapshotOrigin"]["how"] == "regenerated"
    assert record["snapshotOrigin"]["leftOut"] == [{"producerId": 9, "reason": "unexplained"}]
    assert json.loads(json.dumps(record)) == record


def test_the_schema_travels_inside_under_its_namespace() -> None:
    schema = schema_inside(write_manifest(a_manifest()))
    assert schema["name"] == "io.resnap.v1.Manifest"


def test_an_object_is_found_by_kind() -> None:
    manifest = a_manifest()
    assert manifest.object(ObjectKind.SNAPSHOT) is manifest.objects[1]
    assert manifest.object(ObjectKind.TXN_INDEX) is None


def test_a_newer_format_version_is_refused_with_advice() -> None:
    record = manifest_record(a_manifest()) | {"formatVersion": 2}
    with pytest.raises(FormatError, match=r"format version .* expected 1, found 2") as raised:
        read_manifest(forged(record))
    assert "newer Resnap" in (raised.value.hint or "")


def test_another_schema_is_refused_with_advice() -> None:
    schema = schema_inside(write_manifest(a_manifest()))
    schema["fields"].append({"name": "moonPhase", "type": "string"})
    with pytest.raises(FormatError, match="manifest schema") as raised:
        read_manifest(forged(manifest_record(a_manifest()) | {"moonPhase": "full"}, schema=schema))
    assert "newer Resnap" in (raised.value.hint or "")


def test_a_manifest_of_before_a_field_was_added_is_read_without_it() -> None:
    schema = schema_inside(write_manifest(a_manifest()))
    (origin,) = (field["type"] for field in schema["fields"] if field["name"] == "snapshotOrigin")
    origin["fields"] = [field for field in origin["fields"] if field["name"] != "knownFromOffset"]
    manifest = a_manifest()
    older = replace(manifest, snapshot_origin=replace(manifest.snapshot_origin, known_from_offset=None))
    data = forged(manifest_record(manifest), schema=schema)
    assert read_manifest(data) == older
    # Other readers resolve either schema to the other.
    (upgraded,) = fastavro.reader(io.BytesIO(data), fastavro.parse_schema(schema_inside(write_manifest(manifest))))
    assert upgraded == manifest_record(older)
    (downgraded,) = fastavro.reader(io.BytesIO(write_manifest(manifest)), fastavro.parse_schema(schema))
    assert "knownFromOffset" not in downgraded["snapshotOrigin"]


def test_other_comments_in_the_schema_are_not_another_schema() -> None:
    schema = schema_inside(write_manifest(a_manifest()))
    schema["doc"] = "another comment"
    assert read_manifest(forged(manifest_record(a_manifest()), schema=schema)) == a_manifest()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "header"),
        (b"Obj\x01", "header"),
        (b"not avro at all", "header"),
        (write_manifest(a_manifest())[:-1], "record"),
        (write_manifest(a_manifest())[:-100], "record"),
        (write_manifest(a_manifest()) + b"\0", "record|file"),
        (write_manifest(a_manifest()) + b"\0\0io.resnap.v1.man", "nothing else"),
        (write_manifest(a_manifest()) * 2, "record|file"),
        (forged(manifest_record(a_manifest()), count=0), "one record"),
        (forged(manifest_record(a_manifest()), count=2), "one record"),
        (forged(manifest_record(a_manifest()), codec="deflate"), "schema .*uncompressed"),
        (forged(manifest_record(a_manifest()), metadata={}), "checksum"),
        (forged(manifest_record(a_manifest()), metadata={"resnap.crc32c": "00000000"}), "checksum"),
        (forged({"long": 1}, schema=FOREIGN_SCHEMA), "schema"),
    ],
    ids=["empty", "magic only", "text", "a byte less", "cut in the record", "a byte more", "an empty block more",
         "twice", "no record",
         "two records", "compressed", "no checksum", "another checksum", "another schema"],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        read_manifest(data)


@examples(300)
@given(st.data())
def test_no_flipped_bit_changes_what_is_read(data: st.DataObject) -> None:
    good = write_manifest(a_manifest())
    bad = bytearray(good)
    position = data.draw(st.integers(0, len(good) - 1))
    bad[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = read_manifest(bytes(bad))
    except FormatError:
        return
    assert found == a_manifest()  # A flip in a comment of the schema says nothing else of the segment.


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"next_base_offset": 100}, "offsets"),
        ({"base_offset": -1}, "offsets"),
        ({"last_offset": 200}, "offsets"),
        ({"last_offset": 98}, "offsets"),
        ({"partition": -1}, "partition"),
        ({"topic": "../x"}, "topic"),
        ({"leader_epochs": (LeaderEpoch(4, 0), LeaderEpoch(4, 9))}, "leader epochs"),
        ({"leader_epochs": (LeaderEpoch(4, 9), LeaderEpoch(5, 9))}, "leader epochs"),
        ({"objects": ()}, "objects"),
        ({"objects": (an_object(ObjectKind.LOG),)}, "objects"),
        (
            {"objects": (an_object(ObjectKind.LOG), an_object(ObjectKind.SNAPSHOT), an_object(ObjectKind.LOG))},
            "objects",
        ),
        ({"objects": (an_object(ObjectKind.LOG, key="x"), an_object(ObjectKind.SNAPSHOT, key="x"))}, "objects"),
        ({"objects": (an_object(ObjectKind.LOG, key="../x"), an_object(ObjectKind.SNAPSHOT))}, "object key"),
        ({"objects": (an_object(ObjectKind.LOG, size_bytes=-1), an_object(ObjectKind.SNAPSHOT))}, "object size"),
        ({"objects": (an_object(ObjectKind.LOG, sha256="AB" * 32), an_object(ObjectKind.SNAPSHOT))}, "object SHA-256"),
        ({"objects": (an_object(ObjectKind.LOG, crc32c=2**32), an_object(ObjectKind.SNAPSHOT))}, "object CRC-32C"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_neither_written_nor_read(changes: dict[str, Any], what: str) -> None:
    manifest = a_manifest(**changes)
    with pytest.raises(ValueError, match=what):
        write_manifest(manifest)
    with pytest.raises(FormatError, match=what):
        read_manifest(forged(manifest_record(manifest)))


@pytest.mark.parametrize(
    "changes",
    [{"segmentId": "no uuid"}, {"segmentId": "{6F8E0D8E-0000-5000-8000-000000000000}"},
     {"objects": [{"kind": "moon", "key": "k", "sizeBytes": 1, "sha256": "ab" * 32, "crc32c": 1}]}],
)  # fmt: skip
def test_a_value_of_no_known_form_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="manifest value"):
        read_manifest(forged(manifest_record(a_manifest()) | changes))


def test_another_format_version_is_not_written() -> None:
    with pytest.raises(ValueError, match="format version"):
        write_manifest(a_manifest(format_version=2))
