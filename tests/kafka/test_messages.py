"""Kafka's own generated messages judge ours: they read the same from the same bytes, and write the same bytes."""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resnap.storage.kafka_errors import KafkaError
from resnap.storage.log.indexes import AbortedTxn, write_transaction_index
from resnap.storage.log.producer_snapshot import ProducerEntry, snapshot_bytes
from resnap.storage.messages.schema import message_json, write_message
from resnap.tiering.controller.metadata.batches import CONTROL_TYPES
from resnap.tiering.controller.metadata.records import TYPES_BY_KEY
from resnap.tiering.controller.producer_ids.allocation import (
    INIT_PRODUCER_ID_VERSIONS,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    write_body,
)
from resnap.tiering.remote_log.records import TYPES as REMOTE_TYPES
from tests.kafka.releases import HERE, PATIENCE_S
from tests.tiering.controller.metadata.record_strategies import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kafka.releases import Release

pytestmark = pytest.mark.kafka

METADATA: Final = "org.apache.kafka.common.metadata"
COMMON: Final = "org.apache.kafka.common.message"
REMOTE: Final = "org.apache.kafka.server.log.remote.metadata.storage.generated"
SCHEMAS: Final[dict[str, tuple[type, int]]] = {
    **{f"{METADATA}.{one.message.__name__}": (one.message, one.newest_version) for one in TYPES_BY_KEY.values()},
    **{f"{COMMON}.{message.__name__}": (message, newest) for message, newest in CONTROL_TYPES.values()},
    **{f"{REMOTE}.{message.__name__}": (message, 0) for message in REMOTE_TYPES.values()},
}
"""Messages that are declared by a schema, with the newest version known here."""
SINCE_4_0: Final = ("txnIndexEmpty",)
"""A tagged field, which releases before 4.0 carry along unread."""
FEW: Final = settings(
    max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
FIRST_WITH_ID: Final = 3
"""Version of ``InitProducerId`` that says which id a producer has."""
INT16, INT32, INT64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))


class Judge:
    """Kafka's messages of one release in a process beside us."""

    def __init__(self, version: str, process: subprocess.Popen[str]) -> None:
        self.version, self._process = version, process

    def __call__(self, *words: object) -> str:
        """Send a line and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"it has ended on {words}"
        return answer.rstrip("\n")

    def versions(self, name: str) -> range:
        """Return the versions of a message, none where the release has no such class."""
        answer = self("versions", name)
        return range(0) if answer == "none" else range(int(answer.split()[0]), int(answer.split()[1]) + 1)

    def shown(self, name: str, version: int, data: bytes) -> Any:
        """Return what Kafka's class says of ``data``."""
        return json.loads(self(name, version, data.hex()))


@contextmanager
def judging(release: Release) -> Iterator[Judge]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = release.program(HERE / "Messages.java")
    with subprocess.Popen(command, text=True, encoding="utf-8", **pipes) as process:
        try:
            yield Judge(release.version, process)
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait(PATIENCE_S)


@pytest.fixture(scope="module", params=["3.9.1", pytest.param("4.1.1", marks=pytest.mark.heavy), "4.4.0"])
def judge(request: pytest.FixtureRequest, release: Callable[[str], Release]) -> Iterator[Judge]:
    with judging(release(request.param)) as found:
        yield found


def test_every_message_of_a_schema_is_the_same_to_kafkas_own_class(judge: Judge) -> None:
    for name, (message, newest) in SCHEMAS.items():
        for version in range(newest + 1):
            if version in judge.versions(name):
                check_schema(judge, name, message, version)


def check_schema(judge: Judge, name: str, message: type, version: int) -> None:
    later = SINCE_4_0 if judge.version.startswith("3") else ()

    @FEW
    @given(messages(message, version))
    def check(one: object) -> None:
        known = {key: value for key, value in message_json(one, version).items() if key not in later}
        assert judge.shown(name, version, write_message(one, version)) == known, name

    check()


def test_no_type_or_version_of_4_4_is_missing(judge: Judge) -> None:
    newest = {name: max(judge.versions(name), default=-1) for name in SCHEMAS}
    known = {name: version for name, (_, version) in SCHEMAS.items()}
    types = {int(key) for key in judge("types").split()}
    ours = {one.api_key for one in TYPES_BY_KEY.values()}
    if judge.version.startswith("4.4"):
        assert newest == known
        assert types == ours
    assert all(newest[name] <= known[name] for name in known)
    assert types <= ours


def test_requests_for_producer_ids_are_the_same_to_kafkas_own_classes(judge: Judge) -> None:
    allocation, init = f"{COMMON}.AllocateProducerIds", f"{COMMON}.InitProducerId"

    @FEW
    @given(INT32, INT64, INT16, st.sampled_from(KafkaError))
    def check(number: int, id_: int, epoch: int, error: KafkaError) -> None:
        request = AllocateProducerIdsRequest(broker_id=number, broker_epoch=id_)
        told = judge.shown(f"{allocation}RequestData", 0, write_body(request))
        assert told == {"brokerId": number, "brokerEpoch": id_}
        response = AllocateProducerIdsResponse(error_code=error, producer_id_start=id_, producer_id_len=number)
        told = judge.shown(f"{allocation}ResponseData", 0, write_body(response))
        assert told == {
            "throttleTimeMs": 0, "errorCode": error.value, "producerIdStart": id_, "producerIdLen": number
        }  # fmt: skip
        for version in INIT_PRODUCER_ID_VERSIONS:
            has_id, name = version >= FIRST_WITH_ID, "ö" * (number % 3) if epoch % 2 else None
            request = InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=number, **({"producer_id": id_} if has_id else {})
            )
            told = judge.shown(f"{init}RequestData", version, write_body(request, version))
            expected = {"transactionalId": name, "transactionTimeoutMs": number}
            assert told == expected | ({"producerId": id_, "producerEpoch": -1} if has_id else {})
            answer = InitProducerIdResponse(throttle_time_ms=number, producer_id=id_, producer_epoch=epoch)
            told = judge.shown(f"{init}ResponseData", version, write_body(answer, version))
            assert told == {"throttleTimeMs": number, "errorCode": 0, "producerId": id_, "producerEpoch": epoch}

    check()


def test_snapshots_and_aborted_transactions_are_the_same_to_kafkas_own_classes(judge: Judge) -> None:
    snapshot = next(
        (name for name in (f"{COMMON}.ProducerSnapshot", f"{REMOTE}.ProducerSnapshot") if judge.versions(name)), None
    )
    aborted = f"{COMMON}.AbortedTxn"
    assert (snapshot is not None, bool(judge.versions(aborted))) == {
        "3.9.1": (False, False), "4.1.1": (True, False), "4.4.0": (True, True),
    }[judge.version]  # fmt: skip

    @FEW
    @given(st.lists(
        st.tuples(INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64), max_size=3, unique_by=itemgetter(0)
    ).map(sorted))  # fmt: skip
    def check(rows: list[tuple[int, ...]]) -> None:
        entries = [ProducerEntry(*row) for row in rows]
        if snapshot is not None:
            data = snapshot_bytes(entries)
            told = judge.shown(snapshot, 1, data[2:])["producerEntries"]
            assert [list(one.values()) for one in told] == [list(row) for row in rows]
        if judge.versions(aborted):
            for row in rows:
                txn = AbortedTxn(row[0], row[3], row[5], row[7])
                told = judge.shown(aborted, 0, write_transaction_index([txn])[2:])
                assert list(told.values()) == list(txn)

    check()
