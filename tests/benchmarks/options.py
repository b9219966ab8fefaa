"""The options of every benchmark: where logs are made, how large they are, how often is measured, what takes part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.benchmarks.broker import Kafka
    from tests.benchmarks.datasets import Log, LogOptions, LogStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run of the benchmarks."""

    store: LogStore
    keep: bool
    """Whether logs stay for the next run."""
    rounds: int
    quick: bool
    """Small sizes, to see that everything runs; the figures mean nothing."""
    size_bytes: int | None
    """Instead of a benchmark's own choice."""
    batch_bytes: int | None
    """The only batch size to measure, where a benchmark has several."""
    kafkas: tuple[Kafka, ...]
    spark: bool

    def size(self, usual: int, quick: int) -> int:
        """Return how large a log is to be."""
        return self.size_bytes or (quick if self.quick else usual)

    def wants(self, batch_bytes: int) -> bool:
        """Whether batches of this size are to be measured."""
        return self.batch_bytes in (None, batch_bytes)

    def log(self, options: LogOptions) -> Log:
        """Return the log with these options."""
        return self.store.log(options)

    def done_with(self, log: Log) -> None:
        """Delete ``log`` unless it is to be kept."""
        if not self.keep:
            self.store.drop(log)

    @property
    def place(self) -> Path:
        """Any path on the disk that is read from."""
        return self.store.root
