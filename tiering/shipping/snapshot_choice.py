"""Chooses the snapshot to ship with a segment: the broker's own if no replay contradicts it, else the rebuilt one.

The broker's own may know producers whose records were deleted, so if it is right it is the better one. It is shipped in
canonical order, by producer id, so that equal states are equal objects.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resnap.replay.comparison import Verdict
from resnap.replay.plan import Coverage
from resnap.replay.staging import digest_of, snapshot_key
from resnap.storage.errors import LogDirError, ObjectNotFoundError, VerificationError
from resnap.storage.layouts.manifest import SnapshotHow, SnapshotOrigin
from resnap.storage.log.producer_snapshot import read_snapshot, snapshot_bytes
from resnap.storage.sources.files import PLAIN

if TYPE_CHECKING:
    from resnap.replay.results import BoundaryResult
    from resnap.replay.window import ReplayRules
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.sources.files import Sources
    from resnap.storage.stores.protocol import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenSnapshot:
    """The bytes to ship, and their origin."""

    body: bytes
    origin: SnapshotOrigin


def choose_snapshot(
    topic_partition: TopicPartition,
    result: BoundaryResult,
    rules: ReplayRules,
    staged: ObjectStore,
    sources: Sources = PLAIN,
    *,
    as_found: bool = False,
) -> ChosenSnapshot:
    """Return the snapshot for the boundary of ``result``, which was rebuilt.

    With ``as_found`` the broker's own keeps its entry order, as the broker itself would ship it. A live broker may have
    deleted or replaced its own since the comparison; the rebuilt one is then as good.

    Raises:
        VerificationError: what is staged is not what was written there.
        StoreError: it cannot be read.

    """
    in_window = result.coverage is Coverage.WINDOW
    own = _own_snapshot(result, sources)
    if own is None or result.comparison is None:
        return rebuilt_snapshot(topic_partition, result, rules, staged)
    entries = read_snapshot(own)
    is_proven = in_window and result.comparison.verdict is Verdict.PROVEN
    how = SnapshotHow.PROVEN if is_proven else SnapshotHow.KEPT
    body = own if as_found else snapshot_bytes(entries.values())
    return ChosenSnapshot(body=body, origin=_origin(result, rules, how, len(entries)))


def rebuilt_snapshot(
    topic_partition: TopicPartition, result: BoundaryResult, rules: ReplayRules, staged: ObjectStore
) -> ChosenSnapshot:
    """Return the replay's snapshot for the boundary of ``result``; raises as ``choose_snapshot`` does."""
    in_window = result.coverage is Coverage.WINDOW
    how = SnapshotHow.REGENERATED if in_window else SnapshotHow.BEYOND_WINDOW
    return ChosenSnapshot(
        body=_staged(topic_partition, result, staged), origin=_origin(result, rules, how, result.entries)
    )


def _own_snapshot(result: BoundaryResult, sources: Sources) -> bytes | None:
    """Return the broker's own snapshot if the replay contradicts none of its entries and the file is unchanged."""
    path, comparison = result.boundary.existing, result.comparison
    if path is None or comparison is None or comparison.verdict not in {Verdict.PROVEN, Verdict.UNPROVEN}:
        return None
    try:
        data = sources.read(path)
    except (LogDirError, ObjectNotFoundError):
        return None
    return data if hashlib.sha256(data).hexdigest() == comparison.sha256 else None


def _staged(topic_partition: TopicPartition, result: BoundaryResult, staged: ObjectStore) -> bytes:
    key = snapshot_key(topic_partition, result.offset)
    body = staged.get(key)
    if digest_of(body) != result.digest:
        raise VerificationError(f"{staged.url}/{key}: not what the replay wrote there", hint="run again")
    return body


def _origin(result: BoundaryResult, rules: ReplayRules, how: SnapshotHow, entries: int) -> SnapshotOrigin:
    return SnapshotOrigin(
        how=how,
        as_of=str(rules.as_of),
        as_of_ms=result.as_of_ms,
        window_start_offset=result.window_start_offset,
        producer_id_expiration_ms=rules.expiry.expiration_ms,
        check_interval_ms=rules.expiry.check_interval_ms,
        entries_count=entries,
        known_from_offset=result.known_from_offset,
        left_out=result.left_out,
    )
