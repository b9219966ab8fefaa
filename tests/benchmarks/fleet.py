"""A large cluster answered for: 200 services of 4,000 replicas each, three of every partition, over real HTTP.

One process serves as all services; each has an address below a path of its own. What the cluster would say of its
replicas is made here. The service answers from what was collected, so that is measured apart.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import resource
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar, Final

from resnap.scheduler.cli import COLLECT_AFTER
from resnap.scheduler.clock import Clock
from resnap.scheduler.fleet.collecting import PAGE, Collector
from resnap.scheduler.fleet.status import FleetTopicRow
from resnap.scheduler.output.records import row_of
from resnap.scheduler.settings.service import FleetEntry
from resnap.storage.log.names import TopicPartition
from resnap.storage.words import instant
from resnap.tiering.cluster.replica_comparison import PartitionReplicas
from resnap.tiering.fleet import topic_answers
from tests.benchmarks.tables import Table, amount, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.benchmarks.options import Options

NAME = "fleet"
BROKERS, EACH, REPLICAS, PARTITIONS_A_TOPIC = 200, 4_000, 3, 100
KINDS: Final = {
    "ready": {
        "verdict": "ready",
        "unblockedBy": None,
        "reason": None,
        "detail": "a broker can tier every closed segment",
        "missing": 0,
    },
    "blocked": {"verdict": "blocked", "unblockedBy": "rebuild", "reason": "missing-snapshot", "missing": 9},
}


def run(options: Options) -> Iterator[Table]:
    """Collect, collect again, and answer: where all is ready, and where each replica is blocked in words of its own."""
    gc.set_threshold(*COLLECT_AFTER)  # as the command and the service have it
    brokers = BROKERS // 20 if options.quick else BROKERS
    table = Table(
        f"{brokers} services of {EACH:,} replicas each, {REPLICAS} of every partition",
        ["replicas are", "collected", "again, unchanged", "answer", "as rows", "memory at most"],
    )
    for kind in KINDS:
        with _services(brokers, kind) as entries:
            collector = Collector(now_ms=Clock().now_ms)
            took = [_timed(lambda: collector.collect(entries))[0] for _ in range(2)]  # noqa: B023
            collected = collector.collect(entries)
        assert [one.error for one in collected] == [None] * brokers
        places = [
            PartitionReplicas(TopicPartition(*_name(number)), held[0], 1, held, held)
            for number, held in enumerate(_held(brokers))
        ]
        answer_s, answers = _timed(lambda: list(topic_answers(collected, places)))  # noqa: B023
        rows_s, rows = _timed(lambda: [row_of(FleetTopicRow, answer) for answer in answers])  # noqa: B023
        assert {row["verdict"] for row in rows} == {kind}
        assert sum(int(str(row["replicas"])) for row in rows) == brokers * EACH - brokers * EACH % REPLICAS
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        table.add(kind, *map(seconds, (*took, answer_s, rows_s)), amount(peak))
    yield table


def _timed(work: Any) -> tuple[float, Any]:
    """Return what work gives, and how long this process was at it."""
    begun_s = time.process_time()
    done = work()
    return time.process_time() - begun_s, done


def _held(brokers: int) -> Iterator[tuple[int, ...]]:
    """Yield the brokers that hold each partition."""
    for number in range(brokers * EACH // REPLICAS):
        yield tuple((number * REPLICAS + step) % brokers for step in range(REPLICAS))


def _name(number: int) -> tuple[str, int]:
    return f"topic-{number // PARTITIONS_A_TOPIC}", number % PARTITIONS_A_TOPIC


@contextmanager
def _services(brokers: int, kind: str) -> Iterator[list[FleetEntry]]:
    """Serve what all brokers hold from another process; give where."""
    server, forking = ThreadingHTTPServer(("127.0.0.1", 0), _Handler), multiprocessing.get_context("fork")
    is_ready = forking.Event()

    def serve() -> None:
        held: dict[int, list[tuple[str, int]]] = {broker: [] for broker in range(brokers)}
        for number, replicas in enumerate(_held(brokers)):
            for broker in replicas:
                held[broker].append(_name(number))
        for broker, names in held.items():
            _Handler.pages |= {f"/b{broker}{path}": body for path, body in _pages(broker, names, kind)}
        is_ready.set()
        server.serve_forever()

    process = forking.Process(target=serve, daemon=True)
    process.start()
    server.socket.close()
    is_ready.wait()
    try:
        yield [
            FleetEntry.model_validate({"broker": one, "url": f"http://127.0.0.1:{server.server_address[1]}/b{one}"})
            for one in range(brokers)
        ]
    finally:
        process.kill()
        process.join()


def _pages(broker: int, names: list[tuple[str, int]], kind: str) -> Iterator[tuple[str, bytes]]:
    """Yield what one service answers, by path."""
    now = instant(Clock().now_ms())
    source = {"source": "/var/lib/kafka/data", "scanned": now, "tried": now, "error": None}
    yield "/v1/sources", json.dumps({"sources": [source]}).encode()
    for begin in range(0, len(names), PAGE):
        path = f"/v1/partitions?limit={PAGE}" + (f"&cursor={begin}" if begin else "")
        following = str(begin + PAGE) if begin + PAGE < len(names) else None
        rows = [_row(broker, name, kind) for name in names[begin : begin + PAGE]]
        yield path, json.dumps({"partitions": rows, "counts": {}, "nextCursor": following}).encode()


def _row(broker: int, name: tuple[str, int], kind: str) -> dict[str, Any]:
    topic, partition = name
    own = {"detail": f"the segment at {partition * 7919} of broker {broker} has no producer snapshot at {partition}"}
    place = {"source": "/var/lib/kafka/data", "topic": topic, "partition": partition}
    return {**place, "nextStep": "turn tiering on", "scanned": "", "row": None, **own, **KINDS[kind]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    pages: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        body, etag = self.pages[self.path], f'"{self.path}"'
        is_known = self.headers.get("If-None-Match") == etag
        self.send_response(304 if is_known else 200)
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(0 if is_known else len(body)))
        self.end_headers()
        self.wfile.write(b"" if is_known else body)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Say nothing."""
