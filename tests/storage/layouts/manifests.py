"""Builders of manifests, plain and arbitrary."""

from __future__ import annotations

import string
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from resnap.storage.layouts.manifest import (
    Manifest,
    ManifestObject,
    ObjectKind,
    SnapshotHow,
    SnapshotOrigin,
)
from resnap.storage.layouts.segments import StoredManifest
from resnap.storage.log.checkpoints import LeaderEpoch
from resnap.storage.log.producer_snapshot import LeftOut

LONG = 2**63 - 1


def an_object(kind: ObjectKind, **changes: Any) -> ManifestObject:
    fields: dict[str, Any] = {
        "kind": kind,
        "key": f"c/t/none/0/0.{kind}",
        "size_bytes": 5,
        "sha256": "ab" * 32,
        "crc32c": 7,
    }
    return ManifestObject(**(fields | changes))


def stored(manifest: Manifest, key: str = "key") -> StoredManifest:
    """Return ``manifest`` as a listing reads it at ``key``."""
    size = sum(entry.size_bytes for entry in manifest.objects)
    return StoredManifest(key=key, facts=manifest.facts, size_bytes=size, objects=manifest.objects)


def a_manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "resnap_version": "0.1.0",
        "cluster_id": "bTqSZkTYQ0uWQFZlDcFAhw",
        "broker_id": 1,
        "log_directory": "/var/lib/kafka",
        "topic": "orders",
        "topic_id": None,
        "partition": 3,
        "base_offset": 100,
        "next_base_offset": 200,
        "last_offset": 199,
        "max_timestamp_ms": 1_600_000_000_000,
        "segment_id": UUID("6f8e0d8e-0000-5000-8000-000000000000"),
        "leader_epochs": (LeaderEpoch(0, 100), LeaderEpoch(4, 150)),
        "objects": (an_object(ObjectKind.LOG), an_object(ObjectKind.SNAPSHOT)),
        "snapshot_origin": SnapshotOrigin(
            how=SnapshotHow.REGENERATED,
            as_of="now",
            as_of_ms=1_700_000_000_000,
            window_start_offset=50,
            known_from_offset=10,
            producer_id_expiration_ms=604_800_000,
            check_interval_ms=600_000,
            entries_count=2,
            left_out=(LeftOut(producer_id=9, reason="unexplained"),),
        ),
        "created_at_ms": 1_700_000_000_001,
    }
    return Manifest(**(fields | changes))


longs = st.integers(-(2**63), LONG)
naturals = st.integers(0, LONG)
topics = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=249).filter(
    lambda name: name not in {".", ".."}
)


left_out_producers = st.builds(LeftOut, producer_id=longs, reason=st.text(max_size=9))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    base, end = sorted(draw(st.lists(naturals, min_size=2, max_size=2, unique=True)))
    epochs = draw(st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=4).map(sorted))
    starts = draw(st.lists(naturals, unique=True, min_size=len(epochs), max_size=len(epochs)).map(sorted))
    kinds = {ObjectKind.LOG, ObjectKind.SNAPSHOT} | draw(st.sets(st.sampled_from(ObjectKind)))
    return Manifest(
        resnap_version=draw(st.text(max_size=20)),
        cluster_id=draw(st.none() | st.text(max_size=30)),
        broker_id=draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
        log_directory=draw(st.text(max_size=50)),
        topic=draw(topics),
        topic_id=draw(st.none() | st.text(max_size=30)),
        partition=draw(st.integers(0, 2**31 - 1)),
        base_offset=base,
        next_base_offset=end,
        last_offset=draw(st.integers(base - 1, end - 1)),
        max_timestamp_ms=draw(st.none() | longs),
        segment_id=draw(st.uuids()),
        leader_epochs=tuple(map(LeaderEpoch, epochs, starts)),
        objects=tuple(an_object(kind, size_bytes=draw(naturals), crc32c=draw(st.integers(0, 2**32 - 1)),
                                sha256=draw(st.binary(min_size=32, max_size=32)).hex()) for kind in sorted(kinds)),
        snapshot_origin=SnapshotOrigin(
            how=draw(st.sampled_from(SnapshotHow)),
            as_of=draw(st.text(max_size=20)),
            as_of_ms=draw(st.none() | longs),
            window_start_offset=draw(st.none() | longs),
            producer_id_expiration_ms=draw(longs),
            check_interval_ms=draw(longs),
            entries_count=draw(st.integers(0, 2**31 - 1)),
            left_out=tuple(draw(st.lists(left_out_producers, max_size=3))),
            known_from_offset=draw(st.none() | naturals),
        ),
        created_at_ms=draw(longs),
        compaction_assumption=draw(st.none() | st.text(max_size=30)),
    )  # fmt: skip
