"""What the verbs of Resnap have in common: the shell, the API, schedules and tests run each of them as one job.

A job is a module of ``scheduler/verbs/`` that declares a ``Verb``, with

- a ``Request``: what is asked for beside the settings;
- ``run(request, context, report)``: does the work, and calls ``report`` with a ``Result`` for each part of it, as soon
  as that is done;
- a ``View``: how results are shown, as rows for programs and as a table for people.

What is wrong with one part goes into its result, and the run goes on. What ``run`` raises ends the run. The callers
alone print, keep, count and choose an exit code:

- the shell (``cli.invocation.Invocation.show``) prints the rows, then the faults. Faults of one kind give the exit code
  of that kind; of several kinds, 1; and 3 where a result says that the run is done in part all the same. The
  ``exit_code`` of a view comes before all of these;
- the service (``runs.execution.Execution``) keeps each result of a partition in its history, with its state.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property, partial
from inspect import get_annotations
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from pydantic import Field, TypeAdapter, ValidationError

from resnap.scheduler.registry import KINDS, declared_at
from resnap.storage.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from resnap.replay.watching import Progress
    from resnap.scheduler.clock import Clock
    from resnap.scheduler.output.rendering import Column, Row
    from resnap.scheduler.settings.settings import Settings
    from resnap.storage.errors import ResnapError
    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.engine import Engine
    from resnap.tiering.judging.planning import SavedPlan
    from resnap.tiering.planner import PartitionScan
    from resnap.tiering.selection import Scope, SelectedPartition, Selection
    from resnap.tiering.store_check import Mismatch


class PartitionState(StrEnum):
    """What became of one partition in a run."""

    DONE = "done"
    NOTHING_TO_DO = "nothing_to_do"
    PLANNED = "planned"
    """What a dry run comes to."""
    FAILED = "failed"


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Value:
    """Makes each class that is derived from it a frozen dataclass with keywords only."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)


class Result(Value):
    """What came of one part of a run. Jobs derive their own results from it.

    Attributes:
        topic_partition: the partition that it is of; None where it is of no single one.
        state: what became of that partition; None where another result says so.
        faults: what went wrong; where the result is of no partition, each counts as a failure of its own.
        warnings: what may lead to trouble.
        findings: what is wrong with the work of earlier runs. Where nothing else is, they give the exit code, whatever
            this run has done.
        partly_done: whether a run that has faults is done in part, by this result.

    """

    topic_partition: TopicPartition | None = None
    state: PartitionState | None = None
    faults: tuple[ResnapError, ...] = ()
    warnings: tuple[str, ...] = ()
    findings: tuple[ResnapError, ...] = ()
    partly_done: bool = False


W_co = TypeVar("W_co", covariant=True)


class Reported(Result, Generic[W_co]):
    """A result with what the work itself has reported."""

    what: W_co


class Unread(Result):
    """A partition, or something beside one, that could not be read; the run goes on without it."""

    @property
    def row(self) -> Row:
        """Why it could not."""
        return {"reason": str(self.faults[0])}


def unread(selection: Selection, *, partly_done: bool = True) -> Iterator[Unread]:
    """Yield the sources and partitions that could not be read; a partition can be retried."""
    said = {selected.topic_partition for selected in selection.partitions}
    for problem in selection.problems:
        if problem.topic_partition is None or problem.topic_partition in said:
            yield Unread(faults=(problem.error,), partly_done=partly_done)
            continue
        said.add(problem.topic_partition)
        yield Unread(
            topic_partition=problem.topic_partition,
            state=PartitionState.FAILED,
            faults=(problem.error,),
            partly_done=partly_done,
        )


class Context:
    """What a job has at hand, and tells what it finds and makes, for metrics, charges and the overview.

    The shell's is ``Invocation``, which hears nothing of the latter: it is in the answer. The service's is
    ``RunContext``.

    Attributes:
        settings: what the run is configured by.
        clock: what time it is.

    """

    settings: Settings
    clock: Clock

    def engine(self, *, ahead: bool = False) -> Engine:
        """Return what replays for this run; the caller of the job closes it.

        ``ahead`` is whether a replay follows as soon as there is a plan, so that Spark may start before.
        """
        raise NotImplementedError

    def progress(self, *tasks: str) -> AbstractContextManager[Sequence[Progress]]:
        """Give what to report to while ``tasks`` last that go on side by side, one for each."""
        raise NotImplementedError

    def note(self, text: str) -> None:
        """Say what is as it should be."""

    def warn(self, text: str) -> None:
        """Say what may lead to trouble."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise CancelledError if the run is to end; progress and results do so, too."""

    def scanned(self, source: str, partitions: Sequence[PartitionScan], unread: str | None) -> None:
        """Keep what a scan of a whole source showed; ``unread`` says what of it could not be read."""

    def not_scanned(self, source: str, error: ResnapError) -> None:
        """Keep that a source could not be read at all."""

    def scanned_all(self) -> None:
        """Forget sources that are not scanned any more."""

    def snapshots(self, cluster_id: str | None, *, made: int, failed: int, unchanged: int) -> None:
        """Count what became of the snapshots of one partition."""

    def made(
        self,
        selected: SelectedPartition,
        how: Literal["regenerated", "shipped"],
        destination: str,
        offsets: frozenset[int],
    ) -> None:
        """Keep that there is a snapshot, or a shipped segment, for these boundaries of a partition now."""

    def activated(self, snapshot: bytes | str) -> None:
        """Charge the principal that asked for the run with the producers of a snapshot: its bytes, or its locator."""

    def mismatches(self, kind: Mismatch, count: int) -> None:
        """Count what a store holds otherwise than it should."""

    def replicas(self, states: Mapping[str, int]) -> None:
        """Note how many replicas of the running cluster are in a state other than in order."""


R = TypeVar("R", bound=Result)
Report: TypeAlias = "Callable[[Any], None]"
"""Takes each ``Result`` of a run as it comes."""


class View(Generic[R]):
    """How the results of one run are shown. It sees each result once and counts what totals need.

    Attributes:
        kind: what one row is called: its ``type`` in lines of JSON; None for a summary alone.
        name: the key of the array of rows in JSON, where that is not the plural of ``kind``.
        columns: the table for people; without it they read the ``lines`` of each result.

    """

    kind: str | None = None
    name: str | None = None
    columns: Sequence[Column] = ()
    is_begun: bool = False
    """Whether there was a result."""
    is_cut_short: bool = False
    """Whether an error or an interrupt has ended the results before their end."""
    has_faults: bool = False
    """Whether anything went wrong so far, as results say; who shows them sets all three."""

    @cached_property
    def _totals(self) -> dict[str, Any]:
        """What is counted; without it there are none."""
        return {}

    @property
    def exit_code(self) -> int:
        """What the results call for, whatever else went wrong; 0 for nothing."""
        return 0

    def rows(self, result: R) -> Iterable[Row]:
        """Return the rows that the shell prints of a result; of what could not be read it prints the fault alone."""
        row = self.row(result)
        return () if row is None or isinstance(result, Unread) else (row,)

    def row(self, result: R) -> Row | None:
        """Return the row of a result, which the service keeps for its partition, and count it; None for no row."""
        raise NotImplementedError

    def table_rows(self, result: R) -> Iterable[Row]:
        """Return the rows that people see of a result, in place of ``rows``: fewer, where totals say enough."""
        return self.rows(result)

    def lines(self, result: R) -> Iterable[str]:  # noqa: ARG002 - for those that have a table
        """Return what people read of a result as soon as it is there."""
        return ()

    def rest(self) -> Iterator[Row]:
        """Yield the rows that were kept back until the results came to their end, or to an error."""
        yield from ()

    def table_rest(self) -> Iterator[Row]:
        """Return the rows that people see then, in place of ``rest``."""
        return self.rest()

    def head(self) -> Row:
        """Return facts about the whole that stand before the rows."""
        return {}

    def table_head(self) -> Row:
        """Return the facts that people read before the rows: none, unless a job has some; of a summary, the totals."""
        return self.totals() if self.kind is None else {}

    def totals(self) -> Row:
        """Return the totals over all results so far."""
        return self._totals

    def tail(self) -> Row:
        """Return what stands behind the rows in JSON: the totals, unless a job has more to say."""
        return self.totals()

    def dump(self, result: R) -> Iterable[str]:  # noqa: ARG002 - for the few that can
        """Return what Kafka's own tool prints of a result, where ``--output dump-log`` is offered."""
        return ()

    def closing(self) -> Iterable[str]:
        """Return the lines of prose that end a table: totals, and what to do next."""
        return ()


class Request(Value):
    """What is asked of a verb besides the settings.

    Verbs derive theirs: its fields are their arguments, each with its ``typer.Option``, whose flag is the name of the
    field unless it has another; and its docstring is their help.

    Attributes:
        scope: the sources, and what of them.
        saved: a plan to carry out, where the verb takes one.
        separately: whether a source that cannot be read leaves the others alone, as for the service.

    """

    scope: Scope
    saved: SavedPlan | None = None
    separately: bool = False

    def settled(self, context: Context) -> Request:  # noqa: ARG002 - for those that name places themselves
        """Return the request completed from the settings, or with the sources that its own arguments name."""
        return self


class Door(NamedTuple):
    """The address in the API that makes a run of a verb.

    Attributes:
        path: the address.
        summary: of the operation.
        does: its description.
        body: the description of the body.
        asks: what the body has: ``sources``, ``partitions``, ``destination``, settings, and arguments of the verb.

    """

    path: str
    summary: str
    does: str
    body: str
    asks: tuple[str, ...]


class Argument(NamedTuple):
    """An argument of a verb: its annotated type, its default, and its ``typer.Option``."""

    kind: Any
    default: Any
    option: Any

    @property
    def flag(self) -> str | None:
        """The flag of the shell; None for an argument that has its place."""
        # Typer has the first word in the place of a default, until it has read the annotation.
        words = (self.option.default, *(self.option.param_decls or ()))
        return next((word for word in words if isinstance(word, str) and word.startswith("--")), None)

    @property
    def checked(self) -> Any:  # noqa: ANN401 - a type
        """The type with the bounds and the help of the option, for the API and schedules."""
        return Annotated[self.kind, Field(ge=self.option.min, le=self.option.max, description=self.option.help)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """The declaration of a verb: its arguments, its work, how results are shown, and who may call it.

    Attributes:
        takes: groups of the settings that it has flags for.
        request: what else is asked.
        run: does it, and reports each result.
        view: how results are shown.
        reads: what the sources of its runs are; the running cluster is none, a store is one. On the shell a verb has a
            flag or argument of its own for any but log dirs; unless it says otherwise, these name the sources.
        to: the argument that names where a run writes to; None where it only reads.
        to_url: whether that must be a URL.
        carries_out_plans: whether a saved plan can be given in place of sources.
        of_shell: its arguments that runs of the service have no place for, besides those without a flag.
        is_short: whether a run takes seconds, and waits for no replay.
        door: its address in the API; without it only schedules make runs of it.
        rows: types of the rows that the service keeps of a partition.

    """

    takes: tuple[tuple[str, ...], ...]
    request: type[Request]
    run: Callable[[Any, Context, Report], None]
    view: Callable[[Any, Context], View[Any]]
    reads: Literal["log dirs", "store", "cluster", "other"] = "other"
    to: str | None = None
    to_url: bool = True
    carries_out_plans: bool = False
    of_shell: tuple[str, ...] = ()
    is_short: bool = False
    door: Door | None = None
    rows: tuple[Any, ...] = ()

    @property
    def arguments(self) -> dict[str, Argument]:
        """What its request has besides what all have."""
        notes = get_annotations(self.request, eval_str=True)
        defaults = {field.name: field.default for field in fields(self.request)}
        options = {name: next(iter(getattr(kind, "__metadata__", ())), None) for name, kind in notes.items()}
        for name, option in options.items():
            if option and hasattr(option, "prompt") and option.default is ... and not option.param_decls:
                # Not an argument with a place. Typer itself would add --no- to a switch.
                option.param_decls = (f"--{name.replace('_', '-')}",)
        return {name: Argument(notes[name], defaults[name], option) for name, option in options.items() if option}

    @property
    def of_runs(self) -> dict[str, Argument]:
        """Those that a run of the service may be given: it has sources and a destination of its own."""
        names = {self.to, *self.of_shell}
        return {name: one for name, one in self.arguments.items() if one.flag is not None and name not in names}

    def begin(self, context: Context, **asked: Any) -> tuple[Callable[[Report], None], View[Any]]:  # noqa: ANN401 - of the request
        """Return what does a run, and reports its results, and their view.

        Raises:
            ResnapError: what is asked for is found wrong before any of the work.

        """
        request = self.request(**asked).settled(context)
        looking = partial(context.progress, "select")
        request = replace(request, scope=replace(request.scope, looking=looking))
        return partial(self.run, request, context), self.view(request, context)

    def given(self, settings: Mapping[str, object]) -> dict[str, Any]:
        """Return the arguments among what a run was asked for, as the types of the fields have them.

        Raises:
            UsageError: a value cannot be used.

        """
        found = {}
        for name, argument in self.of_runs.items():
            if name in settings:
                try:
                    found[name] = TypeAdapter(argument.checked).validate_python(settings[name])
                except ValidationError as error:
                    said = error.errors(include_url=False)[0]["msg"].replace("Input should be", "expected")
                    raise UsageError(f"{name}: {said}, found {settings[name]!r}") from error
        return found


def verb_of(kind: str) -> Verb:
    """Return the verb that runs of this kind do; its module is imported here."""
    verb: Verb = declared_at(KINDS[kind])
    return verb


def verbs_of_service() -> Iterator[tuple[str, Verb]]:
    """Yield the verbs that the service runs, by the kinds of their runs."""
    for kind in KINDS:
        yield kind, verb_of(kind)
