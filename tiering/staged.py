"""Says where snapshots may be staged, and checks those that `resnap regenerate` has left, before they are used."""

from __future__ import annotations

from functools import partial
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from resnap.replay.staging import snapshot_key
from resnap.storage.disk import is_directory, is_there
from resnap.storage.errors import FormatError, LogDirError, ObjectNotFoundError, UsageError, VerificationError, in_file
from resnap.storage.log.log_dir import log_dir_around
from resnap.storage.log.producer_snapshot import read_snapshot
from resnap.storage.stores.urls import is_store_url, local_path
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
    for selected in (partition for partition in selection.partitions if can_be_tiered(partition.inventory)):
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


def destination_url(destination: str, selection: Selection) -> str:
    """Return the URL of ``destination``, which is one already or a directory.

    Raises:
        UsageError: it is a broker's log dir, or inside one: a broker does not start with a strange directory in its log
            dir; or it is what Resnap has shipped, to which nothing is added but by shipping.

    """
    url = destination.rstrip("/") if is_store_url(destination) else Path(destination).absolute().as_uri()
    path = local_path(url)
    log_dir = None if path is None else log_dir_around(path)
    if (
        path is not None
        and log_dir is not None
        and not any(is_beside_segments(url, one) for one in selection.partitions)
    ):
        raise _inside(path, log_dir)
    for selected in selection.partitions:
        _refuse_inside(selected, url)
    return url


def is_beside_segments(url: str, selected: SelectedPartition) -> bool:
    """Whether snapshots below ``url`` are beside the segments of the partition, in a copy of a log dir."""
    return str(selected.log_dir.path) == url


def _inside(path: Path, log_dir: Path) -> UsageError:
    hint = "a broker does not start with an unknown directory in its log dir: choose a place outside"
    return UsageError(f"{path} is inside the log dir {log_dir}", hint=hint)


def _refuse_inside(selected: SelectedPartition, url: str) -> None:
    partition, path = selected.inventory.partition, local_path(url)
    # A partition outside any log dir: no broker works there, so only its own directory is protected.
    own = partition.path if isinstance(partition.path, Path) else None
    if path is not None and own is not None and Path(realpath(path)).is_relative_to(realpath(own)):
        raise _inside(path, own)
    if selected.log_dir.is_shipped and f"{url}/".startswith(f"{selected.log_dir.path}/"):
        raise UsageError(
            f"{url} holds what was shipped, whose manifests are never changed",
            hint="choose another place for the snapshots",
        )
    if f"{url}/".startswith(f"{partition.path}/"):
        hint = f"{selected.log_dir.path} puts snapshots beside the segments"
        raise UsageError(f"{url} is the folder of a partition", hint=hint)
