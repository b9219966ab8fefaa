"""Our coordinator beside a real broker's: the same requests, by our own codecs, and the same answers."""

from __future__ import annotations

import random
import struct
import time
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.names import TopicPartition
from resnap.storage.messages.wire import write_unsigned_varint
from resnap.tiering.controller.producer_ids.allocation import (
    INIT_PRODUCER_ID,
    InitProducerIdRequest,
    InitProducerIdResponse,
    error_for_version,
    read_body,
    write_body,
)
from resnap.tiering.controller.transactions.coordinator import PendingAppend, TransactionCoordinator
from tests.kafka.brokers import Broker
from tests.kafka.releases import HERE, PATIENCE_S
from tests.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release

pytestmark = pytest.mark.kafka

VERSIONS: Final = {"3.9.1": 5, "4.1.1": 5, "4.4.0": 5}
"""Newest version of the request."""
ADD_PARTITIONS, END_TXN, FIND_COORDINATOR = 24, 26, 10
TOPIC: Final = "topic"
TIMEOUT_MS: Final = 600_000
PASSING: Final = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
"""What a broker says for a while after its start."""


def short(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


class Theirs:
    """The coordinator of a real broker, with the requests of transactions before v2."""

    def __init__(self, wire: Wire, newest: int) -> None:
        self._wire, self._newest = wire, newest

    def find(self, name: str) -> None:
        """Let the broker make ``__transaction_state``."""
        self._wire.ask(FIND_COORDINATOR, 1, short(name) + b"\x01", flexible=False)

    def init(self, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        asked = min(version, self._newest)
        body = write_body(request, asked)
        # A response of ApiVersions' age has no tags in its header, one of a flexible version has.
        return read_body(
            InitProducerIdResponse, self._wire.ask(INIT_PRODUCER_ID, asked, body, flexible=asked >= 2), asked
        )

    def begin(self, name: str, producer_id: int, epoch: int) -> KafkaError:
        body = short(name) + struct.pack(">qh", producer_id, epoch)
        body += struct.pack(">i", 1) + short(TOPIC) + struct.pack(">ii", 1, 0)
        answer = self._wire.ask(ADD_PARTITIONS, 2, body, flexible=False)
        return KafkaError(struct.unpack(">h", answer[-2:])[0])

    def end_v2(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> InitProducerIdResponse:
        """End a transaction as a client of transactions v2, which gets the id and epoch of the next one."""
        body = write_unsigned_varint(len(name) + 1) + name.encode()
        body += struct.pack(">qhb", producer_id, epoch, commit) + b"\0"
        answer = self._wire.ask(END_TXN, 5, body, flexible=True)
        _, error, next_id, next_epoch = struct.unpack_from(">ihqh", answer)
        return InitProducerIdResponse(error_code=KafkaError(error), producer_id=next_id, producer_epoch=next_epoch)

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> KafkaError:
        body = short(name) + struct.pack(">qhb", producer_id, epoch, commit)
        answer = self._wire.ask(END_TXN, 2, body, flexible=False)
        return KafkaError(struct.unpack(">ih", answer)[1])


class Ours:
    """Our coordinator, whose log takes everything at once; markers are written when the next request comes."""

    def __init__(self, *, v2: bool) -> None:
        self._ids = count()
        self.coordinator = TransactionCoordinator(lambda: next(self._ids), transactions_v2=v2)

    def settle(self, step: InitProducerIdResponse | PendingAppend) -> InitProducerIdResponse:
        return self.coordinator.appended(step) if isinstance(step, PendingAppend) else step

    def write_markers(self, name: str) -> None:
        metadata = self.coordinator.transactions.get(name)
        if metadata and metadata.state.name.startswith("PREPARE"):
            self.settle(self.coordinator.markers_written(name, 0))

    def init(self, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        answer = self.settle(self.coordinator.init_producer_id(request, 0))
        return InitProducerIdResponse(
            error_code=error_for_version(answer.error_code, version),
            producer_id=answer.producer_id, producer_epoch=answer.producer_epoch,
        )  # fmt: skip

    def begin(self, name: str, producer_id: int, epoch: int) -> KafkaError:
        partitions = frozenset({TopicPartition(TOPIC, 0)})
        return self.settle(self.coordinator.add_partitions(name, producer_id, epoch, partitions, 0)).error_code

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> KafkaError:
        return self.settle(self.coordinator.end_transaction(name, producer_id, epoch, 0, commit=commit)).error_code

    def end_v2(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> InitProducerIdResponse:
        ended = self.coordinator.end_transaction(name, producer_id, epoch, 0, commit=commit, client_v2=True)
        return self.settle(ended)


class BothSides:
    """Sends each request to both; producer ids of the broker are known here by ours."""

    def __init__(self, theirs: Theirs, ours: Ours) -> None:
        self._theirs, self._ours = theirs, ours
        self._their_ids: dict[int, int] = {-1: -1}
        self.steps = 0

    def init(self, name: str | None, producer_id: int, epoch: int, version: int, timeout_ms: int = TIMEOUT_MS) -> None:
        expected = (producer_id, epoch) if version >= 3 else (-1, -1)
        answers = []
        for side, known in ((self._theirs, self._their_ids.get(expected[0], 10**12)), (self._ours, expected[0])):
            request = InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=known, producer_epoch=expected[1]
            )
            answers.append(self._settled(side, request, version))
        theirs, ours = answers
        told = (name, expected, version)
        assert theirs.error_code is ours.error_code, told
        assert theirs.producer_epoch == ours.producer_epoch, told
        if ours.producer_id >= 0:
            assert self._their_ids.setdefault(ours.producer_id, theirs.producer_id) == theirs.producer_id, told
        self.steps += 1

    def begin(self, name: str, producer_id: int, epoch: int) -> None:
        asked = (name, producer_id, epoch)
        theirs = self._until_quiet(lambda: self._theirs.begin(name, self._their_ids.get(producer_id, 10**12), epoch))
        assert theirs is self._ours.begin(*asked), asked
        self.steps += 1

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        asked = (name, producer_id, epoch)
        ids = self._their_ids
        theirs = self._until_quiet(
            lambda: self._theirs.end(name, ids.get(producer_id, 10**12), epoch, commit=commit)
        )  # fmt: skip
        ours = self._ours.end(*asked, commit=commit)
        assert theirs is ours, (*asked, commit)
        self._ours.write_markers(name)
        self.steps += 1

    def end_v2(self, name: str, producer_id: int, epoch: int, *, commit: bool) -> None:
        asked = (name, producer_id, epoch)
        known = self._their_ids.get(producer_id, 10**12)
        last: list[InitProducerIdResponse] = []

        def ask() -> KafkaError:
            last[:] = [self._theirs.end_v2(name, known, epoch, commit=commit)]
            return last[0].error_code

        theirs, ours = self._until_quiet(ask), self._ours.end_v2(*asked, commit=commit)
        assert theirs is ours.error_code, (*asked, commit)
        assert last[0].producer_epoch == ours.producer_epoch, (*asked, commit)
        if ours.producer_id >= 0:
            assert self._their_ids.setdefault(ours.producer_id, last[0].producer_id) == last[0].producer_id
        self._ours.write_markers(name)
        self.steps += 1

    def _settled(self, side: Theirs | Ours, request: InitProducerIdRequest, version: int) -> InitProducerIdResponse:
        """Ask until the answer is not that it is to be trying again: fences and ends take the broker a while."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            answer = side.init(request, version)
            if answer.error_code not in {*PASSING, KafkaError.CONCURRENT_TRANSACTIONS}:
                return answer
            if side is self._ours and request.transactional_id:
                self._ours.write_markers(request.transactional_id)
            else:
                time.sleep(0.02)
        raise AssertionError("the coordinator does not settle")

    def _until_quiet(self, ask: Callable[[], KafkaError]) -> KafkaError:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            error = ask()
            if error not in {*PASSING, KafkaError.CONCURRENT_TRANSACTIONS}:
                return error
            time.sleep(0.02)
        raise AssertionError("the coordinator does not settle")


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.1.1", marks=pytest.mark.heavy), "4.4.0"])
def test_random_requests_have_the_same_answers(
    version: str, release: Callable[[str], Release], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chance = random.Random(request.config.getoption("--seed"))
    broker = Broker(release(version), [tmp_path / "data"])
    with broker.running(), Wire(broker.port) as wire:
        broker.drive("create", TOPIC, 1)
        theirs, ours = Theirs(wire, VERSIONS[version]), Ours(v2=version.startswith("4"))
        both = BothSides(theirs, ours)
        names = ("a", "b")
        for name in names:
            theirs.find(name)
        both.init(None, -1, -1, 1)
        both.init(None, 5, -1, 4)
        both.init("", -1, -1, 4)
        both.init("a", -1, -1, 4, timeout_ms=0)
        both.init("a", -1, -1, 4, timeout_ms=900_001)
        for _ in range(250):
            name = chance.choice(names)
            known = ours.coordinator.transactions.get(name)
            producer_id = known.producer_id if known and chance.random() < 0.9 else chance.choice((-1, 0, 999))
            epoch = known.producer_epoch + chance.choice((0, 0, 0, 0, -1, 1, -2)) if known else 0
            epoch = max(epoch, 0) if producer_id >= 0 else -1
            match chance.choice(("init", "init", "anew", "begin", "begin", "end", "end")):
                case "init":
                    both.init(name, producer_id, epoch, chance.choice((0, 1, 2, 3, 4, 5)))
                case "anew":
                    both.init(name, -1, -1, chance.choice((0, 1, 2, 3, 4, 5)))
                case "begin":
                    both.begin(name, producer_id, epoch)
                case _ if version.startswith("4") and chance.random() < 0.6:
                    both.end_v2(name, producer_id, epoch, commit=chance.random() < 0.5)
                case _:
                    both.end(name, producer_id, epoch, commit=chance.random() < 0.5)
        assert both.steps == 255


@pytest.mark.slow
def test_a_request_with_the_producer_id_after_the_last_epoch_has_to_be_repeated(
    release: Callable[[str], Release], tmp_path: Path
) -> None:
    last = 32_766
    broker = Broker(release("4.4.0"), [tmp_path / "data"])
    with broker.running(), Wire(broker.port) as wire:
        broker.drive("create", TOPIC, 1)
        theirs, ours = Theirs(wire, VERSIONS["4.4.0"]), Ours(v2=True)
        both = BothSides(theirs, ours)
        theirs.find("a")
        both.init("a", -1, -1, 4)
        for _ in range(last):  # no transaction, so that each takes half a millisecond
            for side in (theirs, ours):
                side.init(InitProducerIdRequest(transactional_id="a", transaction_timeout_ms=TIMEOUT_MS), 4)
        both.begin("a", 0, last)
        ended = [side.end_v2("a", 0, last, commit=True) for side in (theirs, ours)]
        assert [(one.error_code, one.producer_id > 0, one.producer_epoch) for one in ended] == [(0, True, 0)] * 2
        assert both._until_quiet(lambda: theirs.begin("a", ended[0].producer_id, 0)) is KafkaError.NONE
        assert ours.begin("a", ended[1].producer_id, 0) is KafkaError.CONCURRENT_TRANSACTIONS
        ours.write_markers("a")
        assert ours.begin("a", ended[1].producer_id, 0) is KafkaError.NONE


def test_error_codes_are_kafkas_and_so_is_what_may_be_sent_again(release: Callable[[str], Release]) -> None:
    printed = release("4.4.0").run(HERE / "ErrorCodes.java")
    theirs = {int(code): (name, retriable == "true") for code, name, retriable in map(str.split, printed.splitlines())}
    assert {error.value: (error.name, error.is_retriable) for error in KafkaError} == {
        error.value: theirs[error.value] for error in KafkaError
    }
