"""The demonstration: a log loses its producer snapshots, and gets them back, verifiably.

It makes a log dir (``log``), deletes its snapshots as a broker before 2.8 does, and runs the same jobs as for any log
dir. Then it compares every snapshot in the store with the deleted one (``proof``).
"""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from resnap.replay.watching import Progress
from resnap.replay.window import AsOf, ReplayRules
from resnap.scheduler.clock import SystemClock
from resnap.scheduler.job.contract import Unread
from resnap.scheduler.verbs.demo.log import lose_snapshots, write_demo_log
from resnap.scheduler.verbs.demo.proof import Proof, prove
from resnap.scheduler.verbs.scan import Scanned, scanned
from resnap.storage.errors import LogDirError, UsageError
from resnap.storage.stores.urls import open_store
from resnap.tiering.planner import Planner
from resnap.tiering.selection import Scope
from resnap.tiering.store_check import store_check
from resnap.tiering.tier import TierRun, Uploading
from resnap.tiering.verifying.verification_journal import VerificationJournal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.verbs.demo.log import DemoPartition
    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.planner import PartitionScan
    from resnap.tiering.shipping.shipment import PartitionShipment, Shipped

TEMPORARY_PREFIX: Final = "resnap-demo-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiered:
    """What one run shipped, and what it found shipped already."""

    shipments: tuple[PartitionShipment, ...]
    """Shipments of partitions with something left to show."""
    already: int
    """Segments that an earlier run has shipped."""

    @property
    def shipped(self) -> tuple[Shipped, ...]:
        """Segments of all partitions."""
        return tuple(segment for shipment in self.shipments for segment in shipment.shipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """The acts of the demonstration, to be called in the order in which they stand."""

    root: Path
    """An empty directory."""
    planner: Planner
    """With the rules of ``rules_at``: the log ends at their T."""
    clock: Clock = field(default_factory=SystemClock)
    uploading: Uploading = field(default_factory=Uploading)

    @property
    def log_dir(self) -> Path:
        """What a broker has in ``log.dirs``."""
        return self.root / "log"

    @property
    def lost(self) -> Path:
        """Where the lost snapshots are, as ``<topic>-<partition>/<N>.snapshot``."""
        return self.root / "lost"

    @property
    def store_url(self) -> str:
        """What the segments are shipped into."""
        return (self.root / "store").absolute().as_uri()

    @property
    def now_ms(self) -> int:
        """T, when the log ends and expiry is judged."""
        return self.planner.rules.as_of.now_ms

    def write(self, seed: int) -> tuple[DemoPartition, ...]:
        """Make the log dir, with all snapshots.

        Raises:
            LogDirError: it cannot be written.

        """
        return write_demo_log(self.log_dir, seed=seed, now_ms=self.now_ms)

    def lose(self, partitions: tuple[DemoPartition, ...]) -> None:
        """Take away the snapshots that a broker before 2.8 does not keep.

        Raises:
            LogDirError: the files cannot be moved.

        """
        lose_snapshots(partitions, self.lost)

    def scan(self) -> tuple[PartitionScan, ...]:
        """Look what is missing.

        Raises:
            ResnapError: the log dir that was just made cannot be read.

        """
        results = tuple(scanned(self.planner.select(self._scope()), None, self.planner))
        for unread in (one for one in results if isinstance(one, Unread)):
            raise unread.faults[0]
        return tuple(one.scan for one in results if isinstance(one, Scanned))

    def tier(self, *, replaying: Progress, shipping: Progress) -> Tiered:
        """Rebuild the snapshots and ship what is eligible.

        Raises:
            ResnapError: engine or store failed.

        """
        run = TierRun(self.planner, self._store(), self.uploading, self.clock.now_ms)
        orders = run.orders(self.planner.select(self._scope()), None, None)
        planned = run.plans(orders)
        shipments = tuple(run.ship(orders, planned, replaying=replaying, shipping=shipping))
        for error in (error for shipment in shipments for error in shipment.failures):
            raise error
        return Tiered(shipments=shipments, already=sum(order.already for order in orders))

    def prove(self, partitions: tuple[DemoPartition, ...], progress: Progress) -> Proof:
        """Read every object of the store, and compare its snapshots with the broker's own.

        Raises:
            ResnapError: something cannot be read.

        """
        store = self._store()
        check = store_check(self.planner, store, self._scope(), VerificationJournal())
        return prove(partitions, self.lost, check.segments(progress), store, at_ms=self.now_ms)

    def tier_again(self, now_ms: int) -> Tiered:
        """Do it all a second time, at another T, and in this process, which spares it the start of a JVM.

        Raises:
            ResnapError: the store failed.

        """
        again = Planner(rules_at(now_ms), replace(self.planner.engine, kind="local"))
        return replace(self, planner=again).tier(replaying=Progress(), shipping=Progress())

    def _scope(self) -> Scope:
        return Scope(sources=(str(self.log_dir),))

    def _store(self) -> ObjectStore:
        return open_store(self.store_url)


def rules_at(now_ms: int) -> ReplayRules:
    """Return the rules of the demonstration, whatever is configured for real logs."""
    return ReplayRules(as_of=AsOf(now_ms=now_ms))


@contextmanager
def workplace(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    """Give an empty directory: ``directory``, made if missing, or a temporary one.

    The temporary one is removed at the end; after an error or an interrupt even if it was to be kept.

    Raises:
        UsageError: ``directory`` is not empty, or no directory.
        LogDirError: it cannot be made.

    """
    if directory is not None:
        _make_empty(directory)
        yield directory
        return
    root = _temporary()
    succeeded = False
    try:
        yield root
        succeeded = True
    finally:
        if not (succeeded and keep):
            shutil.rmtree(root, ignore_errors=True)


def _make_empty(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_empty = not any(directory.iterdir())
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{directory} is not a directory", hint="give a new one; it will be made") from error
    except OSError as error:
        raise LogDirError(f"{directory}: cannot be used: {error.strerror}", hint="choose another place") from error
    if not is_empty:
        raise UsageError(f"{directory} is not empty", hint="give a new directory, which will be made, or an empty one")


def _temporary() -> Path:
    try:
        return Path(mkdtemp(prefix=TEMPORARY_PREFIX))
    except OSError as error:
        raise LogDirError(f"no temporary directory can be made: {error.strerror}",
                          hint="`resnap demo --dir DIR` works in a place of your choice") from error  # fmt: skip
