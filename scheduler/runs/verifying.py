"""A run that reads back what lies in a store."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from resnap.scheduler.answers.faults import (
    chain_gaps,
    chain_overlaps,
    nothing_shipped,
    segment_faults,
)
from resnap.scheduler.job import Mismatch
from resnap.scheduler.runs.work import Work
from resnap.scheduler.wiring import journal_of
from resnap.storage.stores.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.scheduler.runs.run import Row
    from resnap.storage.errors import ResnapError


class Verification(Work):
    """What lies in a store, read back."""

    def do(self) -> Row:
        """Read back objects, then chains, then snapshots."""
        store = open_store(self.destination, self.settings.s3())
        journal = journal_of(self.settings, self.around.clock, store.url, self.around.observer.warn)
        scope = replace(self.scope, sources=(self.destination,))
        check = self.service.check_store(scope, store, journal, None)
        totals: Counter[str] = Counter(segments=0, bytes=0, different=0, snapshotsReplayed=0, snapshotsDifferent=0)
        for verified in check.segments(self.report.progress("verify")):
            totals.update(segments=int(verified.was_read), bytes=verified.size_bytes)
            totals["different"] += bool(verified.problems)
            self._differs(Mismatch.OBJECT, segment_faults(verified.problems, check.layout.remedy))
            for text in verified.undecided:
                self.around.observer.warn(text)
            self.report.done += not verified.problems
        if not check.manifests and not totals["segments"]:
            raise nothing_shipped(self.destination)
        for chain in check.chains():
            self._differs(Mismatch.GAP, chain_gaps(chain))
            self._differs(Mismatch.OVERLAP, chain_overlaps(chain))
        for found in check.snapshots(self.report.progress("replay")):
            totals["snapshotsReplayed"] += 1
            if found.problem is not None:
                totals["snapshotsDifferent"] += 1
                self._differs(Mismatch.SNAPSHOT, [found.problem])
        journal.end()
        return dict(totals)

    def _differs(self, kind: Mismatch, faults: Iterable[ResnapError]) -> None:
        for fault in faults:
            self.around.observer.mismatch(kind)
            self.failed(fault)
