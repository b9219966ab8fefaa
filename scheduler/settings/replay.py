"""What is replayed, how far back, and by what: the settings of planning and of the engines."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from resnap.replay.scan.reading import HEADER_READ_BYTES, PRODUCERS_PER_TASK, SPLIT_BYTES
from resnap.replay.spark.settings import SparkSettings
from resnap.replay.window import DEFAULT_CHECK_INTERVAL_MS, DEFAULT_EXPIRATION_MS, DEFAULT_TRANSACTION_MAX_TIMEOUT_MS
from resnap.scheduler.clock import milliseconds
from resnap.scheduler.settings.kinds import Count, Listed, MaybeDuration, Milliseconds, Size, WithOrigins, from_text
from resnap.scheduler.settings.values import parse_as_of
from resnap.storage.stores.ranged_reader import RANGE_BYTES, RANGES_IN_FLIGHT


class ReplaySettings(WithOrigins):
    """Which boundaries, of which partitions, at which time; and what the brokers forget when."""

    topics: Listed = Field(default=(), description="Only topics that match GLOB; may be given several times.")
    partitions: Listed = Field(
        default=(), description="Only this partition, as its directory is called; may be given several times."
    )
    boundaries: Literal["missing", "all"] = Field(
        default="missing", description="Which boundaries to work on: those without a usable snapshot, or all."
    )
    as_of: Annotated[Literal["now", "roll"] | datetime, from_text(parse_as_of)] = Field(
        default="now", description="When expiry is judged: now, roll (each boundary's own time), or an ISO 8601 time."
    )
    producer_id_expiration_ms: Milliseconds | None = Field(
        default=None, description="producer.id.expiration.ms of the brokers that will load the snapshots."
    )
    producer_id_expiration_check_interval_ms: Milliseconds = Field(
        default=DEFAULT_CHECK_INTERVAL_MS, description="producer.id.expiration.check.interval.ms of the same brokers."
    )
    history_expiration_ms: Milliseconds | None = Field(
        default=None,
        description="The expiration under which the log was written, if it differs; before 3.4 that was"
        " transactional.id.expiration.ms.",
    )
    transactional_id_expiration_ms: Milliseconds | None = Field(
        default=None, description="transactional.id.expiration.ms of the brokers; before 3.4 producers expired by it."
    )
    transaction_max_timeout_ms: Milliseconds = Field(
        default=DEFAULT_TRANSACTION_MAX_TIMEOUT_MS, description="transaction.max.timeout.ms of the brokers."
    )
    max_reach_back: MaybeDuration = Field(
        default=None, description="How far before the window reading may go on (7d, 36h, 15m); else to the log start."
    )
    high_watermark: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="High watermark of the one partition given, where no checkpoint tells it."
    )
    bootstrap_server: str | None = Field(
        default=None, description="Brokers of the running cluster, HOST:PORT with commas between."
    )
    command_config: Path | None = Field(
        default=None, description="Properties for connecting to the cluster, as Kafka's own tools take them."
    )
    full: bool = Field(default=False, description="Replay from the log start, whatever the window.")

    @property
    def expiration_ms(self) -> int:
        """After how long of silence a broker forgets a producer; where it is not known, longer rather than shorter."""
        if self.producer_id_expiration_ms is not None:
            return self.producer_id_expiration_ms
        return max(DEFAULT_EXPIRATION_MS, self.transactional_id_expiration_ms or 0)

    @property
    def expiration_origin(self) -> str:
        """Where the expiration comes from; ``assumed`` where nothing tells it."""
        return "assumed" if self.producer_id_expiration_ms is None else self.origin("producer_id_expiration_ms")

    @property
    def expiration_note(self) -> str | None:
        """What to say aloud where the expiration is assumed."""
        if self.producer_id_expiration_ms is not None:
            return None
        return (
            f"producer.id.expiration.ms is not known: {self.expiration_ms} ms is assumed, since too long costs reading"
            " and too short costs correctness; set it with --producer-id-expiration-ms, --metadata-log or"
            " --server-properties"
        )

    @property
    def max_reach_back_ms(self) -> int | None:
        """``max_reach_back`` in milliseconds."""
        return None if self.max_reach_back is None else self.max_reach_back // timedelta(milliseconds=1)

    @property
    def as_of_ms(self) -> int | None:
        """The fixed time of ``as_of``, if it is one."""
        return milliseconds(self.as_of) if isinstance(self.as_of, datetime) else None


class EngineSettings(BaseModel):
    """What replays, and in which portions."""

    engine: Literal["spark", "local"] = Field(
        default="spark", description="What replays: Spark, or this process alone, without a JVM."
    )
    spark_master: str = Field(default="local[*]", description="URL of the Spark master.")
    spark_driver_memory: str = Field(default="1g", description="Heap of the Spark driver.")
    spark_conf: Mapping[str, str] = Field(
        default_factory=dict, description="A further Spark property; may be given several times."
    )
    threads: Count | None = Field(default=None, description="Segments that --engine local scans at once.")
    header_read_size: Size = Field(
        default=HEADER_READ_BYTES, description="Mean batch size from which headers are read one by one."
    )
    split_size: Size = Field(default=SPLIT_BYTES, description="Larger segments are cut into parts of about this size.")
    range_size: Size = Field(default=RANGE_BYTES, description="Bytes asked for at once of a segment in a store.")
    ranges_in_flight: Count = Field(
        default=RANGES_IN_FLIGHT, description="Ranges of a segment in a store that are on their way at a time."
    )
    producers_per_task: Count = Field(
        default=PRODUCERS_PER_TASK, description="A partition with more producers is combined by several tasks."
    )
    verify_crc: bool = Field(default=False, description="Read whole batches and compare their checksums.")

    def spark(self) -> SparkSettings:
        """Return how Spark shall run.

        Raises:
            ConfigurationError: a value that Spark would not take.

        """
        return SparkSettings(master=self.spark_master, driver_memory=self.spark_driver_memory, conf=self.spark_conf)
