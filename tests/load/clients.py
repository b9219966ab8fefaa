"""The clients of a service, as a process of their own: those that follow a run's events, and those that poll.

``python -m tests.load.clients`` reads what to do as JSON from standard input (``Orders``), asks for one replay after
the other, and writes what it saw as JSON to standard output (``Seen``), with its own share of the processor.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.load.http_client import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

POLL_S: Final = 2.0
TICK_S: Final = 0.05
READS: Final = (
    "/", "/metrics", "/v1/runs", "/v1/runs/{run}", "/livez", "/partitions/{topic}/{partition}",
    "/v1/partitions", "/runs/{run}", "/v1/partitions/{topic}/{partition}/boundaries", "/readyz", "/topics",
    "/v1/runs/{run}/partitions", "/v1/partitions/{topic}/{partition}", "/runs",
)  # fmt: skip
"""What a page, a script and a monitor read; each poller goes round, and begins elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What to do.

    Attributes:
        replays: bodies of ``POST /v1/replays``, asked for one after the other.
        streams: how many follow the events of each run.
        pollers: how many read something every ``POLL_S``.

    """

    host: str
    port: int
    replays: list[dict[str, Any]]
    topic: str
    partitions: int
    streams: int
    pollers: int


@dataclass(slots=True, kw_only=True)
class Followed:
    """What one stream sent: numbers and kinds of its events, in the order in which they came."""

    run: str
    caught_up: int = 0
    """The last event of the first piece: up to there it sent what is kept, from there on what happened."""
    ids: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    last_state: str = ""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What came of it.

    Attributes:
        runs: as the service reported them when they were over.
        reads: seconds that each read took, by route.
        cpu_s: what the clients themselves took of a processor.
        late: seconds that they woke up later than they meant to, every ``TICK_S``: what they owe to themselves, or to
            the machine, of the time that reads took.

    """

    runs: list[dict[str, Any]] = field(default_factory=list)
    reads: dict[str, list[float]] = field(default_factory=dict)
    streams: list[Followed] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    cpu_s: float = 0
    late: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Seen:
        """Return what was written as JSON."""
        return cls(**{**said, "streams": [Followed(**one) for one in said["streams"]]})


class _Clients:
    def __init__(self, orders: Orders) -> None:
        self._orders, self._seen = orders, Seen()
        self._run = ""
        """The one that pollers request."""

    async def work(self) -> Seen:
        """Ask for every replay, with all clients watching, until the last one is over."""
        polling = [asyncio.create_task(self._tick())]
        async with self._connection() as connection:
            for body in self._orders.replays:
                answer = await connection.ask("POST", "/v1/replays", body=json.dumps(body).encode())
                if answer.status != 202:
                    raise SystemExit(f"no replay was begun: {answer}")
                self._run = str(json.loads(answer.body)["id"])
                if len(polling) == 1:
                    polling += [asyncio.create_task(self._poll(one)) for one in range(self._orders.pollers)]
                await asyncio.gather(*(self._follow(self._run, number) for number in range(self._orders.streams)))
                self._seen.runs.append(await self._over(connection, answer.head["location"]))
        for task in polling:
            task.cancel()
        await asyncio.gather(*polling, return_exceptions=True)
        self._seen.cpu_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        return self._seen

    async def _over(self, connection: Connection, location: str) -> dict[str, Any]:
        while True:
            run: dict[str, Any] = json.loads((await connection.ask("GET", location)).body)
            if run["finished"]:
                return run
            await asyncio.sleep(1)

    async def _follow(self, run: str, number: int) -> None:
        """Follow the events of ``run`` to their end."""
        await asyncio.sleep(number / self._orders.streams)  # not all within the same millisecond
        followed = Followed(run=run)
        self._seen.streams.append(followed)
        try:
            async with self._connection() as connection:
                answer = await connection.ask("GET", f"/v1/runs/{run}/events", accept="text/event-stream")
                if answer.status != 200:
                    self._seen.errors.append(f"events of {run}: {answer}")
                    return
                async for messages in _pieces(connection):
                    _hear(followed, messages)
        except (OSError, EOFError, ValueError) as error:
            self._seen.errors.append(f"events of {run}: {error!r}")

    async def _tick(self) -> None:
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            self._seen.late.append(time.monotonic() - due_s)

    async def _poll(self, number: int) -> None:
        """Read one thing after the other, one every ``POLL_S``."""
        await asyncio.sleep(POLL_S * number / self._orders.pollers)
        async with self._connection() as connection:
            due_s, turn = time.monotonic(), number
            while True:
                await self._read(connection, READS[turn % len(READS)], number % self._orders.partitions)
                due_s, turn = max(due_s + POLL_S, time.monotonic()), turn + 1
                await asyncio.sleep(due_s - time.monotonic())

    async def _read(self, connection: Connection, route: str, partition: int) -> None:
        path = route.format(run=self._run, topic=self._orders.topic, partition=partition)
        began_s = time.perf_counter()
        try:
            answer = await connection.ask("GET", path, accept="text/html" if route in {"/", "/runs"} else "*/*")
        except (OSError, EOFError) as error:
            self._seen.errors.append(f"{path}: {error!r}")
            return
        self._seen.reads.setdefault(route, []).append(time.perf_counter() - began_s)
        if answer.status != 200:
            self._seen.errors.append(f"{path}: {answer.status} {answer.body[:200]!r}")

    def _connection(self) -> Connection:
        return Connection(self._orders.host, self._orders.port)


async def _pieces(connection: Connection) -> AsyncIterator[list[dict[str, str]]]:
    """Yield the messages of a stream as names and values, those together that came together."""
    async for chunk in connection.chunks():
        if not chunk.endswith(b"\n\n"):
            raise ValueError(f"a piece ends within an event: {chunk[-100:]!r}")
        yield [_fields(message) for message in chunk.decode().removesuffix("\n\n").split("\n\n")]


def _fields(message: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(": ") for line in message.splitlines())}


def _hear(followed: Followed, messages: list[dict[str, str]]) -> None:
    for event in messages:
        if "id" in event:
            followed.ids.append(int(event["id"]))
            followed.kinds.append(event["event"])
            if event["event"] == "state":
                followed.last_state = json.loads(event["data"])["state"]
    if followed.ids and not followed.caught_up:
        followed.caught_up = followed.ids[-1]


def main() -> None:
    """Do what standard input says."""
    orders = Orders(**json.load(sys.stdin))
    with suppress(KeyboardInterrupt):
        json.dump(asdict(asyncio.run(_Clients(orders).work())), sys.stdout)


if __name__ == "__main__":
    main()
