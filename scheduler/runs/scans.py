"""The result of the last scan of each source, by partition, with the verdict that follows from it.

Of each day the counts of the last scan are kept, for the picture of their trend.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from resnap.scheduler.job.reports import SIZES
from resnap.scheduler.state.database import Database, columns_of, from_row, insert_row, read_column
from resnap.scheduler.verbs.scan import facts_in
from resnap.storage.log.names import TopicPartition
from resnap.tiering.judging.readiness import Judgement, RunRepair, Verdict, judge, topic_verdict
from resnap.tiering.judging.refusal import UnblockedBy

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from resnap.scheduler.runs.run import Row


DAY_MS: Final = 86_400_000


class ScannedDay(NamedTuple):
    """One day over all sources; a source without a scan that day has the counts of the previous scan."""

    start_ms: int
    missing: int
    """Boundaries without a usable snapshot."""
    blocked: int
    """Bytes of closed segments that a broker would not get to."""
    is_scanned: bool
    """Whether any source was scanned that day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedPartition:
    """One partition of a source as it was last seen."""

    source: str
    topic: str
    partition: int
    judgement: Judgement
    missing: int
    row: Row
    """As ``ScanRow`` makes it."""
    scanned_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedSource:
    """A source, and when it was scanned."""

    source: str
    scanned_ms: int | None
    """When a scan last saw anything."""
    tried_ms: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedTopic:
    """A topic as it was last seen, over all sources."""

    topic: str
    counts: Mapping[Verdict, int]
    """Partitions by verdict."""
    reasons: Mapping[str, int]
    """Partitions that are not ready, by reason."""
    missing: int
    """Boundaries without a usable snapshot."""
    tierable: int
    """Bytes of closed segments that a broker can tier."""
    blocked: int
    """Bytes of closed segments that it would not get to."""
    shipped: int
    """Bytes of closed segments that are in a store already."""
    freeable: int
    """Bytes that it could delete from its disk once nothing is blocked."""

    @property
    def verdict(self) -> Verdict:
        """The verdict on the topic."""
        return topic_verdict([verdict for verdict, count in self.counts.items() if count])

    @property
    def closed(self) -> int:
        """Bytes of all closed segments."""
        return self.tierable + self.blocked + self.shipped


class TopicOrder(StrEnum):
    """What topics are sorted by; ties by name."""

    NAME = "name"
    BLOCKED = "blocked"
    FREEABLE = "freeable"
    MISSING = "missing"
    PARTITIONS = "partitions"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFilter:
    """Which partitions a list is of; empty means all."""

    topic: str | None = None
    """A glob."""
    verdict: tuple[Verdict, ...] = ()
    unblocked_by: tuple[UnblockedBy, ...] = ()
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Scans:
    """The tables of partitions, sources and repairs in the service's file."""

    database: Database
    now_ms: Callable[[], int]

    def keep(
        self,
        source: str,
        rows: Iterable[Row],
        selects: Callable[[TopicPartition], bool] = lambda _: True,
        *,
        unread: str | None = None,
    ) -> None:
        """Keep what a scan of ``source`` showed, instead of what the last one did.

        Args:
            source: as the scan was given it.
            rows: of the partitions that were seen.
            selects: whether a partition was selected; of others what is known stays.
            unread: what of it could not be read, if anything could not.

        """
        at_ms = self.now_ms()
        with self.database.write() as connection:
            for topic, partition in connection.execute(
                "SELECT topic, partition FROM partitions WHERE source = ?", (source,)
            ).fetchall():
                if selects(TopicPartition(topic, partition)):
                    connection.execute(f"DELETE FROM partitions {_PLACE}", (source, topic, partition))  # noqa: S608
            for row in rows:
                self._insert(connection, source, row, at_ms)
            if unread is None:
                _keep_day(connection, source, at_ms)
            _note_try(connection, source, at_ms, error=unread, was_seen=True)

    def days(self, until_ms: int, most: int) -> list[ScannedDay]:
        """Return the days from the first known one to that of ``until_ms``, at most the last ``most``."""
        last = until_ms // DAY_MS
        query = "SELECT * FROM scan_days WHERE day > ? AND day <= ? ORDER BY day"
        found = self.database.rows(query, (last - most, last))
        by_day = defaultdict[int, dict[str, tuple[int, int]]](dict)
        for row in found:
            by_day[row["day"]][row["source"]] = (row["missing"], row["blocked_bytes"])
        return list(_fill_days(by_day, last)) if by_day else []

    def prune_days(self, older_than_ms: int) -> None:
        """Delete days that ended before ``older_than_ms``."""
        with self.database.write() as connection:
            connection.execute("DELETE FROM scan_days WHERE day < ?", (older_than_ms // DAY_MS,))

    def keep_error(self, source: str, error: str) -> None:
        """Note that ``source`` could not be scanned; what was seen of it before stays."""
        with self.database.write() as connection:
            _note_try(connection, source, self.now_ms(), error=error, was_seen=False)

    def forget_others(self, sources: Sequence[str]) -> None:
        """Forget what was seen of any source but these."""
        others = f"source NOT IN ({', '.join('?' * len(sources))})"
        with self.database.write() as connection:
            for table in ("partitions", "sources", "scan_days"):
                connection.execute(f"DELETE FROM {table} WHERE {others}", tuple(sources))  # noqa: S608

    def repaired(self, source: str, topic: str, partition: int, repair: RunRepair) -> None:
        """Note what a run has made of a partition; the answer for it is found again."""
        place = (source, topic, partition)
        with self.database.write() as connection:
            connection.execute(f"{_DELETE_REPAIR} AND how = ?", (*place, repair.how))
            offsets = sorted(repair.offsets)
            insert_row(connection, "mendings", {**_at(place), **columns_of(repair), "offsets": offsets})
            query = f"SELECT row, scanned_ms FROM partitions {_PLACE}"  # noqa: S608
            seen = connection.execute(query, place).fetchone()
            if seen is not None:
                connection.execute(f"DELETE FROM partitions {_PLACE}", place)  # noqa: S608
                self._insert(connection, source, read_column(seen, "row"), seen["scanned_ms"])

    def check_repairs(
        self, source: str, selects: Callable[[TopicPartition], bool], is_there: Callable[[str, str], bool | None]
    ) -> set[str]:
        """Record which results of runs still exist, by destination and prefix; return the destinations of deleted ones.

        Where ``is_there`` does not know, all is as it was.
        """
        query = "SELECT topic, partition, how, destination, is_there FROM mendings WHERE source = ?"
        made = [tuple(row) for row in self.database.rows(query, (source,))]
        found, gone = [], set[str]()
        for topic, partition, how, destination, was_there in made:
            if selects(TopicPartition(topic, partition)):
                is_now = is_there(destination, f"{topic}-{partition}/" if how == "regenerated" else "")
                if is_now is not None:
                    found.append((is_now, source, topic, partition, how, destination))
                gone |= {destination} if was_there and is_now is False else set()
        update = f"UPDATE mendings SET is_there = ? {_PLACE} AND how = ? AND destination = ?"  # noqa: S608
        with self.database.write() as connection:
            connection.executemany(update, found)
        return gone

    def page(
        self, wanted: PartitionFilter, *, limit: int, after: tuple[str, int, str] | None = None
    ) -> list[ScannedPartition]:
        """Return up to ``limit`` partitions by topic, number and source, those behind ``after`` if it is given."""
        where, values = _where(wanted)
        query = f"""SELECT * FROM partitions WHERE {where} AND (topic, partition, source) > (?, ?, ?)
                    ORDER BY topic, partition, source LIMIT ?"""  # noqa: S608 - made of our words
        return self._partitions(query, (*values, *(after or ("", -1, "")), limit))

    def page_by_topic(
        self, wanted: PartitionFilter, order: TopicOrder, *, limit: int, skip: int = 0
    ) -> list[ScannedPartition]:
        """Return up to ``limit`` partitions, topic by topic in ``order``, behind the first ``skip``."""
        where, values = _where(wanted)
        query = f"""WITH page AS (
                        SELECT source, topic, partition, {_ORDERS[order]} OVER (PARTITION BY topic) AS weight
                        FROM partitions WHERE {where}
                        ORDER BY weight DESC, topic, partition, source LIMIT ? OFFSET ?)
                    SELECT partitions.* FROM page JOIN partitions USING (source, topic, partition)
                    ORDER BY weight DESC, topic, partition, source"""  # noqa: S608 - made of our words
        return self._partitions(query, (*values, limit, skip))

    def topics(
        self, wanted: PartitionFilter, *, limit: int, skip: int = 0, order: TopicOrder = TopicOrder.NAME
    ) -> list[ScannedTopic]:
        """Return up to ``limit`` topics in ``order`` that have a partition as ``wanted``, behind the first ``skip``."""
        where, values = _where(wanted)
        query = f"""SELECT topic FROM partitions WHERE {where} GROUP BY topic
                    ORDER BY {_ORDERS[order]} DESC, topic LIMIT ? OFFSET ?"""  # noqa: S608 - made of our words
        names = [row["topic"] for row in self.database.rows(query, (*values, limit, skip))]
        found = {topic.topic: topic for topic in self.topics_named(names)}
        return [found[name] for name in names if name in found]

    def topics_named(self, names: Iterable[str]) -> list[ScannedTopic]:
        """Return these topics by name, each with all of its partitions."""
        wanted = sorted(set(names))
        query = f"""SELECT topic, verdict, reason, COUNT(*) AS n, {_SUMMED} FROM partitions
                    WHERE topic IN ({", ".join("?" * len(wanted))}) GROUP BY topic, verdict, reason"""  # noqa: S608
        counts = {name: dict.fromkeys(Verdict, 0) for name in wanted}
        reasons = {name: Counter[str]() for name in wanted}
        sums = {name: Counter[str]() for name in wanted}
        for row in self.database.rows(query, wanted):
            counts[row["topic"]][read_column(row, "verdict", Verdict)] += row["n"]
            reasons[row["topic"]].update({row["reason"]: row["n"]} if row["reason"] else {})
            sums[row["topic"]].update({name: row[name] for name in _SUMS})
        return [
            ScannedTopic(
                topic=name, counts=counts[name], reasons=reasons[name], **{key: sums[name][key] for key in _SUMS}
            )
            for name in wanted
        ]

    def topics_by_verdict(self) -> dict[Verdict, list[str]]:
        """Return the names of all topics by verdict."""
        verdicts = defaultdict[str, set[Verdict]](set)
        for row in self.database.rows("SELECT DISTINCT topic, verdict FROM partitions ORDER BY topic"):
            verdicts[row["topic"]].add(read_column(row, "verdict", Verdict))
        found: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
        for topic, of_partitions in verdicts.items():
            found[topic_verdict(of_partitions)].append(topic)
        return found

    def waiting(self) -> dict[UnblockedBy, int]:
        """Return how many partitions wait for what unblocks them."""
        query = "SELECT unblocked_by, COUNT(*) AS n FROM partitions WHERE unblocked_by IS NOT NULL GROUP BY 1"
        return {read_column(row, "unblocked_by", UnblockedBy): row["n"] for row in self.database.rows(query)}

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all closed segments: ``tierable``, ``blocked``, ``shipped``, ``freeable``."""
        row = next(self.database.rows(f"SELECT {_SUMMED} FROM partitions"))  # noqa: S608 - made of our words
        return {name: row[name] or 0 for name in _SUMS if name != "missing"}

    def missing_by_source(self) -> dict[str, int]:
        """Return how many boundaries of each source lack a usable snapshot, without those that cannot be tiered."""
        query = "SELECT source, SUM(missing) AS missing FROM partitions GROUP BY source"
        return {row["source"]: row["missing"] for row in self.database.rows(query)}

    def waiting_by_source(self) -> dict[str, int]:
        """Return how many milliseconds the oldest segment of each source had waited to be copied when it was seen."""
        query = f"SELECT source, MAX({_WAITED}) AS waited FROM partitions GROUP BY source"  # noqa: S608
        return {row["source"]: row["waited"] for row in self.database.rows(query) if row["waited"] is not None}

    def overdue(self, after_ms: int, *, limit: int) -> list[ScannedPartition]:
        """Return up to ``limit`` partitions in which a segment had waited to be copied for longer than ``after_ms``."""
        query = f"SELECT * FROM partitions WHERE {_WAITED} > ? ORDER BY {_WAITED} DESC, topic, partition LIMIT ?"  # noqa: S608
        return self._partitions(query, (after_ms, limit))

    def find(self, topic: str, partition: int, source: str | None = None) -> list[ScannedPartition]:
        """Return a partition as it was seen in each source, or in ``source``."""
        query = "SELECT * FROM partitions WHERE topic = ? AND partition = ? AND source = IFNULL(?, source)"
        return self._partitions(query, (topic, partition, source))

    def _partitions(self, query: str, values: Sequence[object]) -> list[ScannedPartition]:
        """Return what rows of the table represent, with two queries for any number of rows."""
        kept = list(self.database.rows(query, values))
        with self.database.read() as connection:
            repairs = _repairs_of(connection, [(row["source"], row["topic"], row["partition"]) for row in kept])
        found = []
        for one in kept:
            row, facts = read_column(one, "row", lambda text: (read := json.loads(text), facts_in(read)))
            judgement = judge(facts, repairs[one["source"], one["topic"], one["partition"]])
            found.append(from_row(ScannedPartition, one, judgement=judgement, row=row))
        return found

    def repairs(self, seen: ScannedPartition) -> Sequence[RunRepair]:
        """Return what runs have made of a partition."""
        with self.database.read() as connection:
            return _repairs(connection, seen.source, seen.topic, seen.partition)

    def prepared_by(self, run_id: str) -> list[str]:
        """Return the directory of one partition of each source for which a run has made what is not installed yet."""
        query = """SELECT MIN(json_extract(row, '$.path')) AS path FROM mendings JOIN partitions
                   USING (source, topic, partition)
                   WHERE run_id = ? AND how = 'regenerated' AND unblocked_by = ? GROUP BY source"""
        return [row["path"] for row in self.database.rows(query, (run_id, UnblockedBy.INSTALL.value))]

    def counts(self, wanted: PartitionFilter | None = None) -> dict[Verdict, int]:
        """Return how many partitions have each verdict."""
        where, values = _where(wanted or PartitionFilter())
        query = f"SELECT verdict, COUNT(*) AS n FROM partitions WHERE {where} GROUP BY verdict"  # noqa: S608
        found = {row["verdict"]: row["n"] for row in self.database.rows(query, values)}
        return {verdict: found.get(verdict.value, 0) for verdict in Verdict}

    def sources(self) -> list[ScannedSource]:
        """Return every source that was scanned."""
        found = self.database.rows("SELECT * FROM sources ORDER BY source")
        return [from_row(ScannedSource, row, scanned_ms=row["scanned_ms"] or None) for row in found]

    def _insert(self, connection: sqlite3.Connection, source: str, row: Row, at_ms: int) -> None:
        topic, partition = row["topic"], row["partition"]
        judgement = judge(facts_in(row), _repairs(connection, source, topic, partition))
        kept = {
            "verdict": judgement.verdict,
            "unblocked_by": judgement.unblocked_by,
            "reason": judgement.reason,
            "missing": 0 if judgement.verdict is Verdict.NEVER else row["lost"],
            "row": row,
        }
        sizes = _sizes(row, judgement)
        insert_row(connection, "partitions", {**_at((source, topic, partition)), **kept, "scanned_ms": at_ms, **sizes})


def _sizes(row: Row, judgement: Judgement) -> dict[str, int]:
    """Return the bytes of a partition by what tiering would do; what runs have shipped is no longer blocked."""
    tierable, blocked, shipped, freeable = (row.get(name) or 0 for name in SIZES)
    is_shipped = judgement.unblocked_by is UnblockedBy.ANNOUNCE
    return {
        "tierable_bytes": tierable,
        "blocked_bytes": 0 if is_shipped else blocked,
        "shipped_bytes": shipped + (blocked if is_shipped else 0),
        "freeable_bytes": freeable,
    }


_SUMS = ("missing", "tierable", "blocked", "shipped", "freeable")
_SUMMED = ", ".join(f"SUM({key if key == 'missing' else f'{key}_bytes'}) AS {key}" for key in _SUMS)
_ORDERS = {
    TopicOrder.NAME: "MAX(0)",
    TopicOrder.BLOCKED: "SUM(blocked_bytes)",
    TopicOrder.FREEABLE: "SUM(freeable_bytes)",
    TopicOrder.MISSING: "SUM(missing)",
    TopicOrder.PARTITIONS: "COUNT(*)",
}
"""The orders of the partitions of a topic; the largest come first."""
_WAITED = "scanned_ms - json_extract(row, '$.waiting.sinceMs')"
_Place: TypeAlias = tuple[str, str, int]
"""Source, topic, partition."""
_PLACE = "WHERE source = ? AND topic = ? AND partition = ?"
_DELETE_REPAIR = f"DELETE FROM mendings {_PLACE}"  # noqa: S608 - made of our words


def _at(place: _Place) -> dict[str, object]:
    return dict(zip(("source", "topic", "partition"), place, strict=True))


def _where(wanted: PartitionFilter) -> tuple[str, list[object]]:
    clauses, values = ["1"], list[object]()
    for clause, value in (("topic GLOB ?", wanted.topic), ("source = ?", wanted.source)):
        if value is not None:
            clauses.append(clause)
            values.append(value)
    for column, among in (("verdict", wanted.verdict), ("unblocked_by", wanted.unblocked_by)):
        if among:
            clauses.append(f"{column} IN ({', '.join('?' * len(among))})")
            values += [glob.value for glob in among]
    return " AND ".join(clauses), values


def _repairs(connection: sqlite3.Connection, source: str, topic: str, partition: int) -> Sequence[RunRepair]:
    """Return what was made of a partition, what was shipped first."""
    return _repairs_of(connection, [(source, topic, partition)])[source, topic, partition]


def _repairs_of(connection: sqlite3.Connection, places: Sequence[_Place]) -> dict[_Place, list[RunRepair]]:
    """Return the results of runs that still exist, for each partition; shipped ones come first."""
    found: dict[_Place, list[RunRepair]] = {place: [] for place in places}
    wanted = ", ".join(["(?, ?, ?)"] * len(places))
    query = f"""SELECT * FROM mendings WHERE is_there AND (source, topic, partition) IN (VALUES {wanted})
                ORDER BY how DESC"""  # noqa: S608
    values = [part for place in places for part in place]
    for row in connection.execute(query, values) if places else ():
        repair = from_row(RunRepair, row, offsets=frozenset(read_column(row, "offsets")))
        found[row["source"], row["topic"], row["partition"]].append(repair)
    return found


def _note_try(connection: sqlite3.Connection, source: str, at_ms: int, *, error: str | None, was_seen: bool) -> None:
    scanned = "excluded.scanned_ms" if was_seen else "sources.scanned_ms"
    connection.execute(
        f"""INSERT INTO sources (source, scanned_ms, tried_ms, error) VALUES (?, ?, ?, ?) ON CONFLICT (source)
            DO UPDATE SET scanned_ms = {scanned}, tried_ms = excluded.tried_ms, error = excluded.error""",  # noqa: S608
        (source, at_ms if was_seen else 0, at_ms, error),
    )


def _keep_day(connection: sqlite3.Connection, source: str, at_ms: int) -> None:
    """Store the current counts of a source as those of this day."""
    connection.execute(
        """INSERT OR REPLACE INTO scan_days SELECT ?, ?, TOTAL(missing), TOTAL(blocked_bytes) FROM partitions
           WHERE source = ?""",
        (at_ms // DAY_MS, source, source),
    )


def _fill_days(by_day: Mapping[int, Mapping[str, tuple[int, int]]], last: int) -> Iterator[ScannedDay]:
    """Yield every day from the first to ``last``; a source without a scan counts as it did before."""
    known = dict[str, tuple[int, int]]()
    for day in range(min(by_day), last + 1):
        known |= by_day.get(day, {})
        missing, blocked = zip(*known.values(), strict=True)
        yield ScannedDay(day * DAY_MS, sum(missing), sum(blocked), is_scanned=day in by_day)
