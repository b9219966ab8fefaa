"""How shipments are shown."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scheduler.answers.rendering import PARTITION, Answer, Column, Row, human_bytes, human_count
from scheduler.cli.invocation import Invocation
from scheduler.cli.replayed import count_of
from scheduler.clock import instant

if TYPE_CHECKING:
    from scheduler.use_cases.work_items import TierOrder
    from storage.log.names import TopicPartition
    from tiering.eligibility import Candidates, Eligibility
    from tiering.shipping.shipment import PartitionShipment


def answer_tier(run: Invocation, orders: "list[TierOrder]", shipments: "Iterator[PartitionShipment]") -> None:
    """Print what was shipped and what was not, partition by partition, and why."""
    from scheduler.answers.faults import shipping_faults
    from scheduler.answers.reports import shipment_row
    from storage.errors import LockedError

    totals = {"shipped": 0, "bytes": 0, "already": sum(order.already for order in orders), "refused": 0}
    waiting = {order.sighted.topic_partition: order for order in orders}
    failures: list[Exception] = []
    faults: list[Exception] = []
    stops: dict[str, str] = {}
    is_through = False

    def rows() -> Iterator[Row]:
        nonlocal is_through
        for shipment in shipments:
            waiting.pop(shipment.topic_partition)
            failures.extend(shipment.failures)
            totals["shipped"] += len(shipment.shipped)
            totals["bytes"] += sum(segment.size_bytes for segment in shipment.shipped)
            run.partly_done = run.partly_done or bool(shipment.shipped)
            yield from row(shipment.topic_partition, shipment_row(shipment), shipment.eligibility)
        halted = any(not isinstance(failure, LockedError) for failure in failures)
        for order in [] if halted else list(waiting.values()):
            yield from row(order.sighted.topic_partition, _nothing_left(order), order.candidates)
        is_through = not failures

    def row(topic_partition: "TopicPartition", told: Row, judged: "Candidates | Eligibility") -> Iterator[Row]:
        totals["refused"] += len(judged.refusals)
        faults.extend(shipping_faults(topic_partition, judged.refusals))
        if judged.blocking is not None:
            stops.setdefault(judged.blocking.reason.value, judged.blocking.hint)
        yield told

    run.answer(
        Answer(
            name="partitions",
            kind="partition",
            rows=rows(),
            columns=[
                PARTITION,
                Column(key="shipped", title="SHIPPED", right=True, show=count_of),
                Column(key="already", title="ALREADY", right=True),
                Column(key="shipped", title="SNAPSHOTS", show=_kinds_of_snapshots),
                Column(key="blocking", title="STOPS", show=_stop),
            ],
            tail=lambda: totals,
            closing=lambda: [
                *_tier_sum(totals, is_through=is_through),
                *_settled_sum(orders),
                *(f"{reason}: {hint}." for reason, hint in stops.items()),
            ],
        )
    )
    for error in (*failures, *faults):
        run.error(error)
    run.partly_done = run.partly_done or (bool(totals["already"]) and not failures)


def _nothing_left(order: "TierOrder") -> Row:
    from scheduler.answers.reports import identity, refusal_row

    return {
        **identity(order.sighted.topic_partition),
        "shipped": [],
        "already": order.already,
        "lastStableOffset": None,
        "refused": [refusal_row(refusal) for refusal in order.candidates.refusals],
        "blocking": refusal_row(order.candidates.blocking),
    }


def _kinds_of_snapshots(shipped: object) -> str:
    kinds = Counter(segment["snapshot"] for segment in shipped) if isinstance(shipped, list) else {}
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _stop(value: object) -> str:
    return f"{value['reason']}: {value['detail']}" if isinstance(value, dict) else "-"


def _settled_sum(orders: "list[TierOrder]") -> Iterator[str]:
    """Tell of what was refused before, and is refused again without having been read."""
    settled = [order for order in orders if order.settled is not None and order.recollection is not None]
    known = [order.recollection.memory.refused for order in settled if order.recollection is not None]
    if settled:
        segments = sum(len(order.candidates.segments) for order in settled)
        since = instant(max(refused.made_ms for refused in known if refused is not None))
        yield (
            f"{human_count(segments)} segments of {human_count(len(settled))} partitions wait as they did: nothing has"
            f" changed since {since}, and nothing was read."
        )


def _tier_sum(totals: dict[str, int], *, is_through: bool) -> list[str]:
    if not totals["shipped"]:
        what = "Nothing to ship" if is_through else "Nothing was shipped"
        return [f"{what}: {human_count(totals['already'])} segments are there already."]
    shipped = f"{human_count(totals['shipped'])} segments shipped ({human_bytes(totals['bytes'])}), each verified"
    return [f"{shipped}, {human_count(totals['already'])} were there already."]
