"""Snapshots as `resnap regenerate` has left them, before somebody relies on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import FormatError, UsageError, VerificationError
from storage.log.producer_snapshot import load_snapshot
from tiering.planning import can_be_tiered, lost_boundaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.sources import Sight, Sighted


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedCheck:
    """What a look at regenerated snapshots showed."""

    broken: tuple[VerificationError, ...]
    """Those that no broker could load."""
    absent: int
    """Lost boundaries for which there is none."""


def staged_snapshots(sighted: Sighted, root: Path) -> dict[int, str]:
    """Return the snapshots below ``root`` that are of boundaries of a partition, path by offset.

    Raises:
        UsageError: ``root`` is no directory.

    """
    if not root.is_dir():
        raise UsageError(f"{root} is no directory", hint="give what `resnap regenerate --into` was given")
    folder = root / str(sighted.topic_partition)
    found = {offset: folder / f"{offset:020d}.snapshot" for offset in sighted.inventory.partition.boundaries}
    return {offset: str(path) for offset, path in found.items() if path.is_file()}


def check_staged(sight: Sight, root: Path) -> StagedCheck:
    """Look at the snapshots below ``root`` before they are compared.

    Raises:
        UsageError: ``root`` is no directory, or has no snapshot of any boundary in scope.

    """
    found, broken, absent = 0, [], 0
    for sighted in _in_question(sight):
        paths = staged_snapshots(sighted, root)
        found += len(paths)
        broken += [error for error in map(_unusable, paths.values()) if error is not None]
        absent += len(set(lost_boundaries(sighted.inventory)) - paths.keys())
    if not found:
        what = f"{root} has no snapshot of any boundary in scope"
        raise UsageError(what, hint="give what `resnap regenerate --into` was given, and the log dir it was made from")
    return StagedCheck(broken=tuple(broken), absent=absent)


def _in_question(sight: Sight) -> Iterator[Sighted]:
    return (sighted for sighted in sight.partitions if can_be_tiered(sighted.inventory))


def _unusable(path: str) -> VerificationError | None:
    try:
        load_snapshot(Path(path))
    except FormatError as error:
        return VerificationError(str(error), hint="`resnap regenerate` makes it anew")
    except OSError as error:
        return VerificationError(f"{path}: cannot be read: {error.strerror}", hint="check its owner and mode")
    return None
