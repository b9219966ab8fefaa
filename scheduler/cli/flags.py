"""The settings that commands offer as flags, by group, and ``with_settings``, which adds them to a command.

Each flag is generated from its setting's declaration. A flag that was not given is None, so that the setting's own
default applies. ``@with_settings(SOURCE, REPLAY)`` gives a command the flags of these groups on top of ``COMMON``. The
command gets an ``Invocation`` instead of the flags.

Modules of commands do not use postponed annotations, because Typer needs the annotations themselves.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import wraps
from typing import Annotated, Any, Concatenate, Final, Literal, TypeAlias

import typer

from resnap.scheduler.cli.failures import JSON_FORMS, OK, OUTPUT_CLOSED, Failures
from resnap.scheduler.cli.interrupts import code_of_interrupt
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.output.rendering import Output, OutputClosedError
from resnap.scheduler.settings import replay
from resnap.scheduler.settings.declaration import SettingGroup, declared_in
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.layers import resembling_variable
from resnap.scheduler.settings.loading import load_settings
from resnap.scheduler.settings.service import ServiceSettings
from resnap.scheduler.settings.settings import DECLARED, OutputSettings, SharedCluster
from resnap.scheduler.settings.store import ShippingSettings, StoreSettings
from resnap.scheduler.telemetry.traces import export_spans
from resnap.storage.errors import UsageError, check_address_space
from resnap.storage.spans import span

Group: TypeAlias = tuple[str, ...]
"""Names of settings."""


def names_in(settings: type[SettingGroup]) -> Group:
    """Return the names of the settings of a class that have a flag."""
    return tuple(setting.name for setting in declared_in(settings) if setting.flag)


COMMON: Final = names_in(OutputSettings)
DUMPED: Final = ("output",)
"""The setting of a command that can also print as Kafka's dump tool does."""
TOPIC: Final = ("topics", "exclude_topics")
PARTITIONS: Final = (*TOPIC, "partitions", "high_watermark")
KEY_PREFIX: Final = ("key_prefix",)
REMOTE: Final = ("remote", *KEY_PREFIX)
SOURCE: Final = (*names_in(replay.SelectionSettings), *KEY_PREFIX)
CLUSTER: Final = ("bootstrap_server", "command_config", "kafka_version")
COPYING_IN_TIME: Final = ("copy_overdue_after",)
METADATA: Final = ("metadata_log",)
SERVER: Final = ("server_properties",)
RULES: Final = (*names_in(replay.BrokerSettings), "as_of", "max_reach_back", "full")
"""What a plan is made by."""
CHECKING: Final = ("verify_crc",)
SPARK: Final = ("spark_master", "spark_driver_memory", "spark_conf")
REPLAY: Final = (*RULES, *CHECKING, *SPARK)
ENGINE: Final = ("engine",)
READING: Final = names_in(replay.ReadingSettings)
MEMORY: Final = names_in(replay.RunCacheSettings)
STATE: Final = ("state_dir",)
WRITE: Final = names_in(replay.WritingSettings)
COPYING: Final = ("parallel", "bwlimit")
"""The settings of commands that copy segments, without how they are laid out."""
UPLOAD: Final = names_in(ShippingSettings)
STORE: Final = names_in(StoreSettings)
S3: Final = tuple(name for name in STORE if name.startswith("s3_"))
"""The settings of a store for commands that open no segment."""
SERVE: Final = names_in(ServiceSettings)
ALL: Final = (*SOURCE, *CLUSTER, *COPYING_IN_TIME, *REPLAY, *ENGINE, *READING, *MEMORY, *WRITE, *UPLOAD, *STORE, *SERVE)

LogDirs: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="LOG_DIR", help="Log dirs, partition directories, or URLs; the default is log.dirs."),
]


def flag_annotation(name: str, *, may_dump: bool) -> Any:  # noqa: ANN401 - a type
    """Return the annotation by which Typer makes the flag of a setting; ``dump-log`` is for few commands."""
    one = DECLARED[name]
    kind = one.command_line_type()
    if name == "output" and not may_dump:
        kind = Literal["table", "json", "ndjson"]
    spelled = f"{one.flag}/--no-{one.flag.removeprefix('--')}" if kind is bool else one.flag
    option = typer.Option(
        *filter(None, (spelled, one.setting.short)),
        help=f"{one.setting.description.rstrip('.')}; the default is {one.default}." if one.default
        else one.setting.description,
        metavar=one.metavar,
        show_default=False,
        rich_help_panel=one.group.title,
    )  # fmt: skip
    return Annotated[kind | None, option]


Command: TypeAlias = Callable[Concatenate[Invocation, ...], int | None]


def with_settings(*groups: Group) -> Callable[[Command], Callable[..., None]]:
    """Add the flags of ``COMMON`` and ``groups`` to a command, which gets an ``Invocation`` and its own arguments.

    The command returns its exit code, or None for 0. If it has reported an error, that error's code replaces 0.
    """
    own = dict.fromkeys(name for group in groups for name in group)
    may_dump = "output" in own
    flags = {name: flag_annotation(name, may_dump=may_dump) for name in dict.fromkeys((*own, *COMMON))}

    def decorate(command: Command) -> Callable[..., None]:
        @wraps(command)
        def run(context: typer.Context, **arguments: Any) -> None:  # noqa: ANN401 - as Typer parsed them
            failures: Failures = context.obj
            given = {name: arguments.pop(name) for name in flags}
            learns = "producer_id_expiration_ms" in flags
            # By what the metadata log says topics are judged, too; where one is named it must be there.
            places = _places(arguments) if learns or {"topics", "metadata_log"} <= flags.keys() else None
            invocation = _invocation(given, failures, places=places, may_dump=may_dump, is_service=SERVE in groups)
            with _quiet_ends(), export_spans(process_environment(), invocation.warn), ExitStack() as spans:
                # The service never ends; each of its runs is a span.
                add = None if SERVE in groups else spans.enter_context(span(context.command_path))
                with invocation.at_end:
                    own_code = command(invocation, **arguments)
                code = failures.exit_code(own_code or OK, partly_done=invocation.partly_done)
                if add is not None:
                    add("resnap.exit_code", code)
            raise typer.Exit(code)

        _declare(run, command, flags)
        return run

    return decorate


def _places(arguments: Mapping[str, Any]) -> list[str]:
    """Return the log dirs or URLs of a command, from whichever parameter has them."""
    names = "sources", "log_dirs", "places"
    given = next(filter(None, map(arguments.get, names)), [arguments.get("source")])
    return [str(place) for place in given if place is not None]


def _declare(run: Callable[..., None], command: Command, flags: Mapping[str, Any]) -> None:
    """Declare the command's own parameters to Typer, then the flags; keyword-only, since it passes all by name."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in flags.items()
        ),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__  # type: ignore[attr-defined] # else annotations would be looked up there


def _invocation(
    flags: Mapping[str, object],
    failures: Failures,
    *,
    places: Sequence[str] | None,
    may_dump: bool,
    is_service: bool,
) -> Invocation:
    check_address_space()
    # Only a replay needs the expiration that badly; `check` says what it could not ask.
    asks_cluster = {"as_of", "bootstrap_server"} <= flags.keys()
    with ExitStack() as on_failure:
        shared_cluster = on_failure.enter_context(closing(SharedCluster()))
        settings = load_settings(flags, places=places, ask_cluster=asks_cluster, shared_cluster=shared_cluster)
        at_end = on_failure.pop_all()
    as_json = settings.output in JSON_FORMS
    if is_service:  # whose messages are of the form of its log
        as_json = settings.log_format == "json" or (settings.log_format == "auto" and not failures.stream.isatty())
    failures.settle(as_json=as_json, verbose=settings.verbose, quiet=settings.quiet)
    if settings.output == "dump-log" and not may_dump:
        raise UsageError("only `resnap inspect` supports dump-log", hint="--output table, json or ndjson")
    for variable in settings.unknown_variables:
        failures.warn(f"the environment variable {variable} is not a setting: {resembling_variable(variable)}")
    for warning in settings.metadata_warnings:
        failures.warn(warning)
    return Invocation(
        settings=settings,
        flags=flags,
        output=Output(settings.output),
        failures=failures,
        first_note=settings.expiration_note if "as_of" in flags else None,
        at_end=at_end,
    )


@contextmanager
def _quiet_ends() -> Iterator[None]:
    """End without a traceback when the reader of our output has closed it, or at an interrupt."""
    try:
        yield
    except OutputClosedError:
        # What is still buffered has nowhere to go; without this Python would complain when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(OUTPUT_CLOSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(code_of_interrupt()) from None
