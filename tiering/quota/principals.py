"""Maps producer ids to principals, by a file or by topic, because a log does not record principals.

The file is CSV with a header: ``producerId,topic,principal``, or ``producerId,topic,transactionalId,principal``. The
first is an id or a range as ``1000-1999``, the second and third are globs; each may be empty, and the first matching
line counts. Ids without a match belong to ``unmapped``. ``User:alice`` and ``alice`` are one principal.

``__transaction_state`` gives the transactional id of a producer (``PrincipalMap.knowing``); a producer that is not in
it matches no line with a transactional id.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from resnap.storage.errors import UsageError
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
