"""Stored plans, to be executed later: the same text that ``resnap plan --save`` writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resnap.scheduler.disk_reads import LONG_READ_S, DiskReads
from resnap.scheduler.job.wiring import rules_of
from resnap.scheduler.output.records import row_of
from resnap.scheduler.runs.configuration import scope_for
from resnap.scheduler.runs.run import request_from
from resnap.scheduler.state.database import Database, columns_of, from_row, insert_row
from resnap.scheduler.verbs.planned import PlanRow, totals_of
from resnap.tiering.judging.planning import read_saved_plan, write_saved_plan
from resnap.tiering.planner import Planner

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.runs.configuration import Configuration
    from resnap.scheduler.runs.run import Ids, Row, RunRequest
    from resnap.tiering.engine import Engine
    from resnap.tiering.planner import Planned


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """A stored plan, its effect by partition, and its totals."""

    id: str
    request: RunRequest
    plan: str
    """As ``resnap plan --save`` writes it."""
    rows: Sequence[Row]
    totals: Row
    principal: str
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The table of plans in the service's file."""

    database: Database
    configuration: Configuration
    engine: Engine
    ids: Ids
    clock: Clock
    reads: DiskReads = field(default_factory=DiskReads)

    def make(self, request: RunRequest, principal: str) -> KeptPlan:
        """Plan what ``request`` asks for, and store the plan; reads only small files and ends of indexes.

        Raises:
            ResnapError: a source cannot be read, or there is nothing in scope.

        """
        settings = self.configuration.of(request)
        planner = Planner(rules_of(settings, self.clock), self.engine)
        scope = scope_for(settings, request)

        def read() -> tuple[list[Planned], str]:
            planned, _ = planner.plan(scope, boundaries=settings.boundaries)
            return planned, write_saved_plan(planner.save(scope, planned))

        planned, text = self.reads.run(read, LONG_READ_S)
        plan = KeptPlan(
            id=self.ids.make(),
            request=request,
            plan=text,
            rows=[row_of(PlanRow, partition.plan) for partition in planned],
            totals={"dryRun": True, **totals_of(planned)},
            principal=principal,
            created_ms=self.clock.now_ms(),
        )
        with self.database.write() as connection:
            insert_row(connection, "plans", columns_of(plan))
        return plan

    def get(self, plan_id: str) -> KeptPlan | None:
        """Return a plan, or None if there is none of this id."""
        row = self.database.row("SELECT * FROM plans WHERE id = ?", (plan_id,))
        return None if row is None else _plan(row)

    def page(self, *, limit: int, before: str | None = None) -> list[KeptPlan]:
        """Return up to ``limit`` plans, newest first, made before the plan ``before`` if it is given."""
        query = "SELECT * FROM plans WHERE id < ? ORDER BY id DESC LIMIT ?"
        return [*filter(None, map(_plan, self.database.rows(query, (before or "~", limit))))]

    def check_fresh(self, plan: KeptPlan) -> None:
        """Check that nothing that ``plan`` depends on has changed.

        Raises:
            StalePlanError: something has changed.
            ResnapError: a source cannot be read.

        """
        saved = read_saved_plan(plan.plan)
        settings = self.configuration.of(plan.request)
        planner = Planner(saved.rules, self.engine)
        scope = scope_for(settings, plan.request, saved)
        self.reads.run(lambda: planner.plan(scope, boundaries=settings.boundaries, saved=saved), LONG_READ_S)

    def prune(self, older_than_ms: int) -> int:
        """Delete plans made before ``older_than_ms``; return how many."""
        with self.database.write() as connection:
            return connection.execute("DELETE FROM plans WHERE created_ms < ?", (older_than_ms,)).rowcount


def _plan(row: sqlite3.Row) -> KeptPlan | None:
    """Return the plan of a row; None if it is damaged, or of a release that knows more, as a run is skipped then."""
    try:
        request, rows, totals = (json.loads(row[name]) for name in ("request", "rows", "totals"))
        return from_row(KeptPlan, row, request=request_from(request), rows=rows, totals=totals)
    except (ValueError, KeyError, TypeError):
        return None
