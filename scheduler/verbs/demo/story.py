"""`resnap demo`: a log loses its producer snapshots, and gets them back; shown step by step."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from resnap.scheduler.cli.flags import ENGINE
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.cli.options import with_settings
from resnap.scheduler.job.contract import Context, Result, View
from resnap.scheduler.job.reports import identity
from resnap.scheduler.job.wiring import engine_of, uploading_of
from resnap.scheduler.output.rendering import BYTES, PARTITION, Column, Row, aligned, partition_name
from resnap.scheduler.verbs.demo.acts import Demo, Tiered, rules_at, workplace
from resnap.scheduler.verbs.demo.log import DemoPartition
from resnap.scheduler.verbs.demo.proof import LEGEND, TIMELINE, Proof
from resnap.scheduler.verbs.scan import scan_row
from resnap.scheduler.verbs.tier import shipment_row
from resnap.storage.errors import ResnapError
from resnap.storage.words import human_bytes, human_count, human_duration, some
from resnap.tiering.planner import Planner

WORTH_SAYING_S: Final = 0.1


def _count(value: object) -> str:
    return human_count(int(str(value)))


WRITTEN: Final = (
    PARTITION,
    Column(key="segments", title="SEGMENTS", right=True, show=_count),
    BYTES,
    Column(key="batches", title="BATCHES", right=True, show=_count),
    Column(key="markers", title="COMMITS, ABORTS", right=True, show=_count),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Where to play, and on which log.

    Attributes:
        directory: a new directory, which stays; None for a temporary one.
        keep: whether a temporary directory stays.
        seed: another one makes another log.

    """

    directory: Path | None = None
    keep: bool = False
    seed: int = 1

    @property
    def stays(self) -> bool:
        """Whether the files are kept afterwards."""
        return self.keep or self.directory is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun(Result):
    """A step begins."""

    number: int
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Result):
    """A step is done: figures for programs, lines for people."""

    name: str
    elapsed_s: float
    figures: Row
    lines: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Result):
    """All steps are done."""

    as_of_ms: int
    root: Path
    proof: Proof
    elapsed_s: float


def run(request: Request, context: Context) -> Iterator[Begun | Step | Ended]:
    """Play the acts one after the other; what is not as it should be is a fault of the end.

    Raises:
        UsageError: the directory is not empty.
        ResnapError: one of the steps failed.

    """
    # Whatever cluster is configured, its executors would not see a directory of this machine.
    settings = context.settings.model_copy(update={"spark_master": "local[*]"})
    with workplace(request.directory, keep=request.keep) as root, engine_of(settings, ahead=True) as engine:
        planner = Planner(rules_at(context.clock.now_ms()), engine)
        demo = Demo(root=root, planner=planner, clock=context.clock, uploading=uploading_of(settings, context.warn))
        yield from _Story(context, demo, request.seed).steps()


class _Done(NamedTuple):
    """What there is to say of one step."""

    figures: Row
    lines: Sequence[str]


class _Story:
    """The acts of the demonstration one after the other, and how it ends."""

    def __init__(self, context: Context, demo: Demo, seed: int) -> None:
        self._context, self._demo, self._seed = context, demo, seed
        self._partitions = tuple[DemoPartition, ...]()
        self._proof: Proof
        self._again: Tiered

    def steps(self) -> Iterator[Begun | Step | Ended]:
        on = "on Spark, which takes a while to start" if self._context.settings.engine == "spark" else "in this process"
        acts: tuple[tuple[str, str, Callable[[], _Done]], ...] = (
            ("write", "A broker writes a log.", self._write),
            ("lose", "Its producer snapshots are lost.", self._lose),
            ("scan", "Tiered storage is switched on, and gets stuck. (resnap scan)", self._scan),
            ("tier", f"The snapshots are rebuilt {on}, and the segments shipped. (resnap tier)", self._tier),
            ("verify", "The store is read back, and compared with what was lost. (resnap verify)", self._verify),
            ("again", "The same once more, as a schedule would do it.", self._tier_again),
        )
        now_s = self._context.clock.monotonic_s
        first_s = now_s()
        for number, (name, title, act) in enumerate(acts, 1):
            yield Begun(number=number, title=title)
            began_s = now_s()
            done = act()
            yield Step(name=name, elapsed_s=now_s() - began_s, figures=done.figures, lines=done.lines)
        hint = f"this is a bug in resnap: report it with what `resnap demo --seed {self._seed} --dir DIR` keeps"
        yield Ended(
            as_of_ms=self._demo.now_ms,
            root=self._demo.root,
            proof=self._proof,
            elapsed_s=now_s() - first_s,
            faults=tuple(ResnapError(what, hint=hint) for what in self._wrong()),
        )

    def _wrong(self) -> Iterator[str]:
        yield from self._proof.problems
        if self._again.shipped:
            yield f"a second run shipped {some(len(self._again.shipped), 'segment')}, though nothing was left to ship"

    def _write(self) -> _Done:
        self._partitions = self._demo.write(self._seed)
        rows = [_written_row(partition) for partition in self._partitions]
        segments, size, boundaries = (
            sum(int(str(row[key])) for row in rows) for key in ("segments", "bytes", "boundaries")
        )
        closing = (
            f"{segments} segments ({human_bytes(size)}) of the last three days, and a producer snapshot at the end of"
            f" each of the {boundaries} closed ones."
        )
        return _Done(
            {"segments": segments, "bytes": size, "boundaries": boundaries, "partitions": rows},
            [*aligned(WRITTEN, rows, ()), "", closing],
        )

    def _lose(self) -> _Done:
        self._demo.lose(self._partitions)
        lost = sum(len(partition.lost) for partition in self._partitions)
        boundaries = sum(len(partition.boundaries) for partition in self._partitions)
        text = f"{lost} of {boundaries} are gone: before 2.8 a broker kept those at the last two segment bases only."
        return _Done({"boundaries": boundaries, "lost": lost}, [text])

    def _scan(self) -> _Done:
        rows = [scan_row(scanned) for scanned in self._demo.scan()]
        stops: list[Any] = [(partition_name(row), row["brokerStops"]) for row in rows if row["brokerStops"]]
        return _Done(
            {"lost": sum(int(str(row["lost"])) for row in rows), "partitions": rows},
            [
                *(f"{place}: {stop['detail']}" for place, stop in stops),
                f"Nothing of these {len(stops)} partitions is ever tiered, and none of their disk is freed.",
            ],
        )

    def _tier(self) -> _Done:
        with self._context.progress("replay", "ship") as (replaying, shipping):
            tiered = self._demo.tier(replaying=replaying, shipping=shipping)
        rows = [shipment_row(shipment) for shipment in tiered.shipments]
        size = sum(segment.size_bytes for segment in tiered.shipped)
        kinds = [segment.snapshot.value for segment in tiered.shipped]
        waiting: list[Any] = [(partition_name(row), row["blocking"]) for row in rows if row["blocking"]]
        closing = (
            f"{len(kinds)} segments shipped ({human_bytes(size)}): {kinds.count('regenerated')} with a regenerated"
            f" snapshot, {kinds.count('proven')} with the broker's own, which the replay has proven."
        )
        return _Done(
            {"engine": self._context.settings.engine, "shipped": len(kinds), "bytes": size, "partitions": rows},
            [
                *(f"{place} waits at segment {wait['baseOffset']}: {wait['detail']}" for place, wait in waiting),
                closing,
            ],
        )

    def _verify(self) -> _Done:
        with self._context.progress("verify") as (progress,):
            self._proof = proof = self._demo.prove(self._partitions, progress)
        expired = sum(boundary.expired for boundary in proof.boundaries)
        what = "entries of producers silent for over 7 days are excluded: a broker that loads them drops them."
        closing = (
            f"{some(proof.objects, 'object')} read back ({human_bytes(proof.size_bytes)}),"
            f" {len(proof.unlike_manifest) or 'none'} other than its manifest says."
        )
        return _Done(
            {
                "segments": len(proof.segments),
                "objects": proof.objects,
                "bytes": proof.size_bytes,
                "problems": list(proof.problems),
                "partitions": [one.row for one in proof.partitions],
            },
            [
                *aligned(TIMELINE, [one.timeline for one in proof.partitions], ()),
                LEGEND,
                "",
                *([f"{expired} {what}"] if expired else []),
                closing,
            ],
        )

    def _tier_again(self) -> _Done:
        self._again = again = self._demo.tier_again(self._context.clock.now_ms())
        return _Done(
            {"shipped": len(again.shipped), "already": again.already},
            [f"{some(len(again.shipped), 'segment')} to ship, {again.already} there already."],
        )


def _written_row(partition: DemoPartition) -> Row:
    """Return what was written into a partition."""
    return {
        **identity(partition.topic_partition),
        "segments": len(partition.bases),
        "boundaries": len(partition.boundaries),
        "bytes": partition.size_bytes,
        "batches": partition.batches,
        "markers": partition.markers,
        "logEndOffset": partition.log_end_offset,
        "lastStableOffset": partition.last_stable_offset,
    }


class DemoView(View[Begun | Step | Ended]):
    """A row per step; for people, lines while it happens."""

    name = "steps"
    kind = "step"

    def __init__(self, request: Request) -> None:
        self._request = request
        self._end: Ended | None = None

    def lines(self, result: Begun | Step | Ended) -> Iterator[str]:
        """Yield the title of a step, or what came of it."""
        if isinstance(result, Begun):
            if result.number == 1:
                yield f"A log loses its producer snapshots, and gets them back. Seed {self._request.seed}."
            yield f"\n{result.number}. {result.title}"
        elif isinstance(result, Step):
            took = f"  [{human_duration(result.elapsed_s)}]" if result.elapsed_s >= WORTH_SAYING_S else ""
            for line in (*result.lines[:-1], result.lines[-1] + took):
                yield f"   {line}".rstrip()

    def row(self, result: Begun | Step | Ended) -> Row | None:
        """Return the row of a step that is done."""
        if isinstance(result, Ended):
            self._end = result
        if not isinstance(result, Step):
            return None
        return {"step": result.name, "elapsedMs": round(result.elapsed_s * 1000), **result.figures}

    def totals(self) -> Row:
        """Return how the regenerated snapshots compare with the lost ones."""
        if self._end is None:
            return {}
        proof = self._end.proof
        return {
            "seed": self._request.seed,
            "asOfMs": self._end.as_of_ms,
            "regenerated": len(proof.regenerated),
            "equal": len(proof.equal),
            "entries": sum(boundary.entries for boundary in proof.equal),
            "directory": str(self._end.root) if self._request.stays else None,
            "elapsedMs": round(self._end.elapsed_s * 1000),
        }

    def closing(self) -> Iterator[str]:
        """Yield the same in words, and what to do next."""
        if self._end is None:
            return
        proof = self._end.proof
        entries = human_count(sum(boundary.entries for boundary in proof.equal))
        yield ""
        yield (
            f"{len(proof.equal)} of {len(proof.regenerated)} regenerated snapshots equal the lost ones, entry by entry"
            f" ({entries} entries). {human_duration(self._end.elapsed_s)} in all."
        )
        if self._request.stays:
            yield f"Look around: {self._end.root} has the log dir (log), the lost snapshots (lost) and the store."
        else:
            yield "The files were in a temporary directory, which is removed; `resnap demo --dir DIR` keeps them."
        yield "Next: `resnap scan /var/lib/kafka/data`, or wherever your log dir is. It only reads."


Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIR", help="Work in this new directory, and keep it; the default is a temporary one."
    ),
]


@with_settings(ENGINE)
def demo(
    context: Invocation,
    directory: Directory = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Another seed makes another log.", min=0)] = 1,
) -> None:
    """See it work: a log loses its snapshots, the whole job is done, and the result compared; in a minute, here."""
    request = Request(directory=directory, keep=keep, seed=seed)
    context.show(run(request, context), DemoView(request))
