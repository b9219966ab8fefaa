"""How the demonstration is told: step by step to people while it happens, as rows of figures to programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resnap.scheduler.answers.rendering import (
    PARTITION,
    Answer,
    Column,
    Row,
    aligned,
    human_bytes,
    human_count,
    human_duration,
    partition_name,
)
from resnap.scheduler.answers.reports import identity
from resnap.scheduler.demo.proof import Fate
from resnap.scheduler.jobs.scan import scan_row
from resnap.scheduler.jobs.tier import shipment_row
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from resnap.scheduler.cli.invocation import Invocation
    from resnap.scheduler.demo.log import DemoPartition
    from resnap.scheduler.demo.proof import PartitionProof, Proof
    from resnap.scheduler.demo.story import Demo, Tiered

MARKS: Final = {Fate.EQUAL: "#", Fate.WAITING: "~", Fate.DIFFERENT: "!", Fate.ABSENT: "!", Fate.TOO_EARLY: "!"}
"""How a timeline shows a boundary in the store."""
LOST: Final = "."
LEGEND: Final = "# a right snapshot   . none   ~ waits for a transaction to end   ! wrong"
WORTH_TELLING_S: Final = 0.1


class _Told(NamedTuple):
    """What there is to say of one step."""

    figures: Row
    lines: Sequence[str]


class Story:
    """The acts of the demonstration one after the other, and how it ends."""

    def __init__(self, run: Invocation, demo: Demo, seed: int, *, stays: bool) -> None:
        """``stays`` tells whether the files are there to be looked at afterwards."""
        self._run, self._demo, self._seed, self._stays = run, demo, seed, stays
        self._began_s = run.clock.monotonic_s()
        self._partitions: tuple[DemoPartition, ...] = ()
        self._proof: Proof | None = None
        self._again: Tiered | None = None

    def tell(self) -> None:
        """Do all there is to do, print what comes of it, and report what is not as it should be.

        Raises:
            ResnapError: one of the steps failed.

        """
        steps = self._steps()
        # People have read the lines by the time the answer is printed, which to them is the end of the story.
        rows = list(steps) if self._run.output.form == "table" else steps
        self._run.answer(Answer(name="steps", kind="step", rows=rows, tail=self._summary, closing=self._closing))
        for what in self._wrong():
            hint = f"this is a bug in resnap: report it with what `resnap demo --seed {self._seed} --dir DIR` keeps"
            self._run.error(ResnapError(what, hint=hint))

    def _steps(self) -> Iterator[Row]:
        on = "on Spark, which takes a while to start" if self._run.settings.engine == "spark" else "in this process"
        acts: tuple[tuple[str, str, Callable[[], _Told]], ...] = (
            ("write", "A broker writes a log.", self._write),
            ("lose", "Its producer snapshots are lost.", self._lose),
            ("scan", "Tiered storage is switched on, and gets stuck. (resnap scan)", self._scan),
            ("tier", f"The snapshots are rebuilt {on}, and the segments shipped. (resnap tier)", self._tier),
            ("verify", "The store is read back, and compared with what was lost. (resnap verify)", self._verify),
            ("again", "The same once more, as a schedule would do it.", self._tier_again),
        )
        self._say(f"A log loses its producer snapshots, and gets them back. Seed {self._seed}.")
        for number, (name, title, act) in enumerate(acts, 1):
            self._say(f"\n{number}. {title}")
            began_s = self._run.clock.monotonic_s()
            told = act()
            elapsed_s = self._run.clock.monotonic_s() - began_s
            took = f"  [{human_duration(elapsed_s)}]" if elapsed_s >= WORTH_TELLING_S else ""
            for line in (*told.lines[:-1], told.lines[-1] + took):
                self._say(f"   {line}".rstrip())
            yield {"step": name, "elapsedMs": round(elapsed_s * 1000), **told.figures}

    def _say(self, text: str) -> None:
        self._run.output.line(text)

    def _write(self) -> _Told:
        self._partitions = self._demo.write(self._seed)
        rows = [_partition_row(partition) for partition in self._partitions]
        segments, size, boundaries = (
            sum(int(str(row[key])) for row in rows) for key in ("segments", "bytes", "boundaries")
        )
        closing = (
            f"{segments} segments ({human_bytes(size)}) of the last three days, and a producer snapshot at the end of"
            f" each of the {boundaries} closed ones."
        )
        return _Told(
            {"segments": segments, "bytes": size, "boundaries": boundaries, "partitions": rows},
            [*aligned(_WRITTEN, rows, ()), "", closing],
        )

    def _lose(self) -> _Told:
        self._demo.lose(self._partitions)
        lost = sum(len(partition.lost) for partition in self._partitions)
        boundaries = sum(len(partition.boundaries) for partition in self._partitions)
        text = f"{lost} of {boundaries} are gone: before 2.8 a broker kept those at the last two segment bases only."
        return _Told({"boundaries": boundaries, "lost": lost}, [text])

    def _scan(self) -> _Told:
        rows = [scan_row(scanned) for scanned in self._demo.scan()]
        stops: list[Any] = [(partition_name(row), row["brokerStops"]) for row in rows if row["brokerStops"]]
        return _Told(
            {"lost": sum(int(str(row["lost"])) for row in rows), "partitions": rows},
            [
                *(f"{place}: {stop['detail']}" for place, stop in stops),
                f"Nothing of these {len(stops)} partitions is ever tiered, and none of their disk is freed.",
            ],
        )

    def _tier(self) -> _Told:
        with self._run.progress("replay", "ship") as (replaying, shipping):
            tiered = self._demo.tier(replaying=replaying, shipping=shipping)
        rows = [shipment_row(shipment) for shipment in tiered.shipments]
        size = sum(segment.size_bytes for segment in tiered.shipped)
        kinds = [segment.snapshot.value for segment in tiered.shipped]
        waiting: list[Any] = [(partition_name(row), row["blocking"]) for row in rows if row["blocking"]]
        closing = (
            f"{len(kinds)} segments shipped ({human_bytes(size)}): {kinds.count('regenerated')} with a regenerated"
            f" snapshot, {kinds.count('proven')} with the broker's own, which the replay has proven."
        )
        return _Told(
            {"engine": self._run.settings.engine, "shipped": len(kinds), "bytes": size, "partitions": rows},
            [
                *(f"{place} waits at segment {wait['baseOffset']}: {wait['detail']}" for place, wait in waiting),
                closing,
            ],
        )

    def _verify(self) -> _Told:
        with self._run.progress("verify") as (progress,):
            self._proof = proof = self._demo.prove(self._partitions, progress)
        closing = (
            f"{human_count(proof.objects)} objects read back ({human_bytes(proof.size_bytes)}),"
            f" {len(proof.unlike_manifest) or 'none'} other than its manifest says."
        )
        return _Told(
            {
                "segments": len(proof.segments),
                "objects": proof.objects,
                "bytes": proof.size_bytes,
                "problems": list(proof.problems),
                "partitions": [_proof_row(one) for one in proof.partitions],
            },
            [
                *aligned(_TIMELINE, [_timeline(one) for one in proof.partitions], ()),
                LEGEND,
                "",
                *_left_out(proof),
                closing,
            ],
        )

    def _tier_again(self) -> _Told:
        self._again = again = self._demo.tier_again(self._run.clock.now_ms())
        return _Told(
            {"shipped": len(again.shipped), "already": again.already},
            [f"{len(again.shipped)} segments to ship, {again.already} are there already."],
        )

    def _summary(self) -> Row:
        regenerated, equal = (self._proof.regenerated, self._proof.equal) if self._proof else ((), ())
        return {
            "seed": self._seed,
            "asOfMs": self._demo.now_ms,
            "regenerated": len(regenerated),
            "equal": len(equal),
            "entries": sum(boundary.entries for boundary in equal),
            "directory": str(self._demo.root) if self._stays else None,
            "elapsedMs": round((self._run.clock.monotonic_s() - self._began_s) * 1000),
        }

    def _closing(self) -> Iterator[str]:
        total: Any = self._summary()
        elapsed = human_duration(total["elapsedMs"] / 1000)
        yield ""
        yield (
            f"{total['equal']} of {total['regenerated']} regenerated snapshots equal the lost ones, entry by entry"
            f" ({human_count(total['entries'])} entries). {elapsed} in all."
        )
        if self._stays:
            yield f"Look around: {total['directory']} has the log dir (log), the lost snapshots (lost) and the store."
        else:
            yield "The files were in a temporary directory, which is removed; `resnap demo --dir DIR` keeps them."
        yield "Next: `resnap scan /var/lib/kafka/data`, or wherever your log dir is. It only reads."

    def _wrong(self) -> Iterator[str]:
        if self._proof is not None:
            yield from self._proof.problems
        if self._again is not None and self._again.shipped:
            yield f"a second run shipped {len(self._again.shipped)} segments, though nothing was left to ship"


def _left_out(proof: Proof) -> list[str]:
    expired = sum(boundary.expired for boundary in proof.boundaries)
    what = "entries of producers silent for over 7 days are left out: a broker that loads them drops them."
    return [f"{expired} {what}"] if expired else []


def _partition_row(partition: DemoPartition) -> Row:
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


def _proof_row(proof: PartitionProof) -> Row:
    return {
        **identity(proof.partition.topic_partition),
        "boundaries": [
            {
                "offset": boundary.offset,
                "wasLost": boundary.was_lost,
                "fate": boundary.fate.value,
                "entries": boundary.entries,
                "expired": boundary.expired,
                "different": list(boundary.different),
            }
            for boundary in proof.boundaries
        ],
    }


def _timeline(proof: PartitionProof) -> Row:
    """Return a mark per boundary, in offset order, before and after."""
    return {
        **identity(proof.partition.topic_partition),
        "before": "".join(LOST if boundary.was_lost else MARKS[Fate.EQUAL] for boundary in proof.boundaries),
        "after": "".join(MARKS[boundary.fate] for boundary in proof.boundaries),
    }


def _count(value: object) -> str:
    return human_count(int(str(value)))


_WRITTEN: Final = (
    PARTITION,
    Column(key="segments", title="SEGMENTS", right=True, show=_count),
    Column(key="bytes", title="BYTES", right=True, show=lambda value: human_bytes(int(str(value)))),
    Column(key="batches", title="BATCHES", right=True, show=_count),
    Column(key="markers", title="COMMITS, ABORTS", right=True, show=_count),
)
_TIMELINE: Final = (PARTITION, Column(key="before", title="LOG DIR"), Column(key="after", title="STORE"))
