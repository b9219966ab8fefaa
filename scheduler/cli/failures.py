"""Reports every error of a command, in one place, which therefore knows the exit code.

For people an error is ``error: <what>`` and ``hint: <what to do>``; if the output is JSON, one object per line.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

from resnap.scheduler.output.rendering import OutputError
from resnap.storage.errors import (
    ClusterError,
    ConfigurationError,
    DataError,
    FormatError,
    LockedError,
    LogDirInUseError,
    LostProducerStateError,
    ResnapError,
    StalePlanError,
    StoreError,
    VerificationError,
    fault_of_machine,
)
from resnap.storage.words import some

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
PARTIAL: Final = 3
MISSING_FOUND: Final = LostProducerStateError.exit_code
INTERRUPTED: Final = 130
TERMINATED: Final = 143
"""The exit code after SIGTERM, as a shell describes it."""
OUTPUT_CLOSED: Final = 141
"""As a shell describes a program that SIGPIPE has ended: the reader of the answer wanted no more of it."""

EXIT_CODES: Final = {
    OK: "ok",
    FAILED: "failed",
    USAGE: "usage",
    PARTIAL: "partly done: some of the work was done, and an error was printed; `check` could not judge a topic;"
    " or `install` found wrong files that it replaces only with `--replace`",
    MISSING_FOUND: "`scan --exit-code` found missing snapshots; it or `replicas` a replica that lost producer state;"
    " `check` or `fleet status` a topic that is blocked, or `fleet gate` a reason not to stop a broker",
    ConfigurationError.exit_code: "configuration",
    LockedError.exit_code: "another run is doing the same work",
    StoreError.exit_code: "the store refused or failed",
    VerificationError.exit_code: "what was read back or recomputed differs",
    LogDirInUseError.exit_code: "the log dir is in use: a broker, or another run, holds its lock",
    StalePlanError.exit_code: "what a saved plan, a staged snapshot or an undo depends on has changed",
    ClusterError.exit_code: "the running cluster, or the service beside a broker, did not answer, or refused",
    INTERRUPTED: "interrupted (SIGINT, SIGHUP); a second signal, or 20 s without an orderly end, stops the run at once",
    OUTPUT_CLOSED: "the reader of the output has closed it (`resnap scan ... | head`); nothing is printed",
    TERMINATED: "told to end by SIGTERM, otherwise as 130; the service ends with 0",
}
OUTPUT_VARIABLE: Final = "RESNAP_OUTPUT"
JSON_FORMS: Final = ("json", "ndjson")
_DAMAGE_HINT: Final = "take the file from another replica; one that resnap wrote may be deleted, and is made again"
_WHOLE_HINT: Final = (
    "this needs all of resnap (see Install in its README);"
    " the one file for broker hosts has neither Spark (--engine local) nor the service"
)
_BUG_HINT: Final = "this is a bug in resnap: run the command again with -v, and report what it prints"


class Failures:
    """Prints errors, counts them, and returns their exit code."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.as_json = self.verbose = self.quiet = self.settled = False
        self._codes: list[int] = []
        self._is_unprinted = False
        """Whether the answer could not be printed: then the exit code does not say what is in it."""

    def settle(self, *, as_json: bool, verbose: bool, quiet: bool) -> None:
        """Apply the settings."""
        self.as_json, self.verbose, self.quiet, self.settled = as_json, verbose, quiet, True

    def settle_without_settings(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Settle without settings: a command line that cannot be parsed may still ask for JSON."""
        form = environment.get(OUTPUT_VARIABLE, "")
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
            name, has_value, value = argument.partition("=")
            if name == "--output":
                form = value if has_value else following
        verbose = not {"-v", "--verbose"}.isdisjoint(arguments)
        self.settle(as_json=form in JSON_FORMS, verbose=verbose, quiet=False)

    def report(self, error: BaseException) -> None:
        """Print ``error``, and count it."""
        error = fault_of_machine(error) or error
        self._is_unprinted = self._is_unprinted or isinstance(error, OutputError)
        if isinstance(error, ResnapError):
            hint = error.hint or (_DAMAGE_HINT if isinstance(error, DataError) else None)
            self.print_error(str(error), exit_code=error.exit_code, kind=type(error).__name__, hint=hint,
                      fields=_fields(error))  # fmt: skip
        elif isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("resnap"):
            self.print_error(
                f"{error.name} is not installed here", exit_code=FAILED, kind="NotInstalledError", hint=_WHOLE_HINT
            )
        else:
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self.print_error(text, exit_code=FAILED, kind="InternalError", hint=None if self.verbose else _BUG_HINT)
        if self.verbose and not isinstance(error, ResnapError) and not self.as_json:
            self._print("".join(traceback.format_exception(error)).rstrip("\n"))

    def report_all(self, errors: Sequence[ResnapError], *, most: int = 50) -> None:
        """Report errors; people see ``most`` of each class, and how many more there are."""
        shown: Counter[type] = Counter()
        for error in errors:
            shown[type(error)] += 1
            if self.as_json or self.verbose or shown[type(error)] <= most:
                self.report(error)
            else:
                self._codes.append(error.exit_code)
        more = sum(max(0, count - most) for count in shown.values())
        if more and not (self.as_json or self.verbose):
            self._print(f"error: {some(more, 'more error')} like these; --output json has each")

    def print_error(
        self,
        message: str,
        *,
        exit_code: int,
        kind: str,
        hint: str | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Print an error with its hint, and count its exit code."""
        self._codes.append(exit_code)
        if self.as_json:
            said = {"type": kind, "message": message, "hint": hint, "exitCode": exit_code, **(fields or {})}
            self._print(json.dumps({"error": said}, ensure_ascii=False, default=str))
            return
        self._print(f"error: {message}")
        if hint:
            self._print(f"hint: {hint}")

    def note(self, text: str) -> None:
        """Print a message that is not an error; nothing if quiet."""
        self._aside("note", text)

    def warn(self, text: str) -> None:
        """Print a warning; nothing if quiet."""
        self._aside("warning", text)

    def exit_code(self, code: int = OK, *, partly_done: bool = False) -> int:
        """Return ``code``, or the exit code of the errors if ``code`` is 0, or the answer could not be printed.

        Errors of one kind give its code; of several kinds, 1; together with completed work, 3.
        """
        if (code != OK and not self._is_unprinted) or not self._codes:
            return code
        if partly_done:
            return PARTIAL
        return self._codes[0] if len(set(self._codes)) == 1 else FAILED

    def _aside(self, kind: str, text: str) -> None:
        if self.quiet:
            return
        self._print(json.dumps({kind: {"message": text}}, ensure_ascii=False) if self.as_json else f"{kind}: {text}")

    def _print(self, text: str) -> None:
        with suppress(OSError):  # the exit code says it, too; a log file on a full disk must not stop the work
            self.stream.write(f"{text}\n")
            self.stream.flush()


def _fields(error: ResnapError) -> dict[str, object]:
    match error:
        case FormatError():
            return {
                "file": error.file,
                "position": error.position,
                "expected": _plain(error.expected),
                "found": _plain(error.found),
            }
        case StoreError():
            return {"key": error.key}
        case _:
            return {}


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | str) else str(value)
