"""The history of runs, from the moment they are requested, with one transaction per step.

The table has columns for the fields by which lists filter and sort; everything else is JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.output.records import plain
from resnap.scheduler.runs.run import (
    FINAL,
    OPEN,
    PartitionOutcome,
    ReportedError,
    Run,
    RunEvent,
    RunState,
    request_from,
)
from resnap.scheduler.state.database import (
    DATABASE_FILE,
    UNREADABLE_ROW,
    Database,
    columns_of,
    from_row,
    insert_row,
    read_column,
)
from resnap.storage.errors import DataError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from resnap.scheduler.runs.run import Row, RunEnd

_PAGE: Final = 1_000
ORPHANED: Final = ReportedError(
    code="RunOrphaned",
    message="the service ended while the run was going on",
    hint="ask for it again, or wait for the schedule: finished work is kept, and nothing unfinished is visible",
    exit_code=1,
)


@dataclass(frozen=True, slots=True)
class History:
    """Runs, their partitions and events, in the service's file."""

    database: Database
    now_ms: Callable[[], int]
    listeners: list[Callable[[RunEvent], None]] = field(default_factory=list)
    """Called with each stored event, in the thread that stores it; they must not wait, since the next event does."""
    warn: Callable[[str], None] | None = None
    """Gets, once for each run, why it is not in lists."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why runs were skipped in lists, by id: damaged rows, or rows of a release that knows more."""

    def add(self, run: Run) -> None:
        """Store a newly requested run."""
        names = "id", "kind", "state", "request", "origin", "principal", "retry_of", "created_ms"
        with self.database.write() as connection:
            insert_row(connection, "runs", {name: getattr(run, name) for name in names})
            self._report(connection, run.id, "state", {"state": run.state.value})

    def get(self, run_id: str) -> Run | None:
        """Return a run, or None if there is none of this id."""
        row = self.database.row("SELECT * FROM runs WHERE id = ?", (run_id,))
        return None if row is None else _run(row)

    def page(
        self,
        *,
        limit: int,
        before: str | None = None,
        kinds: Sequence[str] = (),
        states: Sequence[RunState] = (),
        origin: str | None = None,
        plan: str | None = None,
    ) -> list[Run]:
        """Return up to ``limit`` runs (-1: all), newest first, made before the run ``before`` if it is given.

        Only those of some kinds, in some states, of an origin, and that carried out the plan of this id, where these
        are given. Runs that cannot be read are skipped, and are in ``unreadable`` then.
        """
        clauses, values = ["1"], list[object]()
        for column, chosen in (("kind", kinds), ("state", states), ("origin", () if origin is None else (origin,))):
            if chosen:
                clauses.append(f"{column} IN ({', '.join('?' * len(chosen))})")
                values += map(str, chosen)
        if plan is not None:  # ids of both sort by time, which excludes all older ones
            clauses.append("id > ? AND json_extract(request, '$.plan') = ?")
            values += [plan] * 2
        found: list[Run] = []
        while True:
            rows = self._rows(clauses, values, limit, before)
            found += filter(None, map(self._readable, rows))
            if len(rows) < max(1, limit) or len(found) >= limit:
                return found[: limit if limit >= 0 else None]
            before = rows[-1]["id"]

    def _rows(self, clauses: list[str], values: list[object], limit: int, before: str | None) -> list[sqlite3.Row]:
        if before is not None:
            clauses, values = [*clauses, "id < ?"], [*values, before]
        query = f"SELECT * FROM runs WHERE {' AND '.join(clauses)} ORDER BY id DESC LIMIT ?"  # noqa: S608 - our words
        return list(self.database.rows(query, (*values, limit)))

    def _readable(self, row: sqlite3.Row) -> Run | None:
        try:
            return _run(row)
        except DataError as error:
            if row["id"] not in self.unreadable:
                self.unreadable[row["id"]] = str(error)
                if self.warn is not None:
                    self.warn(f"{error}; it is not in lists: {error.hint}")
            return None

    def newest_id(self) -> str | None:
        """Return the last id of a run or a plan; None if there is none."""
        query = "SELECT MAX(id) FROM (SELECT MAX(id) AS id FROM runs UNION SELECT MAX(id) FROM plans)"
        newest: str | None = next(self.database.rows(query))[0]
        return newest

    def open_runs(self) -> list[Run]:
        """Return the runs that are not finished, oldest first."""
        return self.page(states=OPEN, limit=-1)[::-1]

    def began(self, run_id: str) -> bool:
        """Record that a run has started; False if it was cancelled before."""
        return self._step(run_id, RunState.RUNNING, (RunState.QUEUED,), {"started_ms": self.now_ms()})

    def cancelling(self, run_id: str) -> bool:
        """Record that a run is being cancelled; False if it is not running."""
        return self._step(run_id, RunState.CANCELLING, (RunState.RUNNING,), {})

    def cancelled_before_it_began(self, run_id: str) -> bool:
        """Record that a run will not start; False if it has started."""
        return self._step(run_id, RunState.CANCELLED, (RunState.QUEUED,), {"finished_ms": self.now_ms()})

    def ended(self, run_id: str, end: RunEnd) -> None:
        """Record how a run ended."""
        kept = {
            "finished_ms": self.now_ms(),
            "totals": json.dumps(plain(end.totals)),
            "error": json.dumps(plain(end.errors)),
        }
        self._step(run_id, end.state, OPEN, kept)

    def progressed(self, run_id: str, progress: Mapping[str, Row]) -> None:
        """Store the progress of a run, and report it."""
        text = json.dumps(plain(progress))
        with self.database.write() as connection:
            connection.execute("UPDATE runs SET progress = ? WHERE id = ?", (text, run_id))
            # Of progress only the last event matters to a client that comes later.
            connection.execute("DELETE FROM run_events WHERE run_id = ? AND kind = 'progress'", (run_id,))
            self._report(connection, run_id, "progress", progress)

    def partition_done(self, run_id: str, outcome: PartitionOutcome) -> None:
        """Store the outcome of one partition."""
        with self.database.write() as connection:
            insert_row(connection, "run_partitions", {"run_id": run_id, **columns_of(outcome)})
            data = {"topic": outcome.topic, "partition": outcome.partition, "state": outcome.state.value}
            self._report(connection, run_id, "partition", data)

    def partitions(
        self, run_id: str, *, limit: int, after: tuple[str, int] | None = None, states: Sequence[PartitionState] = ()
    ) -> list[PartitionOutcome]:
        """Return up to ``limit`` partitions of a run by topic and number, those behind ``after`` if it is given."""
        only = f"AND state IN ({', '.join('?' * len(states))})" if states else ""
        query = f"""SELECT * FROM run_partitions WHERE run_id = ? AND (topic, partition) > (?, ?) {only}
                    ORDER BY topic, partition LIMIT ?"""  # noqa: S608
        values = (run_id, *(after or ("", -1)), *states, limit)
        return [
            from_row(
                PartitionOutcome, row, state=read_column(row, "state", PartitionState), row=read_column(row, "row")
            )
            for row in self.database.rows(query, values)
        ]

    def every_partition(self, run_id: str) -> Iterator[PartitionOutcome]:
        """Yield all partitions of a run by topic and number, a page at a time in memory."""
        after: tuple[str, int] | None = None
        while page := self.partitions(run_id, limit=_PAGE, after=after):
            yield from page
            after = page[-1].topic, page[-1].partition

    def events(self, run_id: str, *, after: int = 0, limit: int = 500) -> list[RunEvent]:
        """Return the events of a run after the event ``after``."""
        query = "SELECT * FROM run_events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT ?"
        found = self.database.rows(query, (run_id, after, limit))
        return [from_row(RunEvent, row, data=read_column(row, "data")) for row in found]

    def fail_orphans(self) -> list[Run]:
        """Mark runs that a previous service left running as failed, and return them; called before any work.

        Waiting runs are kept: they were not started, and were promised to the caller.
        """
        orphans = [run for run in self.open_runs() if run.state is not RunState.QUEUED]
        for run in orphans:
            self._step(
                run.id,
                RunState.CANCELLED if run.state is RunState.CANCELLING else RunState.FAILED,
                OPEN,
                {"finished_ms": self.now_ms(), "error": json.dumps(plain([ORPHANED]))},
            )
        return orphans

    def prune(self, older_than_ms: int) -> int:
        """Delete runs that ended before ``older_than_ms``, with everything that belongs to them; return how many."""
        with self.database.write() as connection:
            marks = ", ".join("?" * len(FINAL))
            query = f"DELETE FROM runs WHERE state IN ({marks}) AND finished_ms < ?"  # noqa: S608
            count = connection.execute(query, (*FINAL, older_than_ms)).rowcount
        if count:
            self.unreadable.clear()
        return count

    def _step(self, run_id: str, state: RunState, since: Sequence[RunState], values: Mapping[str, object]) -> bool:
        """Move a run from one of the states ``since`` to ``state``; False if it is in another one."""
        sets = "".join(f", {column} = ?" for column in values)
        query = f"UPDATE runs SET state = ?{sets} WHERE id = ? AND state IN ({', '.join('?' * len(since))})"  # noqa: S608
        with self.database.write() as connection:
            cursor = connection.execute(query, (state.value, *values.values(), run_id, *since))
            if cursor.rowcount:
                self._report(connection, run_id, "state", {"state": state.value})
            return bool(cursor.rowcount)

    def publish(self, event: RunEvent) -> None:
        """Report a stored event."""
        for hear in tuple(self.listeners):
            hear(event)

    def _report(self, connection: sqlite3.Connection, run_id: str, kind: str, data: Row) -> None:
        """Store an event, and notify listeners afterwards, in the order of its number."""
        count = "UPDATE runs SET event_count = event_count + 1 WHERE id = ? RETURNING event_count"
        seq = int(connection.execute(count, (run_id,)).fetchone()[0])
        event = RunEvent(run_id=run_id, seq=seq, at_ms=self.now_ms(), kind=kind, data=data)
        insert_row(connection, "run_events", columns_of(event))
        self.database.once_kept(partial(self.publish, event))


def _run(row: sqlite3.Row) -> Run:
    """Return the run of a row.

    Raises:
        DataError: the row is damaged, or of a release that knows more.

    """
    try:
        return from_row(
            Run,
            row,
            request=request_from(json.loads(row["request"])),
            state=RunState(row["state"]),
            progress=json.loads(row["progress"] or "{}"),
            totals=json.loads(row["totals"] or "{}"),
            errors=tuple(
                ReportedError(code=one["code"], message=one["message"], hint=one["hint"], exit_code=one["exitCode"])
                for one in json.loads(row["error"] or "[]")
            ),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{DATABASE_FILE} in the state directory: the run {row['id']} cannot be read: {error}",
            hint=UNREADABLE_ROW,
        ) from error
