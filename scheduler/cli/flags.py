"""The flags that commands share, in groups: each flag is a setting, and is declared here once.

``with_settings`` (``options``) gives the groups to a command. A flag that was not given is None, so that the setting's
own default counts; the help tells that default, since the settings themselves are slow to import.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer

Group: TypeAlias = Mapping[str, Any]
"""Annotation by name of the setting."""

CHOICE_OF_CHECKSUMS: TypeAlias = Literal["when_supported", "when_required"]


def _flag(kind: Any, *names: str, help: str, metavar: str | None = None) -> Any:  # noqa: A002, ANN401 - Typer's word
    """Return the annotation of a flag that is None where it was not given."""
    return Annotated[kind | None, typer.Option(*names, help=help, metavar=metavar, show_default=False)]


COMMON: Final[Group] = {
    "output": _flag(Literal["table", "json", "ndjson"], "--output", help="Form of the answer; the default is table."),
    "quiet": _flag(bool, "--quiet/--no-quiet", "-q", help="Print nothing but the answer and errors."),
    "verbose": _flag(bool, "--verbose/--no-verbose", "-v", help="Print more; show the traceback of a bug."),
    "config": _flag(
        Path, "--config", metavar="FILE", help="TOML file with settings; the default is ./resnap.toml, if it exists."
    ),
}
DUMPED: Final[Group] = {
    "output": _flag(
        Literal["table", "json", "ndjson", "dump-log"],
        "--output",
        help="Form of the answer; the default is table. dump-log prints the lines of Kafka's own dump tool.",
    ),
}
TOPIC: Final[Group] = {
    "topics": _flag(
        list[str], "--topic", metavar="GLOB", help="Only topics that match GLOB; can be given several times."
    ),
}
SOURCE: Final[Group] = {
    **TOPIC,
    "partitions": _flag(
        list[str],
        "--partition",
        metavar="TOPIC-N",
        help="Only this partition, named like its directory; can be given several times.",
    ),
    "boundaries": _flag(
        Literal["missing", "all"],
        "--boundaries",
        help="Work on boundaries without a usable snapshot (the default), or on all boundaries.",
    ),
    "high_watermark": _flag(
        int,
        "--high-watermark",
        metavar="OFFSET",
        help="High watermark of the partition, if no checkpoint file has it; needs exactly one --partition.",
    ),
}
CLUSTER: Final[Group] = {
    "bootstrap_server": _flag(
        str, "--bootstrap-server", metavar="HOST:PORT", help="Brokers of the running cluster, separated by commas."
    ),
    "command_config": _flag(
        Path,
        "--command-config",
        metavar="FILE",
        help="Client properties for the connection, in the format of Kafka's own tools.",
    ),
}
METADATA: Final[Group] = {
    "metadata_log": _flag(
        Path,
        "--metadata-log",
        metavar="DIR",
        help="The directory __cluster_metadata-0 of the cluster, or the log dir that contains it.",
    ),
}
SERVER: Final[Group] = {
    "server_properties": _flag(
        Path, "--server-properties", metavar="FILE", help="The broker's server.properties; settings are read from it."
    ),
}
EXPIRATION: Final[Group] = {
    **SERVER,
    **METADATA,
    "producer_id_expiration_ms": _flag(
        int,
        "--producer-id-expiration-ms",
        metavar="MS",
        help="producer.id.expiration.ms of the brokers that will load the snapshots; 604800000 if it is not known.",
    ),
    "producer_id_expiration_check_interval_ms": _flag(
        int,
        "--producer-id-expiration-check-interval-ms",
        metavar="MS",
        help="producer.id.expiration.check.interval.ms of the same brokers; the default is 600000.",
    ),
    "history_expiration_ms": _flag(
        int,
        "--history-expiration-ms",
        metavar="MS",
        help="The expiration that applied when the log was written, if it was different; before 3.4"
        " it was transactional.id.expiration.ms.",
    ),
}
CHECKING: Final[Group] = {
    "verify_crc": _flag(bool, "--verify-crc/--no-verify-crc", help="Read whole batches and check their checksums."),
}
ENGINE: Final[Group] = {
    "engine": _flag(
        Literal["spark", "local"], "--engine", help="Replay on Spark (the default), or in this process, without a JVM."
    ),
}
READING: Final[Group] = {
    "threads": _flag(
        int,
        "--threads",
        metavar="N",
        help="How many segments --engine local scans at the same time; the default is one per processor.",
    ),
    "header_read_size": _flag(
        str,
        "--header-read-size",
        metavar="SIZE",
        help="If batches are this large on average, read headers one by one and not in blocks; the default is 128KiB.",
    ),
    "split_size": _flag(
        str,
        "--split-size",
        metavar="SIZE",
        help="Split larger segments into parts of about this size; the default is 1GiB.",
    ),
    "range_size": _flag(
        str,
        "--range-size",
        metavar="SIZE",
        help="How much of a segment one request to a store asks for; the default is 8MiB.",
    ),
    "ranges_in_flight": _flag(
        int,
        "--ranges-in-flight",
        metavar="N",
        help="How many such requests run at the same time for a segment; the default is 4.",
    ),
    "producers_per_task": _flag(
        int,
        "--producers-per-task",
        metavar="N",
        help="Combine a partition with more producers in several tasks; the default is 250000.",
    ),
}
REPLAY: Final[Group] = {
    **EXPIRATION,
    **CHECKING,
    "as_of": _flag(
        str,
        "--as-of",
        metavar="now|roll|TIME",
        help="When producers count as expired: now (the default), at the roll of each segment, or at an ISO 8601 time.",
    ),
    "transaction_max_timeout_ms": _flag(
        int,
        "--transaction-max-timeout-ms",
        metavar="MS",
        help="transaction.max.timeout.ms of the brokers; the default is 900000.",
    ),
    "max_reach_back": _flag(
        str,
        "--max-reach-back",
        metavar="DURATION",
        help="How far before the window to read at most (7d, 36h, 15m); the default is the log start.",
    ),
    "full": _flag(bool, "--full/--no-full", help="Replay from the log start, and ignore the window."),
    "spark_master": _flag(
        str, "--spark-master", metavar="URL", help="URL of the Spark cluster; the default is local[*]."
    ),
    "spark_driver_memory": _flag(
        str, "--spark-driver-memory", metavar="SIZE", help="Heap size of the Spark driver; the default is 1g."
    ),
    "spark_conf": _flag(
        list[str], "--spark-conf", metavar="KEY=VALUE", help="An extra Spark property; can be given several times."
    ),
}
MEMORY: Final[Group] = {
    "state_dir": _flag(
        str,
        "--state-dir",
        metavar="DIR",
        help="Directory where a run keeps its results for later runs; none keeps nothing.",
    ),
    "fresh": _flag(bool, "--fresh/--no-fresh", help="Ignore the results of earlier runs."),
}
WRITE: Final[Group] = {
    "dry_run": _flag(
        bool, "--dry-run/--no-dry-run", "-n", help="Print what would be done, with totals, and write nothing."
    ),
}
KEY_PREFIX: Final[Group] = {
    "key_prefix": _flag(
        str,
        "--key-prefix",
        metavar="TEXT",
        help="For the layout aiven: the plugin's key.prefix; keys below the URL begin with it.",
    ),
}
UPLOAD: Final[Group] = {
    "parallel": _flag(
        int, "--parallel", metavar="N", help="How many segments to upload at the same time; the default is 4."
    ),
    "bwlimit": _flag(
        str, "--bwlimit", metavar="SIZE", help="Send and read back at most this much per second, such as 50MiB."
    ),
    "verify_upload": _flag(
        Literal["auto", "read-back"],
        "--verify-upload",
        help="auto (the default) trusts the store's check if a probe saw it refuse a wrong checksum; read-back reads"
        " every object again.",
    ),
    "layout": _flag(
        Literal["flat", "local-tiered", "aiven"],
        "--layout",
        help="flat (the default) is Resnap's own; Aiven's RemoteStorageManager plugin reads aiven, and Kafka's"
        " LocalTieredStorage reads local-tiered.",
    ),
    **KEY_PREFIX,
    "chunk_size": _flag(
        str,
        "--chunk-size",
        metavar="SIZE",
        help="For the layout aiven: how much brokers fetch with one request; the default is 4MiB.",
    ),
    "chunk_compression": _flag(
        Literal["none", "zstd", "heuristic"],
        "--chunk-compression",
        help="For the layout aiven; heuristic compresses a segment only if its first batch is not compressed.",
    ),
    "encryption_public_key": _flag(
        list[str],
        "--encryption-public-key",
        metavar="ID=FILE",
        help="For the layout aiven: the public RSA key (PEM) to encrypt segments with.",
    ),
    "io_priority": _flag(
        Literal["normal", "low", "idle"], "--io-priority", help="I/O priority for reading segments; the default is low."
    ),
}
STORE: Final[Group] = {
    "s3_endpoint_url": _flag(str, "--s3-endpoint-url", metavar="URL", help="Endpoint of the S3-compatible store."),
    "s3_region": _flag(str, "--s3-region", metavar="NAME", help="Region of the store."),
    "s3_profile": _flag(str, "--s3-profile", metavar="NAME", help="Profile in the shared AWS configuration files."),
    "s3_addressing_style": _flag(
        Literal["auto", "path", "virtual"],
        "--s3-addressing-style",
        help="Where URLs have the bucket name; most stores other than AWS need path.",
    ),
    "s3_request_checksum_calculation": _flag(
        CHOICE_OF_CHECKSUMS,
        "--s3-request-checksum-calculation",
        help="when_required sends fewer checksums, for stores that reject them.",
    ),
    "s3_response_checksum_validation": _flag(
        CHOICE_OF_CHECKSUMS,
        "--s3-response-checksum-validation",
        help="when_required checks fewer checksums, for stores that send wrong ones.",
    ),
    "s3_sse": _flag(
        Literal["AES256", "aws:kms", "aws:kms:dsse"],
        "--s3-sse",
        help="Server-side encryption to request from the store.",
    ),
    "s3_sse_kms_key_id": _flag(
        str, "--s3-sse-kms-key-id", metavar="ID", help="KMS key for the server-side encryption."
    ),
    "s3_sse_customer_key_file": _flag(
        Path, "--s3-sse-customer-key-file", metavar="FILE", help="File with a 256-bit key for SSE-C, raw or base64."
    ),
    "s3_storage_class": _flag(
        str,
        "--s3-storage-class",
        metavar="CLASS",
        help="Storage class of segments and their indexes; it must allow immediate reads.",
    ),
    "s3_tag": _flag(
        list[str],
        "--s3-tag",
        metavar="KEY=VALUE",
        help="Tag for every object that is written; can be given several times.",
    ),
    "s3_expected_bucket_owner": _flag(
        str, "--s3-expected-bucket-owner", metavar="ACCOUNT", help="AWS account that must own the bucket."
    ),
    "s3_ca_bundle": _flag(Path, "--s3-ca-bundle", metavar="FILE", help="CA certificates to trust, in PEM."),
    "s3_max_attempts": _flag(
        int, "--s3-max-attempts", metavar="N", help="How often to try each request; the default is 6."
    ),
    "s3_read_timeout": _flag(
        str, "--s3-read-timeout", metavar="DURATION", help="How long to wait for a response; the default is 60s."
    ),
    "encryption_private_key": _flag(
        list[str],
        "--encryption-private-key",
        metavar="ID=FILE",
        help="Private RSA key (PEM) for segments that a plugin encrypted with key pair ID; can be given several times.",
    ),
}
SERVE: Final[Group] = {
    "listen": _flag(
        str, "--listen", metavar="HOST:PORT", help="Address of the API and the web page; the default is 127.0.0.1:8936."
    ),
    "auth": _flag(
        Literal["token", "none"],
        "--auth",
        help="token: callers need a token. none (the default): everybody on this machine may call; on loopback only.",
    ),
    "allow_sources": _flag(
        list[str],
        "--allow-source",
        metavar="DIR|URL",
        help="Requests may name sources below this place; log.dirs are always allowed.",
    ),
    "allow_destinations": _flag(
        list[str],
        "--allow-destination",
        metavar="DIR|URL",
        help="Requests may name destinations below this place; those of schedules are always allowed.",
    ),
    "allow_hosts": _flag(
        list[str],
        "--allow-host",
        metavar="NAME",
        help="Host name under which browsers may reach the service, besides its own address.",
    ),
    "trusted_proxies": _flag(
        list[str],
        "--trusted-proxy",
        metavar="ADDRESS",
        help="Believe what this proxy, or network of proxies, says of its callers; the default is to believe nobody.",
    ),
    "queue_size": _flag(int, "--queue-size", metavar="N", help="How many runs may wait; the default is 100."),
    "history_retention": _flag(
        str,
        "--history-retention",
        metavar="DURATION",
        help="How long to keep runs that have ended; the default is 90d.",
    ),
    "log_format": _flag(
        Literal["auto", "json", "console"],
        "--log-format",
        help="auto (the default) is readable on a terminal, and JSON elsewhere.",
    ),
    "stop_grace": _flag(
        str,
        "--stop-grace",
        metavar="DURATION",
        help="How long the current run may go on when the service is stopped; the default is 20s.",
    ),
}
ALL: Final[Group] = {**SOURCE, **CLUSTER, **REPLAY, **ENGINE, **READING, **MEMORY, **WRITE, **UPLOAD, **STORE, **SERVE}

Sources: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SOURCE]...", help="Log dirs, partition directories, or URLs; the default is log.dirs."),
]
