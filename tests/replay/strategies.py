"""Events of producers as Hypothesis draws them: whatever bytes could say, be it sense or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hypothesis import strategies as st

from resnap.replay.producer_state import DataBatch, Event, Expiry, Marker, ServerTime
from resnap.storage.log.record_batch import MAX_SEQUENCE, wrap_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPIRY: Final = Expiry(1_000, 100)
FAR_FUTURE: Final = 2**63 - 1

timestamps = st.one_of(
    st.integers(0, 5_000),
    st.sampled_from((-1, 0, 1_099, 1_100, 1_101, 2_200, FAR_FUTURE - 1_100, FAR_FUTURE - 1, FAR_FUTURE)),
)
sequences = st.one_of(st.integers(0, 20), st.sampled_from((MAX_SEQUENCE, MAX_SEQUENCE - 1)))


class _Drawn(NamedTuple):
    kind: str
    producer_id: int
    epoch: int
    sequence: int
    records: int
    timestamp: int
    coordinator_epoch: int
    transactional: bool
    flag: bool


def event_lists(*, max_events: int = 24) -> st.SearchStrategy[list[Event]]:
    """Draw events of three producers at rising offsets: epochs and clocks go to and fro, transactions as they come."""
    drawn = st.builds(
        _Drawn,
        kind=st.sampled_from(("data", "data", "data", "marker", "marker", "server time", "nothing")),
        producer_id=st.integers(1, 3),
        epoch=st.sampled_from((0, 0, 0, 1, 2)),
        sequence=sequences,
        records=st.integers(1, 5),
        timestamp=timestamps,
        coordinator_epoch=st.integers(0, 3),
        transactional=st.sampled_from((True, True, False)),
        flag=st.booleans(),
    )
    return st.lists(drawn, max_size=max_events).map(_at_offsets)


def _at_offsets(drawn: Sequence[_Drawn]) -> list[Event]:
    events: list[Event] = []
    offset = 0
    for one in drawn:
        event = _event(one, offset)
        if event is not None:
            events.append(event)
        offset += one.records
    return events


def _event(drawn: _Drawn, offset: int) -> Event | None:
    match drawn.kind:
        case "data":
            return DataBatch(
                producer_id=drawn.producer_id, producer_epoch=drawn.epoch, base_sequence=drawn.sequence,
                last_sequence=wrap_sequence(drawn.sequence + drawn.records - 1), base_offset=offset,
                last_offset=offset + drawn.records - 1, timestamp=drawn.timestamp, transactional=drawn.transactional,
                append_time=drawn.flag and drawn.timestamp >= 0,
            )  # fmt: skip
        case "marker":
            return Marker(
                producer_id=drawn.producer_id, producer_epoch=drawn.epoch, coordinator_epoch=drawn.coordinator_epoch,
                offset=offset, timestamp=drawn.timestamp, commit=drawn.flag,
            )  # fmt: skip
        case "server time":
            return ServerTime(drawn.timestamp)
        case _:
            return None
