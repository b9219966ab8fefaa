"""The counts of the last scan of each day in each source, for the picture of their trend."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping

    from resnap.scheduler.state.database import Database

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


def scanned_days(database: Database, until_ms: int, most: int) -> list[ScannedDay]:
    """Return the days from the first known one to that of ``until_ms``, at most the last ``most``."""
    last = until_ms // DAY_MS
    query = "SELECT * FROM scan_days WHERE day > ? AND day <= ? ORDER BY day"
    with database.read() as connection:
        found = connection.execute(query, (last - most, last)).fetchall()
    by_day = defaultdict[int, dict[str, tuple[int, int]]](dict)
    for row in found:
        by_day[row["day"]][row["source"]] = (row["missing"], row["blocked_bytes"])
    return list(_fill_days(by_day, last)) if by_day else []


def prune_days(database: Database, older_than_ms: int) -> None:
    """Delete days that ended before ``older_than_ms``."""
    with database.write() as connection:
        connection.execute("DELETE FROM scan_days WHERE day < ?", (older_than_ms // DAY_MS,))


def keep_day(connection: sqlite3.Connection, source: str, at_ms: int) -> None:
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
