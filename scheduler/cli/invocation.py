"""``Invocation``: the context of one command on the shell: its settings, its output, and the clock."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from resnap.scheduler.cli.failures import OK
from resnap.scheduler.clock import Clock
from resnap.scheduler.job.contract import Context, Result
from resnap.scheduler.output.progress import show_progress
from resnap.scheduler.output.rendering import Answer
from resnap.storage.errors import ResnapError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from resnap.replay.watching import Progress
    from resnap.scheduler.cli.failures import Failures
    from resnap.scheduler.job.contract import Report, View
    from resnap.scheduler.output.rendering import Output, Row
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.engine import Engine

Errors = list[ResnapError]


@dataclass(slots=True, kw_only=True)
class Invocation(Context):
    """The first argument of every command; an interrupt raises KeyboardInterrupt in it."""

    settings: Settings
    flags: Mapping[str, object]
    """As they were given, by name of the setting; None where one was not."""
    output: Output
    failures: Failures
    clock: Clock = field(default_factory=Clock)
    partly_done: bool = False
    """Set by a command that has done some of its work, so that an error elsewhere means exit code 3."""

    first_note: str | None = None
    """A message to print once, before the answer, when the arguments are known to be valid."""

    at_end: ExitStack = field(default_factory=ExitStack)
    """Closed when the command ends, however it does."""

    def engine(self, *, ahead: bool = False) -> Engine:
        """Return the engine of this command; it is closed when the command ends."""
        from resnap.scheduler.job.replaying import engine_of  # noqa: PLC0415 - a third of the program, which few need

        return self.at_end.enter_context(engine_of(self.settings, ahead=ahead and not self.settings.dry_run))

    def show(self, work: Callable[[Report], None], view: View[Any]) -> int:
        """Print the results of a job as they come, then the faults; return the exit code of view or findings.

        The view sees the first result before anything is printed, so a job that cannot begin prints nothing. An error
        that ended the run later is reported like any other fault: completed work stays done.

        Raises:
            ResnapError: the job has ended without a result.

        """
        faults, findings = Errors(), Errors()
        is_dump = self.output.form == "dump-log"
        try:
            with nullcontext(self.output.dump) if is_dump else self._printed(view) as put:
                work(lambda result: put(self._take(result, view, faults, findings)))
        except ResnapError as error:
            if not view.is_begun:
                raise
            faults.append(error)
        self.failures.report_all(faults)
        has_failed = self.failures.exit_code(partly_done=self.partly_done) != OK
        self.failures.report_all(findings)
        return view.exit_code or (findings[0].exit_code if findings and not has_failed else OK)

    @contextmanager
    def _printed(self, view: View[Any]) -> Iterator[Callable[[Iterable[Any]], None]]:
        """Give what prints the rows of a result, the first with what comes before; the rest is printed at the end."""
        is_table = self.output.form == "table"
        put: Callable[[Row | None], None] | None = None

        def put_all(rows: Iterable[Row]) -> None:
            nonlocal put
            put = put or self._begin(view)
            for row in rows:
                put(row)

        try:
            yield put_all
            put_all(())
        except (KeyboardInterrupt, Exception):
            view.is_cut_short = True
            raise
        finally:
            if put is not None:
                for row in (*(view.table_rest() if is_table else view.rest()), None):
                    put(row)
        if view.kind is None:
            self.output.write(Answer(head=view.table_head() if is_table else view.totals(), closing=view.closing))
        elif is_table and not view.columns:  # people read the lines of each result
            for line in view.closing():
                self.output.line(line)

    def _begin(self, view: View[Any]) -> Callable[[Row | None], None]:
        """Print what comes before the rows, and return what prints these."""
        self.say_first()
        is_table = self.output.form == "table"
        if view.kind is None or (is_table and not view.columns):
            return lambda _: None
        head = view.table_head() if is_table else view.head()
        columns, tail, closing = view.columns, view.tail, view.closing
        return self.output.begin(
            Answer(head=head, name=view.name, kind=view.kind, columns=columns, tail=tail, closing=closing)
        )

    def _take(self, result: Result, view: View[Any], faults: Errors, findings: Errors) -> Iterable[Any]:
        """Return the rows of a result, or its lines in Kafka's form, once what is wrong with it is noted."""
        view.is_begun = True
        if self.output.form == "dump-log":
            return view.dump(result)
        for line in view.lines(result):
            self.output.line(line)
        rows = list(view.table_rows(result) if self.output.form == "table" else view.rows(result))
        faults += result.faults
        view.has_faults = bool(faults)
        findings += result.findings
        self.partly_done = self.partly_done or result.partly_done
        for text in result.warnings:
            self.warn(text)
        return rows

    def answer(self, answer: Answer) -> None:
        """Print the answer, in the requested form."""
        self.say_first()
        self.output.write(answer)

    def say_first(self) -> None:
        """Print the introductory message before the answer, once."""
        if self.first_note is not None:
            self.note(self.first_note)
            self.first_note = None

    def note(self, text: str) -> None:
        """Print a message on standard error; nothing with ``--quiet``."""
        self.failures.note(text)

    def warn(self, text: str) -> None:
        """Print a warning on standard error; nothing with ``--quiet``."""
        self.failures.warn(text)

    def progress(self, *tasks: str) -> AbstractContextManager[list[Progress]]:
        """Show the progress of each of ``tasks``, which run in parallel, while the context lasts."""
        return show_progress(
            tasks, sys.stderr, self.clock, quiet=self.settings.quiet, as_json=self.output.form != "table"
        )
