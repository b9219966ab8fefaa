"""The table of what a producer does about an error, beside real producers: each meets each error once."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.kafka_errors import KafkaError
from resnap.tiering.controller.transactions.client_errors import (
    BatchOutcome,
    ClientState,
    CoordinatorRequest,
    ProduceSituation,
    Reaction,
    on_coordinator_error,
    on_produce_error,
)
from tests.kafka import scripted_broker as broker_of
from tests.kafka.releases import HERE, PATIENCE_S
from tests.kafka.scripted_broker import PRODUCER_ID, BrokerRequest, Script, scripted_broker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kafka.releases import Release

RELEASES: Final = {"2.5.1": (2, 5), "3.9.1": (3, 9), "4.1.1": (4, 1), "4.4.0": (4, 4)}
ERRORS: Final = [error for error in KafkaError if error is not KafkaError.NONE]
STATES: Final = {
    "ABORTABLE_ERROR": ClientState.ABORTABLE,
    "FATAL_ERROR": ClientState.FATAL,
    "UNINITIALIZED": ClientState.UNINITIALIZED,
}
KEYS: Final = {
    CoordinatorRequest.INIT_PRODUCER_ID: broker_of.INIT_PRODUCER_ID,
    CoordinatorRequest.ADD_PARTITIONS: broker_of.ADD_PARTITIONS,
    CoordinatorRequest.ADD_OFFSETS: broker_of.ADD_OFFSETS,
    CoordinatorRequest.END_TXN: broker_of.END_TXN,
    CoordinatorRequest.TXN_OFFSET_COMMIT: broker_of.TXN_OFFSET_COMMIT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One producer that meets one error."""

    error: KafkaError
    request: CoordinatorRequest | None = None
    """None for a produce request."""
    at: ProduceSituation

    @property
    def kind(self) -> str:
        if self.request is CoordinatorRequest.INIT_PRODUCER_ID:
            return "init"
        return "transaction" if self.at.transactional else "idempotent"

    def script(self) -> Script:
        """Return what its broker says."""
        script = Script(
            init_producer_id=3 if self.at.can_bump else 1, log_start_offset=self.at.log_start_offset,
            transactions_v2=self.at.transactions_v2,
        )  # fmt: skip
        if self.request is not None:
            script.errors[KEYS[self.request]].append(self.error.value)
        else:
            used_up = [] if self.at.has_retries else [KafkaError.NOT_LEADER_OR_FOLLOWER.value]
            script.errors[broker_of.PRODUCE].extend([0, *used_up, self.error.value])
        return script

    def expected(self) -> Reaction:
        """Return what the table says."""
        if self.request is None:
            return on_produce_error(self.error, self.at)
        return on_coordinator_error(
            self.request, self.error, release=self.at.release, can_bump=self.at.can_bump,
            transactions_v2=self.at.transactions_v2,
        )  # fmt: skip


def coordinator_lives(release: tuple[int, int]) -> list[Life]:
    return [
        Life(error=error, request=request, at=ProduceSituation(transactional=True, release=release, can_bump=can_bump))
        for error in ERRORS
        for request in CoordinatorRequest
        for can_bump in (True, False)
    ]


def produce_lives(release: tuple[int, int]) -> list[Life]:
    situations = [
        *({"records": records} for records in (1, 2)),
        {"has_retries": False},
        {"log_start_offset": 10, "last_acked_offset": 0},
        {"log_start_offset": 0, "last_acked_offset": 0},
        {"transactional": True},
        {"transactional": True, "can_bump": False},
        {"transactional": True, "records": 2},
        {"transactional": True, "log_start_offset": 10, "last_acked_offset": 0},
        {"transactional": True, "log_start_offset": 0, "last_acked_offset": 0},
    ]
    return [
        Life(error=error, at=ProduceSituation(release=release, **situation))  # type: ignore[arg-type]
        for error in ERRORS
        for situation in situations
        if error is KafkaError.UNKNOWN_PRODUCER_ID or "log_start_offset" not in situation
    ]


def lives_in_transactions_v2(release: tuple[int, int]) -> list[Life]:
    """Return those of transactional producers whose cluster has ``transaction.version`` 2."""
    requests = (
        None,
        CoordinatorRequest.INIT_PRODUCER_ID,
        CoordinatorRequest.END_TXN,
        CoordinatorRequest.TXN_OFFSET_COMMIT,
    )
    at = ProduceSituation(transactional=True, transactions_v2=True, release=release)
    return [
        Life(error=error, request=request, at=at if request is None else replace(at, can_bump=can_bump))
        for error in ERRORS
        for request in requests
        for can_bump in (True, False)
    ]


def seen_at_coordinator(script: Script, request: CoordinatorRequest, failed: str, state: str) -> Reaction:
    """Return what a producer did about an error of its coordinator."""
    if failed == "fine":
        looked = script.count(broker_of.FIND_COORDINATOR)
        usual = 1 if request is CoordinatorRequest.INIT_PRODUCER_ID else 2  # of the transactional id, and of the group
        assert script.count(KEYS[request]) == 2
        return Reaction(batch=BatchOutcome.RETRY if looked == usual else BatchOutcome.FIND_COORDINATOR)
    return Reaction(batch=BatchOutcome.FAIL, state=STATES[state], bumps_epoch=asked_for_an_epoch(script))


def asked_for_an_epoch(script: Script) -> bool:
    return any(one.key == broker_of.INIT_PRODUCER_ID and one.producer_id == PRODUCER_ID for one in script.requests)


def seen_of_batches(script: Script, life: Life, failed: str, state: str) -> Reaction:
    """Return what a producer did about the second batch that it sent."""
    batches = [one for one in script.requests if one.key == broker_of.PRODUCE]
    tries, last = batches[1 if life.at.has_retries else 2 :], batches[-1]
    if failed != "fine":
        now = STATES.get(state, ClientState.UNCHANGED)
        bumped = asked_for_an_epoch(script) if life.at.transactional else last.epoch == 1
        return Reaction(batch=BatchOutcome.FAIL, state=now, bumps_epoch=bumped)
    if not life.at.transactional:
        tries = tries[:-1]  # another batch came after it
    if len(tries) == 1:
        return Reaction(batch=BatchOutcome.SUCCEED)
    return Reaction(batch=outcome(tries, life), bumps_epoch=tries[-1].epoch > tries[0].epoch)


def outcome(tries: list[BrokerRequest], life: Life) -> BatchOutcome:
    """Return the outcome of a batch that was sent again; a split one comes back whole if it is small enough."""
    first, again = tries[0], tries[1]
    if life.error is KafkaError.MESSAGE_TOO_LARGE and life.at.records > 1:
        return BatchOutcome.SPLIT
    is_renumbered = again.epoch == first.epoch and again.sequence != first.sequence
    return BatchOutcome.RENUMBER if is_renumbered else BatchOutcome.RETRY


def differences(release: Release, lives: list[Life]) -> list[str]:
    """Let real producers live, and return where they did something else than the table says."""
    with scripted_broker() as broker:
        for number, life in enumerate(lives):
            broker.scripts[f"p{number}"] = life.script()
        told = run(release, broker.port, lives)
    found = []
    for number, (life, line) in enumerate(zip(lives, told, strict=True)):
        name, failed, state, aborted = line.split(" ")
        assert name == f"p{number}"
        script = broker.scripts[name]
        seen = (
            seen_of_batches(script, life, failed, state)
            if life.request is None
            else seen_at_coordinator(script, life.request, failed, state)
        )
        if seen != life.expected() or (aborted == "aborted") != (
            failed != "fine" and seen.state is ClientState.ABORTABLE
        ):
            found.append(
                f"{life.error.name} {life.request} {life.at}: {line}\n  it did: {seen}\n  table: {life.expected()}"
            )
    return found


def run(release: Release, port: int, lives: list[Life]) -> list[str]:
    lines = "".join(
        f"p{number} {life.kind} {life.at.records} {2**31 - 1 if life.at.has_retries else 1}\n"
        for number, life in enumerate(lives)
    )
    ran = subprocess.run(
        release.program(HERE / "ClientDriver.java", f"127.0.0.1:{port}"),
        input=lines, capture_output=True, text=True, check=False, timeout=4 * PATIENCE_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout.splitlines()


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["2.5.1", "3.9.1", pytest.param("4.1.1", marks=pytest.mark.heavy), "4.4.0"])
def test_real_producers_do_what_the_table_says(version: str, release: Callable[[str], Release]) -> None:
    at = RELEASES[version]
    lives = produce_lives(at) + coordinator_lives(at)
    if at >= (4, 0):
        lives += lives_in_transactions_v2(at)
    assert differences(release(version), lives) == []
