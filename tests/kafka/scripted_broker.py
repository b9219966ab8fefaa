"""A broker of one partition that answers real clients as a script says, to see how they handle each error.

It speaks versions that clients from 2.5 to 4.1 have in common. A script is selected by the client's id, so that many
clients are served at once; all that they ask is kept.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from resnap.storage.log.record_batch import read_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PRODUCE, METADATA, FIND_COORDINATOR, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 10, 18, 22
ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 24, 25, 26, 28
VERSIONS: Final = {
    PRODUCE: 8, METADATA: 7, FIND_COORDINATOR: 1, API_VERSIONS: 3, ADD_PARTITIONS: 0, ADD_OFFSETS: 0, END_TXN: 0,
    TXN_OFFSET_COMMIT: 2,
}  # fmt: skip
UNSUPPORTED_VERSION: Final = 35
TOPIC: Final = "t"
PRODUCER_ID: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRequest:
    """One request; of a batch or ``InitProducerId`` also whom it names."""

    key: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    records: int = 0


@dataclass(slots=True, kw_only=True)
class Script:
    """What one client gets, and what it has asked."""

    errors: dict[int, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    """By request, in this order; then no error."""
    init_producer_id: int = 3
    """The newest version; from 3 on the coordinator gives the next epoch."""
    log_start_offset: int = -1
    transactions_v2: bool = False
    """Whether the cluster has ``transaction.version`` 2."""
    requests: list[BrokerRequest] = field(default_factory=list)
    written: int = 0

    def error(self, key: int) -> int:
        return self.errors[key].popleft() if self.errors[key] else 0

    def count(self, key: int) -> int:
        return sum(one.key == key for one in self.requests)


class ScriptedBroker:
    """Scripts by client id; a client without one gets no errors."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = defaultdict(Script)
        self.port = 0

    def answer(self, key: int, version: int, client: str, body: bytes) -> bytes:
        """Return the answer to a request, with what its header has beside the correlation id."""
        script = self.scripts[client]
        handlers: dict[int, Callable[[Script, int, bytes], bytes]] = {
            PRODUCE: _produce, METADATA: self._metadata, FIND_COORDINATOR: self._coordinator,
            API_VERSIONS: _api_versions, INIT_PRODUCER_ID: _init_producer_id, ADD_PARTITIONS: _add_partitions,
            ADD_OFFSETS: _plain(ADD_OFFSETS), END_TXN: _plain(END_TXN), TXN_OFFSET_COMMIT: _commit_offsets,
        }  # fmt: skip
        return handlers[key](script, version, body)

    def _metadata(self, _script: Script, _version: int, _body: bytes) -> bytes:
        broker = struct.pack(">ii", 1, 0) + _string("127.0.0.1") + struct.pack(">ih", self.port, -1)
        partition = struct.pack(">hiii", 0, 0, 0, 0) + struct.pack(">ii", 1, 0) * 2 + struct.pack(">i", 0)
        topic = struct.pack(">ih", 1, 0) + _string(TOPIC) + struct.pack(">?i", False, 1) + partition
        return struct.pack(">i", 0) + broker + _string("cluster") + struct.pack(">i", 0) + topic

    def _coordinator(self, script: Script, _version: int, _body: bytes) -> bytes:
        script.requests.append(BrokerRequest(key=FIND_COORDINATOR))
        return struct.pack(">ihhi", 0, 0, -1, 0) + _string("127.0.0.1") + struct.pack(">i", self.port)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _api_versions(script: Script, version: int, _body: bytes) -> bytes:
    newest = {**VERSIONS, INIT_PRODUCER_ID: script.init_producer_id}
    if version > VERSIONS[API_VERSIONS]:
        each = b"".join(struct.pack(">hhh", key, 0, top) for key, top in newest.items())
        return struct.pack(">hi", UNSUPPORTED_VERSION, len(newest)) + each
    each = b"".join(struct.pack(">hhhb", key, 0, top, 0) for key, top in newest.items())
    return struct.pack(">hb", 0, len(newest) + 1) + each + struct.pack(">i", 0) + _features(script)


def _features(script: Script) -> bytes:
    """Return the tagged fields of ``ApiVersions``: 1, of what epoch the features are, and 2, the features in force."""
    if not script.transactions_v2:
        return b"\0"
    name = b"transaction.version"
    finalized = bytes([2, len(name) + 1]) + name + struct.pack(">hhb", 2, 2, 0)
    return bytes([2, 1, 8]) + struct.pack(">q", 1) + bytes([2, len(finalized)]) + finalized


def _init_producer_id(script: Script, version: int, body: bytes) -> bytes:
    is_flexible = version >= 2
    if version >= 3:
        producer_id, epoch = struct.unpack_from(">qh", body, len(body) - 11)
    else:
        producer_id, epoch = -1, -1
    script.requests.append(BrokerRequest(key=INIT_PRODUCER_ID, producer_id=producer_id, epoch=epoch))
    error = script.error(INIT_PRODUCER_ID)
    given = (-1, -1) if error else (PRODUCER_ID, epoch + 1)
    answer = struct.pack(">ihqh", 0, error, *given)
    return b"\0" + answer + b"\0" if is_flexible else answer


def _produce(script: Script, _version: int, body: bytes) -> bytes:
    # transactional id, acks, time-out; one topic, one partition: its batch begins where its length says
    header = read_header(body[body.index(_string(TOPIC)) + len(_string(TOPIC)) + 12 :])
    script.requests.append(
        BrokerRequest(key=PRODUCE, producer_id=header.producer_id, epoch=header.producer_epoch,
                      sequence=header.base_sequence, records=header.records_count)
    )  # fmt: skip
    error = script.error(PRODUCE)
    base_offset = -1 if error else script.written
    script.written += 0 if error else header.records_count
    log_start_offset = script.log_start_offset if error else 0
    partition = struct.pack(">ihqqqih", 0, error, base_offset, -1, log_start_offset, 0, -1)
    return struct.pack(">i", 1) + _string(TOPIC) + struct.pack(">i", 1) + partition + struct.pack(">i", 0)


def _add_partitions(script: Script, _version: int, _body: bytes) -> bytes:
    script.requests.append(BrokerRequest(key=ADD_PARTITIONS))
    return struct.pack(">ii", 0, 1) + _string(TOPIC) + struct.pack(">iih", 1, 0, script.error(ADD_PARTITIONS))


def _commit_offsets(script: Script, _version: int, _body: bytes) -> bytes:
    script.requests.append(BrokerRequest(key=TXN_OFFSET_COMMIT))
    return struct.pack(">ii", 0, 1) + _string(TOPIC) + struct.pack(">iih", 1, 0, script.error(TXN_OFFSET_COMMIT))


def _plain(key: int) -> Callable[[Script, int, bytes], bytes]:
    def answer(script: Script, _version: int, _body: bytes) -> bytes:
        script.requests.append(BrokerRequest(key=key))
        return struct.pack(">ih", 0, script.error(key))

    return answer


class _Connection(socketserver.StreamRequestHandler):
    broker: ScriptedBroker

    def handle(self) -> None:
        while size := self.rfile.read(4):
            request = self.rfile.read(struct.unpack(">i", size)[0])
            key, version, correlation, length = struct.unpack_from(">hhih", request)
            client = request[10 : 10 + length].decode()
            answer = struct.pack(">i", correlation) + self.broker.answer(key, version, client, request[10 + length :])
            self.wfile.write(struct.pack(">i", len(answer)) + answer)


@contextmanager
def scripted_broker() -> Iterator[ScriptedBroker]:
    """Serve on a free port of this machine."""
    broker = ScriptedBroker()
    handler = type("Connection", (_Connection,), {"broker": broker})

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), handler) as server:
        broker.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield broker
        finally:
            server.shutdown()
