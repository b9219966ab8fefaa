"""The command ``resnap``: parses a command line, runs the command (``commands``), and returns an exit code.

A command parses, calls the service, and renders; an error becomes a message on standard error, and its exit code.
Importing this package must stay fast: only the modules of commands import slow packages.
"""

import gc
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from typer.main import get_command

from resnap.scheduler.cli.commands import CommandGroup
from resnap.scheduler.cli.failures import INTERRUPTED, OK, OUTPUT_CLOSED, TERMINATED, USAGE, Failures
from resnap.scheduler.cli.interrupts import code_of_interrupt, forget_the_interrupt, handle_interrupts, is_interrupted
from resnap.scheduler.registry import COMMANDS
from resnap.scheduler.settings.environment import process_environment
from resnap.storage.errors import UsageError
from resnap.storage.version import resnap_version
from resnap.storage.words import is_utf8

COLLECT_AFTER: Final = (50_000, 10, 100)
"""When Python looks for cycles. Neither what a command imports nor the many small values of a plan are in one; going
through all of them again and again, as it does by default, took a third of the planning, and 0.2 s at a time."""
_LOG_DIR: Final = "a log dir is an argument without a flag: `resnap scan /var/lib/kafka`"
_STORE: Final = "a store is one URL, s3://BUCKET/PREFIX: the argument of `verify` and `restore`, --to of `tier`"
_NO_QUESTION: Final = "no command asks before it begins; what deletes or publishes has --delete or --publish"
MEANT: Final = {
    "--log-dir": _LOG_DIR,
    "--log-dirs": _LOG_DIR,
    "--log.dirs": _LOG_DIR,
    "--data-dir": _LOG_DIR,
    "--bucket": _STORE,
    "--prefix": _STORE,
    "--output-dir": "--into DIR of `regenerate`, --to URL of `tier`",
    "--endpoint": "--s3-endpoint-url URL",
    "--endpoint-url": "--s3-endpoint-url URL",
    "--region": "--s3-region NAME",
    "--profile": "set AWS_PROFILE",
    "--destination": "--into DIR of `regenerate`, --to URL of `tier`",
    "--from": _LOG_DIR,
    "--source": _LOG_DIR,
    "--port": "--listen HOST:PORT of `serve`, such as --listen 127.0.0.1:9000",
    "--force": _NO_QUESTION,
    "--yes": _NO_QUESTION,
    "-y": _NO_QUESTION,
    "-n": "--dry-run, where a command writes",
    "-t": "--topic GLOB, such as --topic 'pay*'",
    "-c": "--config FILE",
    "-v": "behind the command: `resnap check LOG_DIR -v`; `resnap --version` prints the version",
    "-o": "--output FORM, such as --output json",
    "--json": "--output json",
    "--format": "--output FORM, such as --output json",
    "help": "`resnap --help`, or `resnap check --help` and so on",
    "ls": "`resnap scan LOG_DIR` lists partitions, `resnap inspect PATH|URL` shows a file, `resnap runs list` runs",
    "list": "`resnap scan LOG_DIR` lists partitions, `resnap inspect PATH|URL` shows a file, `resnap runs list` runs",
    "status": "`resnap check LOG_DIR` says what can be tiered, `resnap fleet status` of all brokers,"
    " `resnap remote status LOG_DIR` what brokers know to be in remote storage",
}
"""What to do instead, by flags and commands of other tools that people type."""

app = typer.Typer(
    name="resnap",
    cls=CommandGroup,
    help="Rebuild missing Kafka producer snapshots, and ship segments with them to tiered storage.",
    epilog="Begin with `resnap check LOG_DIR`, which changes nothing, or with `resnap demo`, which needs no log.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """Run the command line of this process; a request to stop is treated as an interrupt."""
    gc.set_threshold(*COLLECT_AFTER)
    _open_closed_streams()
    try:
        handle_interrupts()
    except RuntimeError as error:  # no thread can be started
        failures = Failures(sys.stderr)
        _settle(failures, sys.argv[1:])
        failures.report(error)
        sys.exit(failures.exit_code())
    code = run(sys.argv[1:])
    _drop_what_finds_no_room()
    # The process ends now; Python would search for cycles once more, for half a second.
    gc.freeze()
    forget_the_interrupt()
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open /dev/null for standard streams that the caller has closed, before other files get their numbers."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            null = Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115 - to the end
            setattr(sys, name, null)


def _drop_what_finds_no_room() -> None:
    """Discard output that could not be written, which was reported: Python would retry it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; no exception escapes, except bugs of Python itself."""
    failures = Failures(sys.stderr)
    try:
        _check_text(arguments)
        code = get_command(app).main(list(arguments), prog_name="resnap", standalone_mode=False, obj=failures)
    except typer.TyperException as error:
        _settle(failures, arguments)
        failures.print_error(
            _usage(error), exit_code=error.exit_code, kind="UsageError", hint=_usage_hint(error, arguments)
        )
        return failures.exit_code()
    except KeyboardInterrupt:
        code = code_of_interrupt()
    except SystemExit as end:  # the parser's own: completion is done, or the reader of --help has gone
        code = OUTPUT_CLOSED if end.code else OK
    except Exception as error:  # noqa: BLE001 - the last place where an error can become a message
        if not is_interrupted():
            _settle(failures, arguments)
            failures.report(error)
            return failures.exit_code()
        code = code_of_interrupt()  # of which a library has made an error of its own, as when it was being imported
    if code and is_interrupted():  # whatever else went wrong on the way out
        code = code_of_interrupt()
    if code in {INTERRUPTED, TERMINATED}:
        with suppress(OSError):  # of a terminal that was closed
            sys.stderr.write("interrupted\n")
    return code if isinstance(code, int) else OK


def _check_text(arguments: Sequence[str]) -> None:
    """Raise UsageError for a path whose bytes are no text: URLs, results and messages could not name it."""
    for argument in arguments:
        if not is_utf8(argument):
            raise UsageError(f"{argument!a} is not UTF-8, as all paths and names of brokers are", hint="rename it")


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if show_version:
        typer.echo(f"resnap {resnap_version()}")
        raise typer.Exit(OK)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(USAGE)


def _settle(failures: Failures, arguments: Sequence[str]) -> None:
    if not failures.settled:
        failures.settle_without_settings(arguments, process_environment())


_HOW_IT_WAS_READ: Final = re.compile(r", unable to parse string as an? \w+$")
_SPAN: Final = "that is in milliseconds: an hour is 3600000, 7 days are 604800000"


def _usage(error: typer.TyperException) -> str:
    """Return Typer's message in our form."""
    message = error.format_message().replace("Value error, ", "").replace("Input should be", "expected").rstrip(".")
    message = _HOW_IT_WAS_READ.sub("", message)
    return message[:1].lower() + message[1:]


def _usage_hint(error: typer.TyperException, arguments: Sequence[str]) -> str | None:
    """Return what was probably meant, or where it says what is possible."""
    context = getattr(error, "ctx", None)
    is_command = context is not None and context.parent is None
    words = arguments if is_command else [getattr(error, "option_name", "")]
    if meant := next((MEANT[word] for word in words if word in MEANT), None):
        return meant
    path = context.command_path if context else _command_in(arguments)
    said, parameter = _usage(error), getattr(error, "param", None)
    is_span = parameter is not None and (parameter.metavar == "MS" or parameter.opts[0].endswith("-ms"))
    if is_span and "expected a valid integer" in said:
        return _SPAN
    row = COMMANDS.get(path.removeprefix("resnap "))
    is_place = parameter is not None and parameter.param_type_name == "argument"
    example = f"such as `{row.example}`; " if row is not None and (said.startswith("missing ") or is_place) else ""
    return f"{example}`{path} --help` shows what is possible"


def _command_in(arguments: Sequence[str]) -> str:
    """Return the command that ``arguments`` begin with."""
    words = " ".join(arguments)
    return f"resnap {max((name for name in COMMANDS if words.startswith(name)), key=len, default='')}".rstrip()
