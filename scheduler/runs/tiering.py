"""A run that ships segments into a store."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from resnap.scheduler.answers.faults import shipping_faults
from resnap.scheduler.answers.reports import refusal_row, shipment_row
from resnap.scheduler.io_priority import set_io_priority
from resnap.scheduler.job import Mismatch, PartitionState
from resnap.scheduler.runs.work import Work
from resnap.storage.errors import ResnapError, VerificationError
from resnap.storage.stores.urls import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resnap.scheduler.runs.run import Row
    from resnap.scheduler.use_cases.work_items import Planned, TierOrder
    from resnap.tiering.shipping.shipment import PartitionShipment


class Tiering(Work):
    """Segments into a store."""

    def do(self) -> Row:
        """Ship what is eligible, or say what would be shipped."""
        set_io_priority(self.settings.io_priority)
        service = self.remembering()
        store = open_store(self.destination, self.settings.s3())
        orders, sight = service.tier_orders(self.scope, store, self.saved)
        self.problems(sight)
        for order in orders:
            self._failures(order.failures)
        planned = service.plan_orders(orders)
        if self.settings.dry_run:
            return self._dry(orders, planned)
        totals: Counter[str] = Counter(shipped=0, bytes=0, refused=0)
        waiting = {order.sighted.topic_partition: order for order in orders}
        shipments = service.tier(
            orders, planned, store, replaying=self.report.progress("replay"), shipping=self.report.progress("ship")
        )
        for shipment in shipments:
            self._tell(waiting.pop(shipment.topic_partition), shipment)
            totals.update(
                shipped=len(shipment.shipped),
                bytes=sum(segment.size_bytes for segment in shipment.shipped),
                refused=len(shipment.eligibility.refusals),
            )
        halted = bool(self.report.failed) and any(order.candidates.segments for order in waiting.values())
        for order in waiting.values():
            self._tell_unreached(order) if halted and order.candidates.segments else self._tell_nothing_left(order)
        if not halted:
            progress = self.report.progress("verify")
            for wrong in service.check_held(orders, progress, self.around.observer.warn):
                self.around.observer.mismatch(Mismatch.SNAPSHOT)
                self.failed(wrong)
        return {**totals, "already": sum(order.already for order in orders)}

    def _dry(self, orders: list[TierOrder], planned: list[Planned]) -> Row:
        left = [segment for order in orders for segment in order.candidates.segments]
        size_bytes = sum(segment.size_bytes for segment in left)
        return {**self.tell_planned(planned), "segmentsToShip": len(left), "bytesToShip": size_bytes}

    def _failures(self, failures: Iterable[ResnapError]) -> None:
        for failure in failures:
            if isinstance(failure, VerificationError):
                self.around.observer.mismatch(Mismatch.OBJECT)
            self.report.error(failure)

    def _tell(self, order: TierOrder, shipment: PartitionShipment) -> None:
        self._failures(shipment.failures)
        faults = shipping_faults(shipment.topic_partition, shipment.eligibility.refusals)
        for fault in faults:
            self.report.error(fault)
        if not shipment.failures and shipment.eligibility.blocking is None:
            self._all_shipped(order)
        if shipment.newest_snapshot is not None:
            self.activated(shipment.newest_snapshot)
        state = PartitionState.DONE if shipment.shipped else PartitionState.NOTHING_TO_DO
        failed = bool(shipment.failures or faults)
        self.tell(shipment.topic_partition, PartitionState.FAILED if failed else state, shipment_row(shipment))

    def _tell_nothing_left(self, order: TierOrder) -> None:
        if order.candidates.blocking is None and not order.candidates.segments:
            self._all_shipped(order)
        row = {
            "shipped": [],
            "already": order.already,
            "refused": [refusal_row(refusal) for refusal in order.candidates.refusals],
            "blocking": refusal_row(order.candidates.blocking),
        }
        topic_partition = order.sighted.topic_partition
        faults = shipping_faults(topic_partition, order.candidates.refusals)
        for fault in faults:
            self.report.error(fault)
        self.tell(topic_partition, PartitionState.FAILED if faults else PartitionState.NOTHING_TO_DO, row)

    def _tell_unreached(self, order: TierOrder) -> None:
        self.tell(order.sighted.topic_partition, PartitionState.FAILED, {"reason": "the store failed before its turn"})

    def _all_shipped(self, order: TierOrder) -> None:
        boundaries = order.sighted.inventory.boundaries
        mending = self.mending("shipped", frozenset(boundary.offset for boundary in boundaries))
        self.mended(order.sighted, mending)
