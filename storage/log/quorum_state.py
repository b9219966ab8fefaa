"""``quorum-state``: what a node of KRaft keeps of its quorum, as JSON beside the metadata log.

Version 1, of quorums whose voters can change (KIP-853), names no voters: these are in the metadata log.

Source: ``FileQuorumStateStore``, ``QuorumStateData.json``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from resnap.storage.errors import FormatError
from resnap.storage.json_values import typed

if TYPE_CHECKING:
    from collections.abc import Mapping


class QuorumState(NamedTuple):
    """The content of the file."""

    fields: Mapping[str, object]
    """All but the voters, under Kafka's names."""
    voters: tuple[int, ...]


def read_quorum_state(data: bytes) -> QuorumState:
    """Return the content of a ``quorum-state``.

    Raises:
        FormatError: it is not of that form.

    """
    try:
        fields = typed(dict, json.loads(data))
        typed(int, fields["leaderEpoch"])
        voters = tuple(typed(int, one["voterId"]) for one in fields.pop("currentVoters", None) or ())
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        expected = "JSON with leaderEpoch and currentVoters"
        raise FormatError("quorum state", position=0, expected=expected, found=f"{data[:80]!r} ({error})") from error
    return QuorumState(fields, voters)
