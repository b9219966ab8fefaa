"""How shipments are shown."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from resnap.scheduler.answers.rendering import PARTITION, Answer, Column, Row, human_bytes, human_count
from resnap.scheduler.cli.failures import OK
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.replayed import count_of
from resnap.scheduler.clock import instant

if TYPE_CHECKING:
    from resnap.scheduler.answers.progress import CountedProgress
    from resnap.scheduler.use_cases.work_items import TierOrder
    from resnap.storage.errors import VerificationError
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.eligibility import Candidates, Eligibility
    from resnap.tiering.shipping.shipment import PartitionShipment


def answer_tier(
    run: Invocation, orders: "list[TierOrder]", shipments: "Iterator[PartitionShipment]", counted: "CountedProgress"
) -> bool:
    """Print what was shipped and what was not, partition by partition, and why; return whether the store held out."""
    told = _Told(run, orders, counted)
    run.answer(
        Answer(
            name="partitions",
            kind="partition",
            rows=told.rows(shipments),
            columns=_SHIPPED,
            tail=told.tail,
            closing=told.closing,
        )
    )
    for error in (*told.failures, *told.faults):
        run.error(error)
    run.partly_done = run.partly_done or (bool(told.totals["already"]) and not told.failures)
    return not told.has_halted


def report_held(run: Invocation, wrong: "Iterable[VerificationError]") -> int:
    """Report what is wrong with what earlier runs have shipped, and return the exit code that it calls for by itself.

    This run has done its work all the same: where nothing else was wrong, it was not done in part.
    """
    has_failed = run.failures.exit_code(OK, partly_done=run.partly_done) != OK
    found = OK
    for error in wrong:
        run.error(error)
        found = error.exit_code
    return OK if has_failed else found


def doubts(order: "TierOrder") -> str:
    """Say which segments of the store may lack producers."""
    return (
        f"{order.sighted.topic_partition}: {len(order.doubted)} segments that the store holds, from offset"
        f" {order.doubted[0].base_offset} on, were made under narrower rules than those of this run, or from a shorter"
        " log"
    )


class _Told:
    """The rows of a run, and what is known once they were made."""

    def __init__(self, run: Invocation, orders: "list[TierOrder]", counted: "CountedProgress") -> None:
        self._run = run
        self._counted = counted
        self._finished = 0
        """Segments of partitions that were finished, as ``counted`` has them."""
        self._orders = orders
        self._stops: dict[str, str] = {}
        self._is_through = self.has_halted = False
        self.totals = {"shipped": 0, "bytes": 0, "already": sum(order.already for order in orders), "refused": 0}
        self.failures: list[Exception] = []
        """What ended a partition, or the run."""
        self.faults: list[Exception] = []
        """Why segments were refused, where that is an error."""

    def rows(self, shipments: "Iterator[PartitionShipment]") -> Iterator[Row]:
        """Yield a row per partition: what was shipped as it happens, then those with nothing to ship."""
        from resnap.scheduler.answers.reports import shipment_row
        from resnap.storage.errors import LockedError

        waiting = {order.sighted.topic_partition: order for order in self._orders}
        coming = [partition for partition, order in waiting.items() if order.candidates.segments]
        for shipment in _in_order(shipments, coming):
            order = waiting.pop(shipment.topic_partition)
            self._finished += len(shipment.shipped) + shipment.already - order.already
            self.failures.extend(shipment.failures)
            self.totals["shipped"] += len(shipment.shipped)
            self.totals["bytes"] += sum(segment.size_bytes for segment in shipment.shipped)
            self._run.partly_done = self._run.partly_done or bool(shipment.shipped)
            self._judge(shipment.topic_partition, shipment.eligibility)
            yield shipment_row(shipment)
        self.has_halted = any(not isinstance(failure, LockedError) for failure in self.failures)
        for order in [] if self.has_halted else list(waiting.values()):
            self._judge(order.sighted.topic_partition, order.candidates)
            yield _nothing_left(order)
        self._is_through = not self.failures

    def _judge(self, topic_partition: "TopicPartition", judged: "Candidates | Eligibility") -> None:
        from resnap.scheduler.answers.faults import shipping_faults

        self.totals["refused"] += len(judged.refusals)
        self.faults.extend(shipping_faults(topic_partition, judged.refusals))
        if judged.blocking is not None:
            self._stops.setdefault(judged.blocking.reason.value, judged.blocking.hint)

    def tail(self) -> dict[str, int]:
        """Return the totals; where the run was cut short, with what is in the store of partitions it did not finish."""
        unfinished = self._counted.segments - self._finished
        return {**self.totals, "unfinished": unfinished} if unfinished and not self._is_through else self.totals

    def closing(self) -> Iterator[str]:
        """Yield the totals in words, and what to do about each reason for a stop."""
        yield from _tier_sum(self.tail(), is_through=self._is_through)
        yield from _settled_sum(self._orders)
        for reason, hint in self._stops.items():
            yield f"{reason}: {hint}."


def _in_order(
    shipments: "Iterator[PartitionShipment]", order: "Iterable[TopicPartition]"
) -> "Iterator[PartitionShipment]":
    """Yield shipments in ``order``: each waits for those before it, up to the end, an error or an interrupt."""
    left, held = deque(order), {}
    try:
        for shipment in shipments:
            held[shipment.topic_partition] = shipment
            while left and left[0] in held:
                yield held.pop(left.popleft())
    except (KeyboardInterrupt, Exception):
        yield from held.values()
        raise
    yield from (held[partition] for partition in left if partition in held)


def _nothing_left(order: "TierOrder") -> Row:
    from resnap.scheduler.answers.reports import identity, refusal_row

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


_SHIPPED: Final = (
    PARTITION,
    Column(key="shipped", title="SHIPPED", right=True, show=count_of),
    Column(key="already", title="ALREADY", right=True),
    Column(key="shipped", title="SNAPSHOTS", show=_kinds_of_snapshots),
    Column(key="blocking", title="STOPS", show=_stop),
)


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
    unfinished = totals.get("unfinished")
    if unfinished:
        shipped = human_count(totals["shipped"] + unfinished)
        what = (
            f"{shipped} segments shipped, each verified; {human_count(unfinished)} of them are of partitions that the"
        )
        return [f"{what} run did not finish. The same command again does the rest."]
    if not totals["shipped"]:
        what = "Nothing to ship" if is_through else "Nothing was shipped"
        return [f"{what}: {human_count(totals['already'])} segments are there already."]
    shipped = f"{human_count(totals['shipped'])} segments shipped ({human_bytes(totals['bytes'])}), each verified"
    return [f"{shipped}, {human_count(totals['already'])} were there already."]
