"""A run that makes snapshots, as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.replay.results import Outcome
from resnap.replay.staging import snapshot_key
from resnap.scheduler.answers.faults import replay_faults, replay_warnings
from resnap.scheduler.answers.reports import boundary_row, known_row, replay_tail
from resnap.scheduler.job import PartitionState
from resnap.scheduler.runs.work import Work
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from resnap.scheduler.runs.run import Row
    from resnap.scheduler.use_cases.work_items import Replayed


class Regeneration(Work):
    """Snapshots as files."""

    def do(self) -> Row:
        """Make what is missing, or say what would be made."""
        service = self.remembering()
        planned, sight = service.plan(
            self.scope, boundaries=self.settings.boundaries, saved=self.saved, into=self.destination
        )
        sink_url = service.sink_url(self.destination, sight)
        self.problems(sight)
        if self.settings.dry_run:
            return self.tell_planned(planned)
        results = []
        for replayed in service.regenerate(planned, sink_url, self.report.progress("replay")):
            results.append(replayed.result)
            self._tell(replayed, sink_url)
        return replay_tail(results)

    def _tell(self, replayed: Replayed, sink_url: str) -> None:
        topic_partition = replayed.planned.sighted.topic_partition
        made = [one.boundary.offset for one in replayed.result.boundaries if one.outcome is Outcome.REBUILT]
        standing = [known.offset for known in replayed.planned.standing]
        failed = len(made) < len(replayed.result.boundaries) or replayed.result.error is not None
        for fault in replay_faults(replayed.result):
            self.report.error(fault)
        warnings = list(replay_warnings(replayed.result))
        for warning in warnings:
            self.around.observer.warn(warning)
        state = PartitionState.DONE if made else PartitionState.NOTHING_TO_DO
        row = {
            "boundaries": [
                *(known_row(topic_partition, known) for known in replayed.planned.standing),
                *(boundary_row(topic_partition, found) for found in replayed.result.boundaries),
            ],
            "warnings": warnings,
        }
        sighted = replayed.planned.sighted
        self.mended(sighted, self.mending("regenerated", frozenset([*made, *standing])))
        self.around.observer.snapshots(
            sighted.log_dir.cluster_id or "unknown",
            made=len(made),
            failed=len(replayed.result.boundaries) - len(made),
            skipped=len(standing),
        )
        if made:
            self._charge(f"{sink_url}/{snapshot_key(topic_partition, max(made))}")
        self.tell(topic_partition, PartitionState.FAILED if failed else state, row)

    def _charge(self, file: str) -> None:
        """Charge the producers of the newest snapshot, which are those that the replay has brought to life."""
        try:
            data = self.around.engine.reading.sources.read(file)
        except ResnapError as error:
            self.around.observer.warn(f"{file} is not charged to {self.run.principal}: {error}")
        else:
            self.activated(data)
