"""`resnap demo`: a log whose broker has deleted producer snapshots gets them back, verifiably; shown step by step.

``demo.tar.xz`` has a log dir that a broker 2.7.2 wrote and, as those before 2.8 do, cleared of snapshots (KAFKA-9393),
and every snapshot that the same broker had written, put aside before. The same jobs run as for any log dir. Then each
snapshot in the store is compared with the broker's own, as maps, since a broker orders entries by a hash table.
"""

import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any, Final, NamedTuple

import typer

from resnap.replay.window import AsOf, ReplayRules
from resnap.scheduler.cli.flags import ENGINE
from resnap.scheduler.job.contract import Context, Report, Reported, Request, Result, Unread, Verb, View
from resnap.scheduler.job.replaying import engine_of, uploading_of
from resnap.scheduler.job.reports import identity
from resnap.scheduler.output.records import plain, row_of
from resnap.scheduler.output.rendering import BYTES, PARTITION, Column, Row, align_rows, partition_name
from resnap.scheduler.verbs.scan import ScanRow, scan_partitions
from resnap.scheduler.verbs.tier import ShipmentRow
from resnap.storage.errors import LogDirError, ResnapError, UsageError
from resnap.storage.log.producer_snapshot import load_snapshot, read_snapshot
from resnap.storage.stores.urls import open_store
from resnap.storage.words import camel_case, human_bytes, human_count, human_duration, some
from resnap.tiering.planner import Planner
from resnap.tiering.selection import Scope
from resnap.tiering.shipping.segment_copy import Uploading
from resnap.tiering.shipping.shipment import PartitionShipment
from resnap.tiering.store_check import store_checks
from resnap.tiering.tier import TieredPartition, TierRow, TierWork, tier

PACKED: Final = Path(__file__).with_suffix(".tar.xz")
TEMPORARY_PREFIX: Final = "resnap-demo-"
WORTH_SAYING_S: Final = 0.1
READ: Final = (
    PARTITION,
    Column(key="segments", title="SEGMENTS", right=True),
    BYTES,
    Column(key="boundaries", title="SNAPSHOTS NEEDED", right=True),
    Column(key="lost", title="GONE", right=True),
)
TIMELINE: Final = (PARTITION, Column(key="before", title="LOG DIR"), Column(key="after", title="STORE"))
MARKS: Final = {"equal": "#", "different": "!", "absent": "!"}
_ELSEWHERE: Final = "`resnap demo --dir DIR` works in a place of your choice"
LEGEND: Final = "# a right snapshot   . none   ! wrong"


class DemoRequest(Request):
    """See it work: a log without its snapshots, the whole job is done, and the result compared; in a minute, here."""

    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", metavar="DIR", help="Work in this new directory, and keep it; the default is a temporary one."
        ),
    ] = None
    keep: Annotated[bool, typer.Option(help="Keep the temporary directory.")] = False


class DemoBoundary(NamedTuple):
    """What the store has in the end for a boundary of a partition; ``different`` are producer ids, ascending."""

    partition: str
    offset: int
    was_lost: bool
    fate: str
    entries: int = 0
    different: tuple[int, ...] = ()

    @property
    def problem(self) -> str | None:
        """What is not as it should be."""
        where, ids = f"{self.partition}: the snapshot at {self.offset}", ", ".join(map(str, self.different[:5]))
        differs = f"{where} differs from the broker's own, for {some(len(self.different), 'producer')}: {ids}"
        return {"different": differs, "absent": f"{where} is not in the store"}.get(self.fate)

    @property
    def row(self) -> Row:
        """The row of the boundary."""
        return {camel_case(name): plain(value) for name, value in self._asdict().items() if name != "partition"}


class DemoStep(Result):
    """A step is done: figures for programs, lines for people."""

    name: str
    elapsed_s: float
    figures: Row
    lines: Sequence[str]


class DemoEnd(Result):
    """All steps are done; ``lost`` are the boundaries without a snapshot in the log dir."""

    root: Path
    lost: tuple[DemoBoundary, ...]
    elapsed_s: float

    @property
    def equal(self) -> tuple[DemoBoundary, ...]:
        """Those whose snapshot in the store equals the broker's own."""
        return tuple(boundary for boundary in self.lost if boundary.fate == "equal")


def run(request: DemoRequest, context: Context, report: Report) -> None:
    """Take the steps one after the other, each with its title first; what is not as it should be is a fault of the end.

    Raises:
        UsageError: the directory is not empty.
        ResnapError: one of the steps failed.

    """
    # Whatever cluster is configured, its executors would not see a directory of this machine.
    settings = context.settings.model_copy(update={"spark_master": "local[*]"})
    with workplace(request.directory, keep=request.keep) as root, engine_of(settings, ahead=True) as engine:
        # Each snapshot as the broker wrote it then, whatever is configured for real logs.
        planner = Planner(ReplayRules(as_of=AsOf(now_ms=context.clock.now_ms(), roll=True)), engine)
        for step in _Demo(context, root, planner, uploading_of(settings)).steps():
            report(step)


class _Demo:
    """The steps of the demonstration one after the other, and how it ends."""

    def __init__(self, context: Context, root: Path, planner: Planner, uploading: Uploading) -> None:
        self._context, self._root, self._planner, self._uploading = context, root, planner, uploading
        self._scope = Scope(sources=(str(root / "log"),))
        self._store = open_store((root / "store").absolute().as_uri())
        self._boundaries: list[DemoBoundary] = []
        self._problems: list[str] = []

    def steps(self) -> Iterator[Reported[str] | DemoStep | DemoEnd]:
        on = "on Spark, which takes a while to start" if self._context.settings.engine == "spark" else "in this process"
        steps: tuple[tuple[str, str, Callable[[], tuple[Row, Sequence[str]]]], ...] = (
            ("log", "A broker 2.7.2 wrote a log, and deleted most of its producer snapshots itself.", self._read),
            ("scan", "Tiered storage is switched on, and gets stuck. (resnap scan)", self._scan),
            ("tier", f"The snapshots are rebuilt {on}, and the segments shipped. (resnap tier)", self._tier),
            ("verify", "The store is read back, and compared with the broker's own. (resnap verify)", self._verify),
            ("again", "The same once more, as a schedule would do it.", self._tier_again),
        )
        now_s = self._context.clock.monotonic_s
        first_s = now_s()
        for number, (name, title, take) in enumerate(steps, 1):
            yield Reported(what=f"{number}. {title}")
            began_s = now_s()
            figures, lines = take()
            yield DemoStep(name=name, elapsed_s=now_s() - began_s, figures=figures, lines=lines)
        hint = "this is a bug in resnap: report it with what `resnap demo --dir DIR` keeps"
        yield DemoEnd(
            root=self._root,
            lost=tuple(boundary for boundary in self._boundaries if boundary.was_lost),
            elapsed_s=now_s() - first_s,
            faults=tuple(ResnapError(what, hint=hint) for what in self._problems),
        )

    def _read(self) -> tuple[Row, Sequence[str]]:
        unpack(self._root)
        rows = [
            {key: row[key] for key in ("topic", "partition", "segments", "bytes", "boundaries", "lost")}
            for row in self._scanned()
        ]
        totals = {key: sum(int(str(row[key])) for row in rows) for key in ("segments", "bytes", "boundaries", "lost")}
        closing = (
            f"{totals['lost']} of the {totals['boundaries']} snapshots that its closed segments need are gone: before"
            " 2.8 a broker kept those at the last two segment bases only."
        )
        return {**totals, "partitions": rows}, [*align_rows(READ, rows), "", closing]

    def _scan(self) -> tuple[Row, Sequence[str]]:
        rows = self._scanned()
        stops: list[Any] = [(partition_name(row), row["brokerStops"]) for row in rows if row["brokerStops"]]
        return {"lost": sum(int(str(row["lost"])) for row in rows), "partitions": rows}, [
            *(f"{name}: {stop['detail']}" for name, stop in stops),
            f"Nothing of these {len(stops)} partitions is ever tiered, and none of their disk is freed.",
        ]

    def _scanned(self) -> list[Row]:
        results = list(scan_partitions(self._planner.select(self._scope), None, self._planner))
        for unread in (result for result in results if isinstance(result, Unread)):
            raise unread.faults[0]
        return [{**row_of(ScanRow, result.what)} for result in results if isinstance(result, Reported)]

    def _tier(self) -> tuple[Row, Sequence[str]]:
        shipments, _ = self._ship(replace(self._work(self._planner), progress=self._context.progress))
        shipped = [segment for shipment in shipments for segment in shipment.shipped]
        size, kinds = sum(segment.size_bytes for segment in shipped), [segment.snapshot.value for segment in shipped]
        figures = {"engine": self._context.settings.engine, "shipped": len(kinds), "bytes": size}
        closing = (
            f"{len(kinds)} segments shipped ({human_bytes(size)}): {kinds.count('regenerated')} with a regenerated"
            f" snapshot, {kinds.count('proven')} with the broker's own, which the replay has proven."
        )
        return {**figures, "partitions": [row_of(ShipmentRow, partition) for partition in shipments]}, [closing]

    def _work(self, planner: Planner) -> TierWork:
        now_ms, warn = self._context.clock.now_ms, self._context.warn
        return TierWork(planner=planner, store=self._store, now_ms=now_ms, uploading=self._uploading, warn=warn)

    def _ship(self, work: TierWork) -> tuple[list[PartitionShipment], int]:
        """Ship what is eligible; return also how many segments were in the store before."""
        rows: list[TierRow] = []
        tier(self._scope, work, rows.append)
        tiered = [row for row in rows if isinstance(row, TieredPartition)]
        for error in (error for partition in tiered for error in partition.shipment.failures):
            raise error
        shipments = [partition.shipment for partition in tiered if partition.order.left.candidates.segments]
        return shipments, sum(partition.order.left.already for partition in tiered)

    def _verify(self) -> tuple[Row, Sequence[str]]:
        with self._context.progress("verify") as (progress,):
            [check] = store_checks(self._planner, self._store, self._scope)
            segments = list(check.segments(progress))
        manifests = [segment.manifest for segment in segments if segment.manifest is not None]
        keys = {(f"{one.topic}-{one.partition}", one.next_base_offset): one.snapshot_key for one in manifests}
        unlike = [problem for segment in segments for problem in segment.problems]
        rows, timelines = [], []
        for selected in self._planner.select(self._scope).partitions:
            name = str(selected.topic_partition)
            own = sorted((self._root / "expected" / name).iterdir())
            found = [self._boundary(name, path, keys.get((name, int(path.stem)))) for path in own]
            self._boundaries += found
            rows.append({**identity(selected.topic_partition), "boundaries": [boundary.row for boundary in found]})
            before = "".join("." if boundary.was_lost else "#" for boundary in found)
            after = "".join(MARKS[boundary.fate] for boundary in found)
            timelines.append({**identity(selected.topic_partition), "before": before, "after": after})
        self._problems = [*filter(None, (boundary.problem for boundary in self._boundaries)), *unlike]
        objects = sum(segment.objects_read for segment in segments)
        size = sum(segment.size_bytes for segment in segments)
        figures = {"segments": len(segments), "objects": objects, "bytes": size, "problems": list(self._problems)}
        closing = (
            f"{some(objects, 'object')} read back ({human_bytes(size)}), {len(unlike) or 'none'} other than its"
            " manifest says."
        )
        return {**figures, "partitions": rows}, [*align_rows(TIMELINE, timelines), LEGEND, "", closing]

    def _boundary(self, name: str, expected: Path, shipped_key: str | None) -> DemoBoundary:
        """Compare the broker's own snapshot with the one in the store."""
        offset, was_lost = int(expected.stem), not (self._root / "log" / name / expected.name).exists()
        if shipped_key is None:
            return DemoBoundary(name, offset, was_lost, "absent")
        own, shipped = load_snapshot(expected), read_snapshot(self._store.get(shipped_key))
        different = tuple(sorted(pid for pid in own.keys() | shipped.keys() if own.get(pid) != shipped.get(pid)))
        return DemoBoundary(name, offset, was_lost, "different" if different else "equal", len(shipped), different)

    def _tier_again(self) -> tuple[Row, Sequence[str]]:
        # In this process, which spares it the start of a JVM.
        again = Planner(self._planner.rules, replace(self._planner.engine, kind="local"))
        shipments, already = self._ship(self._work(again))
        shipped = sum(len(shipment.shipped) for shipment in shipments)
        if shipped:
            self._problems.append(f"a second run shipped {some(shipped, 'segment')}, though nothing was left to ship")
        text = f"{some(shipped, 'segment')} to ship, {already} there already."
        return {"shipped": shipped, "already": already}, [text]


def unpack(root: Path) -> None:
    """Unpack the log dir, as ``log``, and the broker's own snapshots, as ``expected``.

    Raises:
        LogDirError: they cannot be written.

    """
    try:
        with tarfile.open(PACKED) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has no filters
            packed.extractall(root)  # noqa: S202 - our own
    except OSError as error:
        raise LogDirError(f"{root}: cannot be written: {error.strerror}", hint=_ELSEWHERE) from error


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
        raise LogDirError(f"no temporary directory can be made: {error.strerror}", hint=_ELSEWHERE) from error


class DemoView(View[Reported[str] | DemoStep | DemoEnd]):
    """A row per step; for people, lines while it happens."""

    kind = "step"

    def __init__(self, *, stays: bool) -> None:
        self._stays = stays
        self._end: DemoEnd | None = None

    def lines(self, result: Reported[str] | DemoStep | DemoEnd) -> Iterator[str]:
        """Yield the title of a step, or what came of it."""
        if isinstance(result, Reported):
            yield f"{'' if result.what.startswith('1.') else chr(10)}{result.what}"
        elif isinstance(result, DemoStep):
            took = f"  [{human_duration(result.elapsed_s)}]" if result.elapsed_s >= WORTH_SAYING_S else ""
            for line in (*result.lines[:-1], result.lines[-1] + took):
                yield f"   {line}".rstrip()

    def row(self, result: Reported[str] | DemoStep | DemoEnd) -> Row | None:
        """Return the row of a step that is done."""
        if isinstance(result, DemoEnd):
            self._end = result
        if not isinstance(result, DemoStep):
            return None
        return {"step": result.name, "elapsedMs": round(result.elapsed_s * 1000), **result.figures}

    def totals(self) -> Row:
        """Return how the regenerated snapshots compare with the lost ones."""
        if self._end is None:
            return {}
        return {
            "regenerated": len(self._end.lost),
            "equal": len(self._end.equal),
            "entries": sum(boundary.entries for boundary in self._end.equal),
            "directory": str(self._end.root) if self._stays else None,
            "elapsedMs": round(self._end.elapsed_s * 1000),
        }

    def closing(self) -> Iterator[str]:
        """Yield the same in words, and what to do next."""
        if self._end is None:
            return
        entries = human_count(sum(boundary.entries for boundary in self._end.equal))
        yield ""
        yield (
            f"{len(self._end.equal)} of {len(self._end.lost)} regenerated snapshots equal the lost ones, entry by entry"
            f" ({entries} entries). {human_duration(self._end.elapsed_s)} in all."
        )
        if self._stays:
            root = self._end.root
            yield f"Look around: {root} has the log dir (log), the broker's own snapshots (expected) and the store."
        else:
            yield "The files were in a temporary directory, which is removed; `resnap demo --dir DIR` keeps them."
        yield "Next: `resnap scan /var/lib/kafka/data`, or wherever your log dir is. It only reads."


VERB = Verb(
    takes=(ENGINE,),
    request=DemoRequest,
    run=run,
    view=lambda request, _: DemoView(stays=request.keep or request.directory is not None),
)
