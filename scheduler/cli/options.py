"""The options that commands share, each a setting: declared once, attached to a command in groups.

``@with_settings(SOURCE, REPLAY)`` gives a command the flags of these groups on top of ``COMMON``, and hands it an
``Invocation`` instead of the flags. Nothing here may import what is slow: ``--help`` goes through this module, and the
settings themselves (pydantic takes half a second) are loaded only when a command runs.

Modules of commands do without postponed annotations, because Typer needs the annotations themselves.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, Literal, ParamSpec, TextIO, TypeAlias

import typer

from scheduler.answers.rendering import Output, OutputClosedError
from scheduler.cli.failures import INTERRUPTED, JSON_FORMS, OK, OUTPUT_CLOSED, Failures
from scheduler.cli.invocation import Invocation
from storage.errors import UsageError

P = ParamSpec("P")
Command: TypeAlias = Callable[Concatenate[Invocation, P], int | None]
Group: TypeAlias = Mapping[str, Any]
"""Annotation by name of the setting."""

CHOICE_OF_CHECKSUMS: TypeAlias = Literal["when_supported", "when_required"]


def _flag(kind: Any, *names: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002, ANN401 - Typer's word
    """Return the annotation of a flag that is None where it was not given."""
    return Annotated[kind | None, typer.Option(*names, help=help, metavar=metavar, show_default=False)]


COMMON: Final[Group] = {
    "output": _flag(Literal["table", "json", "ndjson"], "--output", help="Form of the answer; table unless given."),
    "quiet": _flag(bool, "--quiet/--no-quiet", "-q", help="Nothing but the answer and errors."),
    "verbose": _flag(bool, "--verbose/--no-verbose", "-v", help="Say more; show the traceback of a bug."),
    "config": _flag(Path, "--config", metavar="FILE", help="TOML file with settings, else ./resnap.toml."),
}
DUMPED: Final[Group] = {
    "output": _flag(
        Literal["table", "json", "ndjson", "dump-log"],
        "--output",
        help="Form of the answer; table unless given; dump-log: line by line as Kafka's own dump tool.",
    ),
}
TOPIC: Final[Group] = {
    "topics": _flag(
        list[str], "--topic", metavar="GLOB", help="Only topics that match GLOB; may be given several times."
    ),
}
SOURCE: Final[Group] = {
    **TOPIC,
    "partitions": _flag(
        list[str],
        "--partition",
        metavar="TOPIC-N",
        help="Only this partition, as its directory is called; may be given several times.",
    ),
    "boundaries": _flag(
        Literal["missing", "all"], "--boundaries", help="Boundaries without a usable snapshot (the default), or all."
    ),
    "high_watermark": _flag(
        int, "--high-watermark", metavar="OFFSET", help="Of the one partition given, where no checkpoint tells it."
    ),
}
CLUSTER: Final[Group] = {
    "bootstrap_server": _flag(
        str, "--bootstrap-server", metavar="HOST:PORT", help="Of the running cluster; several with commas."
    ),
    "command_config": _flag(
        Path, "--command-config", metavar="FILE", help="Properties for connecting, as Kafka's own tools take them."
    ),
}
METADATA: Final[Group] = {
    "metadata_log": _flag(
        Path, "--metadata-log", metavar="DIR", help="The cluster's __cluster_metadata-0, or the log dir that holds it."
    ),
}
SERVER: Final[Group] = {
    "server_properties": _flag(
        Path, "--server-properties", metavar="FILE", help="The broker's server.properties, to learn from."
    ),
}
EXPIRATION: Final[Group] = {
    **SERVER,
    **METADATA,
    "producer_id_expiration_ms": _flag(
        int,
        "--producer-id-expiration-ms",
        metavar="MS",
        help="Of the brokers that will load the snapshots; 604800000 where nothing tells it.",
    ),
    "producer_id_expiration_check_interval_ms": _flag(
        int,
        "--producer-id-expiration-check-interval-ms",
        metavar="MS",
        help="Of the same brokers; 600000 unless given.",
    ),
    "history_expiration_ms": _flag(
        int,
        "--history-expiration-ms",
        metavar="MS",
        help="The expiration under which the log was written, if it"
        " differs; before 3.4 that was transactional.id.expiration.ms.",
    ),
}
CHECKING: Final[Group] = {
    "verify_crc": _flag(bool, "--verify-crc/--no-verify-crc", help="Read whole batches, and compare their checksums."),
}
ENGINE: Final[Group] = {
    "engine": _flag(
        Literal["spark", "local"], "--engine", help="What replays: Spark (the default), or this process, without a JVM."
    ),
}
READING: Final[Group] = {
    "threads": _flag(
        int, "--threads", metavar="N", help="Segments that --engine local scans at once; else one per processor."
    ),
    "header_read_size": _flag(
        str,
        "--header-read-size",
        metavar="SIZE",
        help="Mean batch size from which headers are read one by one, not in blocks; 128KiB unless given.",
    ),
    "split_size": _flag(
        str,
        "--split-size",
        metavar="SIZE",
        help="Larger segments are cut into parts of about this size; 1GiB unless given.",
    ),
    "range_size": _flag(
        str, "--range-size", metavar="SIZE", help="Asked for at once of a segment in a store; 8MiB unless given."
    ),
    "ranges_in_flight": _flag(
        int, "--ranges-in-flight", metavar="N", help="Ranges of a segment on their way at a time; 4 unless given."
    ),
    "producers_per_task": _flag(
        int,
        "--producers-per-task",
        metavar="N",
        help="A partition with more producers is combined by several tasks; 250000 unless given.",
    ),
}
REPLAY: Final[Group] = {
    **EXPIRATION,
    **CHECKING,
    "as_of": _flag(
        str,
        "--as-of",
        metavar="now|roll|TIME",
        help="When expiry is judged: now (the default), at each boundary's roll, or at an ISO 8601 time.",
    ),
    "transaction_max_timeout_ms": _flag(
        int, "--transaction-max-timeout-ms", metavar="MS", help="Of the brokers; 900000 unless given."
    ),
    "max_reach_back": _flag(
        str,
        "--max-reach-back",
        metavar="DURATION",
        help="How far before the window reading may go on (7d, 36h, 15m); else to the log start.",
    ),
    "full": _flag(bool, "--full/--no-full", help="Replay from the log start, whatever the window."),
    "spark_master": _flag(str, "--spark-master", metavar="URL", help="Of the Spark cluster; local[*] unless given."),
    "spark_driver_memory": _flag(
        str, "--spark-driver-memory", metavar="SIZE", help="Heap of the Spark driver; 1g unless given."
    ),
    "spark_conf": _flag(
        list[str], "--spark-conf", metavar="KEY=VALUE", help="A further Spark property; may be given several times."
    ),
}
MEMORY: Final[Group] = {
    "state_dir": _flag(
        str, "--state-dir", metavar="DIR", help="Where what earlier runs found out is kept; none for nowhere."
    ),
    "fresh": _flag(bool, "--fresh/--no-fresh", help="Find everything out anew, whatever earlier runs have found."),
}
WRITE: Final[Group] = {
    "dry_run": _flag(
        bool, "--dry-run/--no-dry-run", "-n", help="Say what would be done, with totals, and write nothing."
    ),
}
KEY_PREFIX: Final[Group] = {
    "key_prefix": _flag(
        str, "--key-prefix", metavar="TEXT", help="In the layout aiven: rsm.config.key.prefix, as it is, below the URL."
    ),
}
UPLOAD: Final[Group] = {
    "parallel": _flag(int, "--parallel", metavar="N", help="Segments on their way at once; 4 unless given."),
    "bwlimit": _flag(str, "--bwlimit", metavar="SIZE", help="Sent, and read back, per second at most: 50MiB."),
    "verify_upload": _flag(
        Literal["auto", "read-back"],
        "--verify-upload",
        help="auto (the default) trusts the store's check where it was seen to refuse; read-back never does.",
    ),
    "layout": _flag(
        Literal["flat", "local-tiered", "aiven"],
        "--layout",
        help="flat (the default) is Resnap's own; aiven is read by that RemoteStorageManager plugin, local-tiered by"
        " Kafka's LocalTieredStorage.",
    ),
    **KEY_PREFIX,
    "chunk_size": _flag(
        str, "--chunk-size", metavar="SIZE", help="In the layout aiven: what brokers fetch at once; 4MiB unless given."
    ),
    "chunk_compression": _flag(
        Literal["none", "zstd", "heuristic"],
        "--chunk-compression",
        help="In the layout aiven; heuristic: of segments whose first batch is not compressed.",
    ),
    "encryption_public_key": _flag(
        list[str],
        "--encryption-public-key",
        metavar="ID=FILE",
        help="In the layout aiven: the RSA key that segments are encrypted for (PEM).",
    ),
    "io_priority": _flag(
        Literal["normal", "low", "idle"], "--io-priority", help="Of reading segments; low unless given."
    ),
}
STORE: Final[Group] = {
    "s3_endpoint_url": _flag(str, "--s3-endpoint-url", metavar="URL", help="Endpoint of the S3-compatible store."),
    "s3_region": _flag(str, "--s3-region", metavar="NAME", help="Region of the store."),
    "s3_profile": _flag(str, "--s3-profile", metavar="NAME", help="Section of the shared AWS configuration."),
    "s3_addressing_style": _flag(
        Literal["auto", "path", "virtual"],
        "--s3-addressing-style",
        help="Where the bucket's name goes; most stores other than AWS want path.",
    ),
    "s3_request_checksum_calculation": _flag(
        CHOICE_OF_CHECKSUMS, "--s3-request-checksum-calculation", help="when_required: for stores that choke on them."
    ),
    "s3_response_checksum_validation": _flag(
        CHOICE_OF_CHECKSUMS, "--s3-response-checksum-validation", help="when_required: for stores that send wrong ones."
    ),
    "s3_sse": _flag(Literal["AES256", "aws:kms", "aws:kms:dsse"], "--s3-sse", help="Encryption by the store."),
    "s3_sse_kms_key_id": _flag(str, "--s3-sse-kms-key-id", metavar="ID", help="Key of the store's key management."),
    "s3_sse_customer_key_file": _flag(
        Path, "--s3-sse-customer-key-file", metavar="FILE", help="A key of 256 bits, raw or base64 (SSE-C)."
    ),
    "s3_storage_class": _flag(
        str, "--s3-storage-class", metavar="CLASS", help="Of what segments consist of; one that can be read at once."
    ),
    "s3_tag": _flag(
        list[str], "--s3-tag", metavar="KEY=VALUE", help="On every object written; may be given several times."
    ),
    "s3_expected_bucket_owner": _flag(
        str, "--s3-expected-bucket-owner", metavar="ACCOUNT", help="Whom the bucket must belong to."
    ),
    "s3_ca_bundle": _flag(Path, "--s3-ca-bundle", metavar="FILE", help="Certificates to trust, in PEM."),
    "s3_max_attempts": _flag(int, "--s3-max-attempts", metavar="N", help="At each request; 6 unless given."),
    "s3_read_timeout": _flag(
        str, "--s3-read-timeout", metavar="DURATION", help="How long an answer may take; 60s unless given."
    ),
    "encryption_private_key": _flag(
        list[str],
        "--encryption-private-key",
        metavar="ID=FILE",
        help="Opens segments that a plugin encrypted for the key pair ID (PEM); may be given several times.",
    ),
}
SERVE: Final[Group] = {
    "listen": _flag(str, "--listen", metavar="HOST:PORT", help="Of the API and the page; 127.0.0.1:8936 unless given."),
    "auth": _flag(
        Literal["token", "none"],
        "--auth",
        help="Who may: holders of a token, or (none, the default, on loopback only) whoever is on this machine.",
    ),
    "allow_sources": _flag(
        list[str], "--allow-source", metavar="DIR|URL", help="Below which requests may name sources; log.dirs aside."
    ),
    "allow_destinations": _flag(
        list[str],
        "--allow-destination",
        metavar="DIR|URL",
        help="Below which requests may name destinations; those of schedules aside.",
    ),
    "allow_hosts": _flag(
        list[str], "--allow-host", metavar="NAME", help="By which browsers may reach the service, its address aside."
    ),
    "queue_size": _flag(int, "--queue-size", metavar="N", help="Runs that may wait; 100 unless given."),
    "history_retention": _flag(
        str, "--history-retention", metavar="DURATION", help="Of runs that ended; 90d unless given."
    ),
    "log_format": _flag(
        Literal["auto", "json", "console"], "--log-format", help="auto, the default: readable on a terminal, else JSON."
    ),
    "stop_grace": _flag(
        str, "--stop-grace", metavar="DURATION", help="For the run at work when the service is told to end; 20s."
    ),
}
ALL: Final[Group] = {**SOURCE, **CLUSTER, **REPLAY, **ENGINE, **READING, **MEMORY, **WRITE, **UPLOAD, **STORE, **SERVE}

Sources: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SOURCE]...", help="Log dirs, partitions' directories, or URLs; log.dirs unless given."),
]


def with_settings(*groups: Group) -> Callable[[Command[P]], Callable[..., None]]:
    """Give a command the flags of ``COMMON`` and ``groups``; it is called with an ``Invocation`` and its own arguments.

    The command returns its exit code, or None for 0; an error that it reported makes a 0 another code.
    """
    own: dict[str, Any] = {name: kind for group in groups for name, kind in group.items()}
    flags = own | {name: kind for name, kind in COMMON.items() if name not in own}

    def decorate(command: Command[P]) -> Callable[..., None]:
        @wraps(command)
        def run(context: typer.Context, **arguments: Any) -> None:  # noqa: ANN401 - as Typer parsed them
            failures: Failures = context.obj
            given = {name: arguments.pop(name) for name in flags}
            learns = "producer_id_expiration_ms" in flags
            places = _places(arguments) if learns else None
            invocation = _invocation(
                given,
                failures,
                is_replay="as_of" in flags,
                places=places,
                may_dump="output" in own,
                is_service=SERVE in groups,
            )
            with _quiet_ends(), invocation.at_end:
                code = command(invocation, **arguments)  # type: ignore[call-arg]
            raise typer.Exit(failures.exit_code(code or OK, partly_done=invocation.partly_done))

        _declare(run, command, flags)
        return run

    return decorate


def _places(arguments: Mapping[str, Any]) -> list[str]:
    """Return what a command is pointed at, whatever it calls that."""
    given = arguments.get("sources") or arguments.get("log_dirs") or [arguments.get("source")]
    return [str(place) for place in given if place is not None]


def _declare(run: Callable[..., None], command: Callable[..., Any], flags: Mapping[str, Any]) -> None:
    """Show Typer the command's own parameters, then the flags; keyword-only, since it passes all by name."""
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
    is_replay: bool,
    places: Sequence[str] | None,
    may_dump: bool,
    is_service: bool,
) -> Invocation:
    from scheduler.settings.loading import load_settings  # takes half a second, which --help need not wait for

    settings = load_settings(flags, places=places)
    log_format = settings.log_format if is_service else None
    as_json = _tells_json(settings.output, log_format, failures.stream)
    failures.settle(as_json=as_json, verbose=settings.verbose, quiet=settings.quiet)
    if settings.output == "dump-log" and not may_dump:
        raise UsageError("dump-log is a form of `resnap inspect` alone", hint="--output table, json or ndjson")
    for variable in settings.unknown_variables:
        failures.warn(f"the environment variable {variable} is no setting")
    for warning in settings.metadata_warnings:
        failures.warn(warning)
    if is_replay and settings.expiration_note:
        failures.note(settings.expiration_note)
    return Invocation(settings=settings, flags=flags, output=Output(settings.output), failures=failures)


def _tells_json(output: str, log_format: str | None, stream: TextIO) -> bool:
    """Whether prose is to be JSON: where the answer is; of the service (``log_format``) where its log is."""
    if log_format is None:
        return output in JSON_FORMS
    return log_format == "json" or (log_format == "auto" and not stream.isatty())


@contextmanager
def _quiet_ends() -> Iterator[None]:
    """End without a traceback when the reader of our output has gone, or somebody interrupts."""
    try:
        yield
    except OutputClosedError:
        # What is still buffered has nowhere to go; without this Python would complain when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(OUTPUT_CLOSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
