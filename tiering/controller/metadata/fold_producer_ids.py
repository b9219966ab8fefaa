"""How records hand out producer ids: one block of 1,000 per record, named by the first id above it.

A controller never goes back, and leaves no gap. A log that does is not refused, since its image is what brokers use;
it is noted, and the block stands as it was given, so that an audit finds ids that two have, or nobody.

Source: ``ProducerIdsDelta``, ``ProducerIdsImage``, ``ProducerIdControlManager``, ``ZkMigrationClient``; KIP-730.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.tiering.controller.metadata.image import BlockSource, Note, ProducerIdBlock
from resnap.tiering.controller.metadata.records import (
    NO_BROKER,
    NO_BROKER_EPOCH,
    PRODUCER_ID_BLOCK_SIZE,
    ProducerIdsRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from resnap.tiering.controller.metadata.fold_state import FoldState, Place


def give_block(state: FoldState, record: ProducerIdsRecord, place: Place) -> None:
    """A block was given to a broker; or all ids so far were, by whom nobody knows any more."""
    source = _source(record, place)
    above = state.next_producer_id or 0
    allocated = source is BlockSource.ALLOCATED
    first = (
        max(record.next_producer_id - PRODUCER_ID_BLOCK_SIZE, 0) if allocated else min(above, record.next_producer_id)
    )
    if allocated and first != above:
        _note_order(state, record, place, above)
    known = source is not BlockSource.CHECKPOINT and record.broker_id != NO_BROKER
    state.producer_id_blocks.append(
        ProducerIdBlock(
            first_producer_id=first,
            next_producer_id=record.next_producer_id,
            broker_id=record.broker_id if known else None,
            broker_epoch=record.broker_epoch if known and record.broker_epoch != NO_BROKER_EPOCH else None,
            source=source,
            offset=place.offset,
            timestamp=place.timestamp,
        )
    )
    state.next_producer_id = record.next_producer_id


def _source(record: ProducerIdsRecord, place: Place) -> BlockSource:
    # Until 3.3 a checkpoint's record names a broker, the last one or 0, as if it were a request's.
    if place.offset is None or record.broker_id == NO_BROKER:
        return BlockSource.CHECKPOINT
    return BlockSource.MIGRATION if record.broker_epoch == NO_BROKER_EPOCH else BlockSource.ALLOCATED


def _note_order(state: FoldState, record: ProducerIdsRecord, place: Place, above: int) -> None:
    first = record.next_producer_id - PRODUCER_ID_BLOCK_SIZE
    what = (
        f"ids from {above} to {first} were given to nobody" if first > above else f"ids below {above} were given before"
    )
    text = f"the block of producer ids below {record.next_producer_id} does not begin at {above}: {what}"
    state.notes.append(Note(offset=place.offset, text=text))


HANDLERS: Final[dict[type, Callable[[FoldState, Any, Place], None]]] = {ProducerIdsRecord: give_block}
