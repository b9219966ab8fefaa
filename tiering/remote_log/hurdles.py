"""Why segments are not announced, and what the operator does about it: the words of ``announcement``."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Hurdle(StrEnum):
    """Why a segment, and with it all above, is not announced; the values are codes that users and programs see."""

    TOPIC_UNKNOWN = "topic-unknown"
    TOPIC_ID_DIFFERS = "topic-id-differs"
    NOT_TIERED = "not-tiered"
    COMPACTED = "compacted"
    COPYING_NOT_PAUSED = "copying-not-paused"
    LEADER_CHANGED = "leader-changed"
    """Since it was judged."""
    POISONED = "poisoned"
    OTHER_LAYOUT = "other-layout"
    OTHER_STORE = "other-store"
    """What brokers believe in does not lie there."""
    GAP = "gap"
    OVERLAP = "overlap"
    ABOVE_LAST_STABLE_OFFSET = "above-last-stable-offset"
    LINEAGE_DIFFERS = "lineage-differs"
    NOT_SAYABLE = "not-sayable"
    """A record cannot hold it: no leader epoch, no timestamp, or a size over 2 GiB."""


_HINTS: Final = {
    Hurdle.TOPIC_UNKNOWN: "look at --bootstrap-server: another cluster?",
    Hurdle.TOPIC_ID_DIFFERS: "the topic was deleted and made anew: what was shipped is of the old one",
    Hurdle.NOT_TIERED: "set remote.storage.enable=true on the topic; brokers pass over what they hear of others",
    Hurdle.COMPACTED: "Kafka does not tier compacted topics",
    Hurdle.COPYING_NOT_PAUSED: "set remote.log.copy.disable=true on the topic (3.9 with KRaft), or stop its leaders",
    Hurdle.LEADER_CHANGED: "run again: it is judged by the new leader's log then",
    Hurdle.POISONED: "no broker reads past that record: see `resnap remote status`",
    Hurdle.OTHER_LAYOUT: "give --key-prefix as brokers have it, or ship in the layout that they read, to a new prefix",
    Hurdle.OTHER_STORE: "give the URL of what brokers tier to, and ship there",
    Hurdle.GAP: "ship what is missing: brokers never fill a gap below what is remote",
    Hurdle.OVERLAP: "let the brokers go on by themselves: they have copied here with other boundaries",
    Hurdle.ABOVE_LAST_STABLE_OFFSET: "run again when the transaction has ended",
    Hurdle.LINEAGE_DIFFERS: "ship the partition from the log dir of its leader, to a new prefix",
    Hurdle.NOT_SAYABLE: "let the broker copy it",
}


class Stop(NamedTuple):
    """Where announcing a partition ends, and why."""

    hurdle: Hurdle
    offset: int
    detail: str

    @property
    def hint(self) -> str:
        """What the operator does next."""
        return _HINTS[self.hurdle]
