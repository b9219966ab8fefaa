"""Checks the snapshots that `resnap regenerate` has left, before they are used."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from resnap.replay.staging import snapshot_key
from resnap.storage.disk import is_directory, is_there
from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError, UsageError, VerificationError, in_file
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.storage.stores.urls import is_store_url
from resnap.storage.threads import each
from resnap.tiering.judging.planning import can_be_tiered, lost_boundaries

if TYPE_CHECKING:
    from resnap.storage.sources.files import Sources
    from resnap.tiering.selection import SelectedPartition, Selection


def staged_snapshots(selected: SelectedPartition, root: str, sources: Sources) -> dict[int, str]:
    """Return the staged snapshots below ``root`` at boundaries of a partition, locator by offset.

    Raises:
        UsageError: ``root`` is not a directory.
        StoreError: the store failed.

    """
    boundaries = selected.inventory.partition.boundaries
    found = {offset: snapshot_key(selected.topic_partition, offset) for offset in boundaries}
    if is_store_url(root):
        store = sources.store(root.rstrip("/"))
        there = {info.key for info in store.list(f"{selected.topic_partition}/")}
        return {offset: f"{store.url}/{key}" for offset, key in found.items() if key in there}
    if not is_directory(Path(root)):
        raise UsageError(f"{root} is not a directory", hint="give what `resnap regenerate --into` was given")
    return {offset: str(path) for offset, key in found.items() if is_there(path := Path(root, key))}


def check_staged(selection: Selection, root: str, sources: Sources) -> tuple[tuple[VerificationError, ...], int]:
    """Return which snapshots below ``root`` no broker could load, and how many lost boundaries have none.

    Raises:
        UsageError: ``root`` is not a directory, or has no snapshot of any boundary in scope.
        StoreError: the store failed.

    """
    found, broken, absent = 0, [], 0
    for selected in (one for one in selection.partitions if can_be_tiered(one.inventory)):
        paths = staged_snapshots(selected, root, sources)
        found += len(paths)
        looks = each(partial(_unusable, sources), paths.items(), remote=is_store_url(root))
        broken += [error for error in looks if error is not None]
        absent += len(set(lost_boundaries(selected.inventory)) - paths.keys())
    if not found:
        what = f"{root} has no snapshot of any boundary in scope"
        raise UsageError(what, hint="give what `resnap regenerate --into` was given, and the log dir it was made from")
    return tuple(broken), absent


def _unusable(sources: Sources, staged: tuple[int, str]) -> VerificationError | None:
    offset, locator = staged
    try:
        with in_file(locator):
            read_snapshot(sources.read(locator), offset)
    except FormatError as error:
        return VerificationError(str(error), hint="`resnap regenerate` makes it again")
    except (LogDirError, ObjectNotFoundError) as error:
        return VerificationError(str(error), hint=error.hint)
    return None
