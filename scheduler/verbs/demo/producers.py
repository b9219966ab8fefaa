"""The producers of the demonstration: plain, idempotent and transactional ones, taking turns.

A transaction is committed or aborted by its client, or aborted by the coordinator: when it has been open for too long,
and when a new instance of its client starts. The coordinator aborts at the next epoch, which fences the old instance.
A restarted idempotent producer is a new producer id.

Source: ``TransactionCoordinator.handleInitProducerId`` and ``endTransaction``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.storage.log.control_record import write_marker_batch
from resnap.storage.log.record import write_data_batch

if TYPE_CHECKING:
    from random import Random

    from resnap.storage.log.log_writer import LogWriter

CLIENTS: Final = 24
CLIENTS_AT_A_TIME: Final = 12
COORDINATOR_EPOCHS: Final = 3
MAX_RECORDS: Final = 20
BATCH_BYTES: Final = (1000, 2800)
OPEN_ROUNDS: Final = 120
"""The coordinator aborts what has been open for longer."""
PLAIN_SHARE: Final = 0.08
"""Share of the rounds that a producer without id takes."""
RESTART_SHARE: Final = 0.02
END_SHARE: Final = 0.4
"""Share of the turns of a transactional producer that end its transaction."""
ABORT_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is written into a partition: a batch a round, spread evenly over a time."""

    rounds: int
    first_producer_id: int
    transactional_share: float
    """Share of the clients that are transactional."""
    start_ms: int = 0
    duration_ms: int = 0


@dataclass(slots=True, kw_only=True)
class _Client:
    producer_id: int
    transactional: bool
    epoch: int = 0
    sequence: int = 0
    open_since: int | None = None
    """Round in which its transaction began."""


def write_traffic(writer: LogWriter, traffic: Traffic, random: Random) -> None:
    """Append ``traffic`` to ``writer``; in the end none of its transactions is open."""
    _Run(writer, traffic, random).write()


class _Run:
    def __init__(self, writer: LogWriter, traffic: Traffic, random: Random) -> None:
        self._writer = writer
        self._traffic = traffic
        self._random = random
        self._round = 0
        self._next_producer_id = traffic.first_producer_id
        self._clients: dict[int, _Client] = {}

    def write(self) -> None:
        for number in range(self._traffic.rounds):
            self._round = number
            for client in self._clients.values():
                if client.open_since is not None and client.open_since < self._round - OPEN_ROUNDS:
                    self._fence(client)
            if self._random.random() < PLAIN_SHARE:
                self._send(None)
            else:
                self._take_turn(self._client())
        for client in self._clients.values():
            if client.open_since is not None:
                self._end(client, commit=True)

    def _client(self) -> _Client:
        """Return whose turn it is: one of those that live in this round; their lives begin one after the other."""
        first = (CLIENTS - CLIENTS_AT_A_TIME) * self._round // self._traffic.rounds
        number = first + self._random.randrange(CLIENTS_AT_A_TIME)
        if number not in self._clients:
            share = self._traffic.transactional_share
            transactional = int((number + 1) * share) > int(number * share)
            self._clients[number] = _Client(producer_id=self._new_producer_id(), transactional=transactional)
        elif self._random.random() < RESTART_SHARE:
            self._restart(self._clients[number])
        return self._clients[number]

    def _take_turn(self, client: _Client) -> None:
        if client.transactional and client.open_since is None:
            client.open_since = self._round
        self._send(client)
        if client.transactional and self._random.random() < END_SHARE:
            self._end(client, commit=self._random.random() >= ABORT_SHARE)

    def _restart(self, client: _Client) -> None:
        if client.open_since is not None:
            self._fence(client)
        elif client.transactional:
            client.epoch, client.sequence = client.epoch + 1, 0
        else:
            client.producer_id, client.sequence = self._new_producer_id(), 0

    def _fence(self, client: _Client) -> None:
        """Abort at an epoch that no instance has; the next instance is given the epoch after that."""
        client.epoch += 1
        self._end(client, commit=False)
        client.epoch, client.sequence = client.epoch + 1, 0

    def _send(self, client: _Client | None) -> None:
        records = self._random.randint(1, MAX_RECORDS)
        size = self._random.randint(*BATCH_BYTES) // records
        offset, values = self._writer.next_offset, [self._random.randbytes(size) for _ in range(records)]
        if client is None:
            batch = write_data_batch(offset=offset, values=values, timestamps=self._now_ms)
        else:
            batch = write_data_batch(
                offset=offset, values=values, timestamps=self._now_ms, producer_id=client.producer_id,
                producer_epoch=client.epoch, base_sequence=client.sequence, transactional=client.transactional,
            )  # fmt: skip
            client.sequence += records
        self._writer.append_batch(batch)

    def _end(self, client: _Client, *, commit: bool) -> None:
        client.open_since = None
        coordinator_epoch = COORDINATOR_EPOCHS * self._round // self._traffic.rounds
        self._writer.append_batch(
            write_marker_batch(
                offset=self._writer.next_offset, producer_id=client.producer_id, producer_epoch=client.epoch,
                coordinator_epoch=coordinator_epoch, timestamp=self._now_ms, commit=commit,
            )
        )  # fmt: skip

    @property
    def _now_ms(self) -> int:
        return self._traffic.start_ms + self._traffic.duration_ms * self._round // self._traffic.rounds

    def _new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id - 1
