"""A run that looks at every source; what is seen of each is kept together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from resnap.scheduler.answers.reports import scan_row
from resnap.scheduler.runs.work import Work
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from resnap.scheduler.runs.run import Row


class Scan(Work):
    """A look at every source; what is seen of each is kept together."""

    def do(self) -> Row:
        """Look at one source after the other; one that cannot be read leaves the others alone."""
        totals: Counter[str] = Counter(partitions=0, segments=0, boundaries=0, lost=0, problems=0)
        for source in self.scope.sources:
            try:
                self._look(source, totals)
            except ResnapError as error:
                self.around.sightings.could_not_see(source, str(error))
                self.failed(error)
        return dict(totals)

    def _look(self, source: str, totals: Counter[str]) -> None:
        scans, problems = self.service.scan(replace(self.scope, sources=(source,)))
        rows, cluster = [], "unknown"
        for scanned in scans:
            row, cluster = scan_row(scanned), scanned.sighted.log_dir.cluster_id or cluster
            rows.append(row)
            totals["partitions"] += 1
            if row["compaction"] != "compacted":
                totals.update({key: int(str(row[key])) for key in ("segments", "boundaries", "lost")})
            self.report.check()
        self.report.done += len(rows)
        for problem in problems:
            self.failed(problem.error)
        totals["problems"] += len(problems)
        unread = f"{len(problems)} partitions could not be read: {problems[0].error}" if problems else None
        self.around.sightings.saw(source, rows, self.scope.wants_partition, unread=unread)
        lost, segments = (sum(int(str(row[key])) for row in rows if row["compaction"] != "compacted")
                          for key in ("lost", "segments"))  # fmt: skip
        self.around.observer.scanned(cluster, source, segments=segments, missing=lost)
