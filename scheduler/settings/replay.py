"""Settings of planning and of the engines: what is replayed, how far back, and with what."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from resnap.replay import DEFAULT_CHECK_INTERVAL_MS, DEFAULT_EXPIRATION_MS, DEFAULT_TRANSACTION_MAX_TIMEOUT_MS
from resnap.replay.scan import HEADER_READ_BYTES, PRODUCERS_PER_TASK, SPLIT_BYTES
from resnap.replay.spark.settings import SparkSettings
from resnap.scheduler.clock import milliseconds
from resnap.scheduler.settings.declaration import (
    Count,
    Duration,
    Listed,
    Milliseconds,
    Setting,
    SettingGroup,
    Size,
    from_text,
)
from resnap.scheduler.settings.values import checked_as_of, checked_log_dir, split_list
from resnap.storage.kafka_release import checked_version
from resnap.storage.stores import RANGE_BYTES, RANGES_IN_FLIGHT
from resnap.storage.words import exact_duration


class SelectionSettings(SettingGroup):
    """Which boundaries of which partitions."""

    title = "What to work on"

    topics: Annotated[
        Listed, Setting("Only topics that match GLOB; can be given several times.", "GLOB", for_runs=True)
    ] = ()
    exclude_topics: Annotated[
        Listed, Setting("No topic that matches GLOB; can be given several times.", "GLOB", for_runs=True)
    ] = ()
    partitions: Annotated[
        Listed, Setting("Only this partition, named like its directory; can be given several times.", "TOPIC-N")
    ] = ()
    remote: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        Setting(
            "Remote storage of the partitions, read with the log dirs as one log; --key-prefix names the part of the"
            " layout aiven.",
            "URL",
            for_runs=True,
        ),
    ] = None
    boundaries: Annotated[
        Literal["missing", "all"],
        Setting("Work on boundaries without a usable snapshot, or on all boundaries.", for_runs=True),
    ] = "missing"
    high_watermark: Annotated[
        Annotated[int, Field(ge=0, le=2**63 - 1)] | None,
        Setting(
            "High watermark of the partition, if no checkpoint has it, or a lower one; needs exactly one --partition.",
            "OFFSET",
            for_runs=True,
        ),
    ] = None


class ClusterSettings(SettingGroup):
    """How a running cluster is reached."""

    title = "Running cluster"

    bootstrap_server: Annotated[
        str | None, Setting("Brokers of the running cluster, separated by commas.", "HOST:PORT")
    ] = None
    command_config: Annotated[
        Path | None, Setting("Client properties for the connection, in the format of Kafka's own tools.", "FILE")
    ] = None
    kafka_version: Annotated[
        Annotated[str, AfterValidator(checked_version)] | None,
        Setting(
            "Release of the brokers, such as 4.2.2, for Kafka's known faults; a cluster shows no patch release.",
            "VERSION",
        ),
    ] = None
    copy_overdue_after: Annotated[
        Duration, Setting("How long a closed segment may wait to be copied to remote storage before it is an error.")
    ] = timedelta(hours=1)

    @property
    def copy_overdue_after_ms(self) -> int:
        """``copy_overdue_after`` in milliseconds."""
        return self.copy_overdue_after // timedelta(milliseconds=1)


class BrokerSettings(SettingGroup):
    """What the brokers have set, and where to learn it from."""

    title = "Settings of the brokers"

    server_properties: Annotated[
        Path | None, Setting("The broker's server.properties; settings are read from it.", "FILE")
    ] = None
    metadata_log: Annotated[
        Path | None,
        Setting(
            "The directory __cluster_metadata-0 of the cluster, or the log dir that contains it.",
            "DIR",
            kafka=("metadata.log.dir",),
        ),
    ] = None
    producer_id_expiration_ms: Annotated[
        Milliseconds | None,
        Setting(
            "producer.id.expiration.ms of the brokers that will load the snapshots; 604800000 if it is not known.",
            is_kafkas=True,
            for_runs=True,
        ),
    ] = None
    producer_id_expiration_check_interval_ms: Annotated[
        Milliseconds,
        Setting("producer.id.expiration.check.interval.ms of the same brokers.", is_kafkas=True, for_runs=True),
    ] = DEFAULT_CHECK_INTERVAL_MS
    history_expiration_ms: Annotated[
        Milliseconds | None,
        Setting(
            "The expiration that applied when the log was written, if it was different; before 3.4 it was"
            " transactional.id.expiration.ms.",
            for_runs=True,
        ),
    ] = None
    transactional_id_expiration_ms: Annotated[
        Milliseconds | None,
        Setting(
            "transactional.id.expiration.ms of the brokers; before 3.4 producers expired by it.",
            flag="",
            is_kafkas=True,
        ),
    ] = None
    transaction_max_timeout_ms: Annotated[
        Milliseconds, Setting("transaction.max.timeout.ms of the brokers.", is_kafkas=True, for_runs=True)
    ] = DEFAULT_TRANSACTION_MAX_TIMEOUT_MS
    log_dirs: Annotated[
        tuple[Annotated[Path, BeforeValidator(checked_log_dir)], ...],
        from_text(split_list),
        Setting(
            "Log dirs of the broker, for commands that are given no LOG_DIR.",
            "DIR",
            flag="",
            kafka=("log.dirs", "log.dir"),
        ),
    ] = ()

    @property
    def expiration_ms(self) -> int:
        """After how long of silence a broker forgets a producer; where it is not known, longer rather than shorter."""
        if self.producer_id_expiration_ms is not None:
            return self.producer_id_expiration_ms
        return max(DEFAULT_EXPIRATION_MS, self.transactional_id_expiration_ms or 0)

    @property
    def expiration_origin(self) -> str:
        """Where the expiration comes from; ``assumed`` where nothing says it."""
        return "assumed" if self.producer_id_expiration_ms is None else self.origin("producer_id_expiration_ms")

    @property
    def expiration_note(self) -> str | None:
        """The warning where the expiration is assumed."""
        if self.producer_id_expiration_ms is not None:
            return None
        what = "not known" if self.server_properties is None else f"not set in {self.server_properties}"
        assumed = exact_duration(self.expiration_ms)
        return f"producer.id.expiration.ms is {what}: {assumed} is assumed; {self.expiration_remedy}"

    @property
    def expiration_remedy(self) -> str:
        """What makes the expiration known."""
        also = " or --server-properties" if self.server_properties is None else ""
        return f"give --producer-id-expiration-ms{also}"


class ReplaySettings(SettingGroup):
    """As of when, how far back, and how carefully."""

    title = "Replay"

    as_of: Annotated[
        Literal["now", "roll"] | datetime,
        BeforeValidator(checked_as_of),
        Setting(
            "When producers count as expired: now, at the roll of each segment, or at an ISO 8601 time.",
            "now|roll|TIME",
            for_runs=True,
        ),
    ] = "now"
    max_reach_back: Annotated[
        Duration | None,
        Setting(
            "How far before the window to read at most (7d, 36h, 15m), rather than to the log start.", for_runs=True
        ),
    ] = None
    full: Annotated[bool, Setting("Replay from the log start, and ignore the window.", for_runs=True)] = False
    verify_crc: Annotated[bool, Setting("Read whole batches and check their checksums.", for_runs=True)] = False

    @property
    def max_reach_back_ms(self) -> int | None:
        """``max_reach_back`` in milliseconds."""
        return None if self.max_reach_back is None else self.max_reach_back // timedelta(milliseconds=1)

    @property
    def as_of_ms(self) -> int | None:
        """The fixed time of ``as_of``, if it is one."""
        return milliseconds(self.as_of) if isinstance(self.as_of, datetime) else None


class EngineSettings(SettingGroup):
    """What replays."""

    title = "Engine"
    at_start = True

    engine: Annotated[Literal["spark", "local"], Setting("Replay on Spark, or in this process, without a JVM.")] = (
        "spark"
    )
    spark_master: Annotated[str, Setting("URL of the Spark cluster.", "URL")] = "local[*]"
    spark_driver_memory: Annotated[str, Setting("Heap size of the Spark driver.", "SIZE")] = "1g"
    spark_conf: Annotated[
        Mapping[str, str], Setting("An extra Spark property; can be given several times.", "KEY=VALUE")
    ] = Field(default_factory=dict)

    def spark(self) -> SparkSettings:
        """Return how Spark shall run.

        Raises:
            ConfigurationError: a value that Spark would not take.

        """
        return SparkSettings(master=self.spark_master, driver_memory=self.spark_driver_memory, conf=self.spark_conf)


class ReadingSettings(SettingGroup):
    """In which portions segments are read."""

    title = "Reading of segments"
    at_start = True

    threads: Annotated[
        Count | None,
        Setting("How many segments --engine local scans at the same time; one per processor unless given."),
    ] = None
    header_read_size: Annotated[
        Size, Setting("If batches are this large on average, read headers one by one and not in blocks.")
    ] = HEADER_READ_BYTES
    split_size: Annotated[Size, Setting("Split larger segments into parts of about this size.")] = SPLIT_BYTES
    range_size: Annotated[Size, Setting("How much of a segment one request to a store asks for.")] = RANGE_BYTES
    ranges_in_flight: Annotated[Count, Setting("How many such requests run at the same time for a segment.")] = (
        RANGES_IN_FLIGHT
    )
    producers_per_task: Annotated[Count, Setting("Combine a partition with more producers in several tasks.")] = (
        PRODUCERS_PER_TASK
    )


class RunCacheSettings(SettingGroup):
    """What runs keep for later ones."""

    title = "State kept between runs"

    state_dir: Annotated[
        Annotated[str, Field(min_length=1)] | None,
        Setting(
            "Directory where runs keep results for later runs, and the service its database; with none, nothing is "
            "kept. The default is $XDG_STATE_HOME/resnap or ~/.local/state/resnap.",
            "DIR",
            at_start=True,
        ),
    ] = None
    fresh: Annotated[bool, Setting("Ignore the results of earlier runs.", for_runs=True)] = False


class WritingSettings(SettingGroup):
    """Whether anything is written."""

    title = "Writing"

    dry_run: Annotated[
        bool, Setting("Print what would be done, with totals, and write nothing.", short="-n", for_runs=True)
    ] = False
