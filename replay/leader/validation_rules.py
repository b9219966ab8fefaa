"""The validation rules of a partition leader that differ between Kafka releases, and which release has which.

Source: ``ProducerAppendInfo`` and ``UnifiedLog``, as in 3.9.1, 4.0.0, 4.1.1, 4.2.0, 4.3.0 and 4.4.0; of 4.5 the change
that was merged for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRules:
    """The rules that differ between Kafka releases."""

    verifies_transactions: bool
    """From 3.6 on: the first batch of a transaction needs a guard, and no batch may overtake a lower one (KIP-890)."""
    transactions_v2: bool
    """From 4.0 on: each transaction has an epoch of its own."""
    checks_transactions_v2_early: bool = False
    """From 4.1 on: an epoch below the known one is refused before the transaction is verified (KAFKA-18042), and a
    producer of transactions v2 of which no batch is known must begin with sequence 0 (KAFKA-18202)."""
    markers_bring_next_epoch: bool = False
    """From 4.2 on: a marker of transactions v2 with the known epoch ends no open transaction (KIP-1228)."""
    markers_end_last_epoch: bool = False
    """From 4.3 on: but one with the last epoch there is does."""
    new_logs_begin_with_0: bool = False
    """From 4.5 on: a log that never held a record takes a first batch of sequence 0 alone (KAFKA-15591)."""


RULES_2_5: Final = ValidationRules(verifies_transactions=False, transactions_v2=False)
RULES_3_6: Final = ValidationRules(verifies_transactions=True, transactions_v2=False)
RULES_4_0: Final = ValidationRules(verifies_transactions=True, transactions_v2=True)
RULES_4_1: Final = replace(RULES_4_0, checks_transactions_v2_early=True)
RULES_4_2: Final = replace(RULES_4_1, markers_bring_next_epoch=True)
RULES_4_3: Final = replace(RULES_4_2, markers_end_last_epoch=True)
RULES_4_5: Final = replace(RULES_4_3, new_logs_begin_with_0=True)
NEWEST_RELEASE: Final = (4, 5)
"""Up to 4.4 the rules were compared with Kafka's own classes; of younger ones than this nothing is known here."""
_FIRST_RELEASES: Final = (
    *(((4, 5), RULES_4_5), ((4, 3), RULES_4_3), ((4, 2), RULES_4_2), ((4, 1), RULES_4_1), ((4, 0), RULES_4_0)),
    *(((3, 6), RULES_3_6), ((2, 5), RULES_2_5)),
)


def rules_of(release: tuple[int, int]) -> ValidationRules:
    """Return the rules of a release, major and minor.

    Raises:
        ValueError: it is older than 2.5, which had other checks, or newer than ``NEWEST_RELEASE``.

    """
    if release > NEWEST_RELEASE:
        newest = ".".join(map(str, NEWEST_RELEASE))
        raise ValueError(f"Kafka {release[0]}.{release[1]} is not known: the newest known release is {newest}")
    for first, rules in _FIRST_RELEASES:
        if release >= first:
            return rules
    raise ValueError(f"Kafka {release[0]}.{release[1]} is older than 2.5, the first release with these rules")
