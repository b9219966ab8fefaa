"""Results of ``install`` as rows and errors: plain mappings, the same for people and for programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from resnap.scheduler.answers.reports import identity
from resnap.storage.errors import LogDirError, ResnapError, StalePlanError, VerificationError
from resnap.tiering.installing.installation import REFUSALS, Decision, Fate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resnap.scheduler.answers.rendering import Row
    from resnap.scheduler.use_cases.installing import InstallReport
    from resnap.tiering.installing.installation import PartitionInstallation
    from resnap.tiering.installing.undo import UndoStep

_COUNTED: Final = {
    Fate.INSTALLED: "installed",
    Fate.REPLACED: "replaced",
    Fate.SET_ASIDE: "setAside",
    Fate.ALREADY_THERE: "alreadyThere",
}
"""By fate, what it counts as; any other is ``left`` or ``refused``."""
_TOLD: Final = frozenset({Fate.NOT_ASKED, Fate.GOOD_FILE_THERE, Fate.NOT_REACHED, *REFUSALS})
"""What a person is told of beside the numbers."""
_STALE: Final = frozenset({Fate.STALE, Fate.NO_FINGERPRINT})


def installation_row(installation: PartitionInstallation) -> Row:
    """Return what became of the staged snapshots of one partition."""
    fates = Counter(decision.fate for decision in installation.decisions)
    return {
        **identity(installation.topic_partition),
        **_counts(installation.decisions),
        "why": [f"{fate} ({number})" for fate, number in fates.items() if fate in _TOLD],
        "snapshots": [
            {
                "offset": decision.offset,
                "outcome": decision.fate.value,
                "entries": decision.entries,
                "leftOut": decision.left_out,
                "detail": decision.detail,
                "hint": decision.hint,
            }
            for decision in installation.decisions
        ],
    }


def install_tail(report: InstallReport) -> Row:
    """Return the totals."""
    return _counts(decision for one in report.partitions for decision in one.decisions)


def _counts(decisions: Iterable[Decision]) -> dict[str, int]:
    counts = dict.fromkeys((*_COUNTED.values(), "left", "refused"), 0)
    for decision in decisions:
        counts[_COUNTED.get(decision.fate) or ("refused" if decision.fate in REFUSALS else "left")] += 1
    return counts


def refusals_of(installation: PartitionInstallation) -> Iterator[ResnapError]:
    """Yield an error for each reason for which snapshots of a partition are refused."""
    refused: dict[Fate, list[Decision]] = {}
    for decision in installation.decisions:
        if decision.fate in REFUSALS:
            refused.setdefault(decision.fate, []).append(decision)
    for fate, decisions in refused.items():
        offsets = ", ".join(str(decision.offset) for decision in decisions[:3]) + (", ..." if decisions[3:] else "")
        what = f"{installation.topic_partition}: {fate}: not installed at {offsets}: {decisions[0].detail}"
        yield _kind(fate)(what, hint=decisions[0].hint)


def _kind(fate: Fate) -> type[ResnapError]:
    if fate in _STALE:
        return StalePlanError
    return VerificationError if fate is Fate.STAGED_DAMAGED else LogDirError


def undo_row(step: UndoStep) -> Row:
    """Return what was done to one file."""
    return {"path": step.change.place, "action": "removed" if step.removes else "restored"}
