"""The census of a broker's producers, from producer snapshots: their number, ages and expirations.

Entries are processed as arrays and only counted, by their age at one moment, so that tens of millions take no more
memory than a few. The age bins have an edge at each hour of the first days, at each day after that, and at each
requested expiration, so that the numbers of expiring producers are exact, not estimated from a histogram.

Source: ``ProducerStateManager.isProducerExpired``: an entry goes once it has been silent for the expiration, unless it
has an open transaction.

A log does not record principals: producer ids are mapped to them by a file, or by topic. The file is CSV with a header:
``producerId,topic,principal``, or ``producerId,topic,transactionalId,principal``. The first is an id or a range as
``1000-1999``, the second and third are globs; each may be empty, and the first matching line counts. Ids without a
match belong to ``unmapped``. ``User:alice`` and ``alice`` are one principal.

``__transaction_state`` gives the transactional id of a producer (``PrincipalMap.knowing``); a producer that is not in
it matches no line with a transactional id.
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from resnap.storage.errors import UsageError
from resnap.storage.log.producer_snapshot import NO_OPEN_TRANSACTION
from resnap.tiering.quota.client_quotas import user_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from resnap.tiering.quota.layers import Ids

Mask: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.bool_]]"
HEAD: Final = ["producerId", "topic", "principal"]
LONG_HEAD: Final = ["producerId", "topic", "transactionalId", "principal"]
UNMAPPED: Final = "unmapped"
_MOST: Final = (1 << 63) - 1
_HINT: Final = f"lines are {','.join(HEAD)}, as in 1000-1999,payments*,User:alice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of the file; the range of ids is closed."""

    first: int = 0
    last: int = _MOST
    topics: str = "*"
    transactional_ids: str = "*"
    principal: str

    producers: tuple[int, ...] = ()
    """Ids that are known to have such a transactional id, if the rule requires one."""

    def knowing(self, transactional_ids: Mapping[int, str]) -> Rule:
        """Return the rule with these transactional ids, if it uses any."""
        if self.transactional_ids == "*":
            return self
        named = [one for one, name in transactional_ids.items() if fnmatchcase(name, self.transactional_ids)]
        return replace(self, producers=tuple(named))

    def fits(self, ids: Ids) -> Mask:
        """Return which of ``ids`` match."""
        found = (ids >= self.first) & (ids <= self.last)
        if self.transactional_ids == "*":
            return found
        return found & np.isin(ids, np.array(self.producers, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class PrincipalMap:
    """Rules in order; without any, a topic is its own principal."""

    rules: tuple[Rule, ...] = ()

    def knowing(self, transactional_ids: Mapping[int, str]) -> PrincipalMap:
        """Return the map that also uses these transactional ids, by producer id."""
        return PrincipalMap(tuple(rule.knowing(transactional_ids) for rule in self.rules))

    def split(self, topic: str, ids: Ids) -> Iterator[tuple[str, Mask]]:
        """Yield principals, and which of ``ids``, used in ``topic``, belong to each."""
        if not self.rules:
            yield f"topic {topic}", np.ones(len(ids), dtype=np.bool_)
            return
        left = np.ones(len(ids), dtype=np.bool_)
        for rule in self.rules:
            if fnmatchcase(topic, rule.topics):
                theirs = left & rule.fits(ids)
                left &= ~theirs
                if theirs.any():
                    yield rule.principal, theirs
        if left.any():
            yield UNMAPPED, left


def read_principal_map(lines: Iterable[str], name: str) -> PrincipalMap:
    """Return the map from the lines of the file ``name``.

    Raises:
        UsageError: a line is invalid.

    """
    reader = csv.reader(lines)
    try:
        rows = [(row, f"{name}, line {reader.line_num}") for row in reader if row]
    except csv.Error as error:
        raise UsageError(f"{name}, line {reader.line_num}: {error}", hint=_HINT) from error
    head = [cell.strip() for cell in rows[0][0]] if rows else []
    if head not in (HEAD, LONG_HEAD):
        raise UsageError(f"{name}: the first line must be {','.join(HEAD)}", hint=_HINT)
    return PrincipalMap(tuple(_rule(row, head, where) for row, where in rows[1:]))


def _rule(row: list[str], head: list[str], where: str) -> Rule:
    if len(row) != len(head) or not row[-1].strip():
        raise UsageError(f"{where}: expected {len(head)} cells, of which the last is a principal", hint=_HINT)
    ids, topics, *named, principal = (cell.strip() for cell in row)
    first, dash, last = ids.partition("-")
    try:
        low = int(first) if ids else 0
        high = (int(last) if dash else low) if ids else _MOST
    except ValueError:
        raise UsageError(f"{where}: {ids!r} is neither a producer id nor a range of them", hint=_HINT) from None
    if not 0 <= low <= high <= _MOST:
        raise UsageError(f"{where}: the range {ids!r} is empty", hint=_HINT)
    return Rule(
        first=low,
        last=high,
        topics=topics or "*",
        transactional_ids="".join(named) or "*",
        principal=user_name(principal),
    )


Ints = npt.NDArray[np.int64]

HEAP_BYTES: Final = 264
"""What an entry takes of a broker's heap once it has been loaded, with compressed references of a 64-bit JVM.

``HashMap.Node`` 32, ``Long`` 24, ``ProducerStateEntry`` 48, ``ArrayDeque`` 24 and its array 88, ``BatchMetadata`` 40,
and 8 of the table. Each further batch of the last five that a broker keeps takes 40 more.
"""
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
AGES: Final = {"1h": HOUR_MS, "6h": 6 * HOUR_MS, "1d": DAY_MS, "2d": 2 * DAY_MS, "7d": 7 * DAY_MS, "30d": 30 * DAY_MS}
"""Upper ends of the ages that people are shown; what is older is ``older``."""
HORIZONS: Final = {"now": 0, "1h": HOUR_MS, "6h": 6 * HOUR_MS, "1d": DAY_MS, "7d": 7 * DAY_MS}
"""The times from now for which the number of expired producers is reported."""
FEW: Final = 100
"""With fewer producers, a topic is never reported to get an id per message."""
MOST_WITH_ONE_BATCH: Final = 0.9
"""From this share of producers with a single batch on, a client seems to make an id per message."""
_FINE: Final = np.concatenate([np.arange(8 * 24) * HOUR_MS, np.arange(8, 61) * DAY_MS])


def age_edges(expirations_ms: Iterable[int]) -> Ints:
    """Return the edges of the age bins that make the requested expirations exact."""
    exact = [expiration - ahead for expiration in expirations_ms for ahead in HORIZONS.values()]
    return np.unique(np.concatenate([_FINE, np.array([*AGES.values(), *exact], dtype=np.int64)]))


def makes_an_id_per_message(producers: int, transactional: int, one_batch: int) -> bool:
    """Return whether nearly all producers without transactions wrote one batch only."""
    others = producers - transactional
    return others >= FEW and one_batch >= MOST_WITH_ONE_BATCH * others


@dataclass(slots=True)
class Owners:
    """The owners of producer ids, as far as known: principals by a file, transactional ids by producer id."""

    principals: PrincipalMap | None = None
    transactional_ids: Mapping[int, str] = field(default_factory=dict)
    _known: Ints = field(init=False)

    def __post_init__(self) -> None:
        self._known = np.sort(np.fromiter(self.transactional_ids, np.int64, len(self.transactional_ids)))

    def transactional_ids_of(self, ids: Ints) -> Iterator[str]:
        """Yield the transactional id of each producer for which it is known."""
        if len(self._known):
            at = np.searchsorted(self._known, ids).clip(max=len(self._known) - 1)
            yield from (self.transactional_ids[int(producer_id)] for producer_id in ids[self._known[at] == ids])


@dataclass(slots=True)
class Census:
    """The counts of some producers; bin ``k`` has the ages in [``edges[k - 1]``, ``edges[k]``)."""

    edges: Ints
    idle: Ints
    """Producers without an open transaction, by age."""
    open: Ints
    """Producers with an open transaction, which do not expire."""
    transactional: int = 0
    """Producers that a transaction marker was written for, or that have an open transaction."""
    one_batch: int = 0
    """Producers that never were in a transaction, and of which there is one batch alone."""
    principals: Counter[str] = field(default_factory=Counter)
    transactional_ids: Counter[str] = field(default_factory=Counter)
    """As far as it is known which transactional id a producer is of."""

    @classmethod
    def empty(cls, edges: Ints) -> Self:
        """Return a census of no producers."""
        return cls(edges, np.zeros(len(edges) + 1, np.int64), np.zeros(len(edges) + 1, np.int64))

    def count(self, topic: str, entries: npt.NDArray[np.void], now_ms: int, owners: Owners) -> None:
        """Count the entries of a snapshot, or some of them, each only once."""
        bins = np.searchsorted(self.edges, now_ms - entries["timestamp"].astype(np.int64), side="right")
        is_open = entries["current_txn_first_offset"] != NO_OPEN_TRANSACTION
        self.idle += np.bincount(bins[~is_open], minlength=len(self.idle))
        self.open += np.bincount(bins[is_open], minlength=len(self.open))
        is_transactional = is_open | (entries["coordinator_epoch"] >= 0)
        self.transactional += int(np.count_nonzero(is_transactional))
        # A producer's first batch begins with sequence 0; so may each transaction's, which has an epoch of its own.
        has_one = (entries["last_sequence"] >= 0) & (entries["last_sequence"] == entries["offset_delta"])
        self.one_batch += int(np.count_nonzero(has_one & ~is_transactional))
        ids = entries["producer_id"].astype(np.int64)
        self.transactional_ids.update(owners.transactional_ids_of(ids[is_transactional]))
        if owners.principals is not None:
            for principal, theirs in owners.principals.split(topic, ids):
                self.principals[principal] += int(np.count_nonzero(theirs))

    def add(self, other: Census) -> None:
        """Add the counts of ``other``, with the same bins."""
        self.idle += other.idle
        self.open += other.open
        self.transactional += other.transactional
        self.one_batch += other.one_batch
        self.principals.update(other.principals)
        self.transactional_ids.update(other.transactional_ids)

    @property
    def producers(self) -> int:
        """The number of producers, including expired ones."""
        return int(self.idle.sum() + self.open.sum())

    @property
    def open_transactions(self) -> int:
        """The number of producers with an open transaction."""
        return int(self.open.sum())

    @property
    def ahead(self) -> int:
        """The number of producers with a timestamp in the future."""
        return self._younger(0)

    def ages(self) -> dict[str, int]:
        """Return the number of producers in each of ``AGES``, and the number of ``older`` ones."""
        found, counted = dict[str, int](), 0
        for name, age_ms in AGES.items():
            younger = self._younger(age_ms)
            found[name], counted = younger - counted, younger
        return {**found, "older": self.producers - counted}

    def expired(self, expiration_ms: int, ahead_ms: int = 0) -> int:
        """Return how many will have expired in ``ahead_ms`` if none writes; both must be an edge, or whole hours."""
        return int(self.idle[np.searchsorted(self.edges, expiration_ms - ahead_ms) + 1 :].sum())

    def expires(self, expiration_ms: int) -> dict[str, int]:
        """Return how many will have expired at each of ``HORIZONS`` if none writes."""
        return {name: self.expired(expiration_ms, ahead_ms) for name, ahead_ms in HORIZONS.items()}

    def heap_bytes(self, expiration_ms: int) -> int:
        """Return the memory of the unexpired ones in a broker's heap, in bytes."""
        return (self.producers - self.expired(expiration_ms)) * HEAP_BYTES

    def _younger(self, age_ms: int) -> int:
        end = int(np.searchsorted(self.edges, age_ms)) + 1
        return int(self.idle[:end].sum() + self.open[:end].sum())
