"""Ours and Kafka's own state manager, side by side through random histories: one verdict, one state, at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from resnap.replay.leader.append_validation import (
    RULES_3_6,
    RULES_4_1,
    RULES_4_3,
    TRANSACTIONS_V2,
    AppendOrigin,
    EmptiedControl,
    KnownProducer,
    ProducerBatch,
)
from resnap.replay.leader.known_snapshots import MemorySnapshots
from resnap.replay.leader.producer_state_manager import ManagerSettings, ProducerStateManager
from resnap.replay.producer_state import DataBatch, Expiry, Marker
from resnap.storage.kafka_errors import RefusedError
from resnap.storage.log.names import segment_name
from resnap.storage.log.producer_snapshot import read_snapshot, snapshot_bytes
from resnap.storage.log.record import write_marker_batch
from resnap.storage.log.record_batch import MAX_EPOCH, MAX_SEQUENCE, wrap_sequence
from tests.kafka.state_driver import state_driver
from tests.logs.batch_builder import write_emptied_batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.replay.leader.append_validation import BatchMetadata, ValidationRules, VerificationGuard
    from tests.kafka.releases import Release
    from tests.kafka.state_driver import StateDriver

RULES: Final = {"3.9.1": RULES_3_6, "4.1.1": RULES_4_1, "4.4.0": RULES_4_3}
RELEASES: Final = ["3.9.1", pytest.param("4.1.1", marks=pytest.mark.heavy), "4.4.0"]
TRANSACTION_TIMEOUT_MS: Final = 1_000
EXPIRATIONS_MS: Final = (500, 5_000, 1_000_000)
PRODUCERS: Final = st.sampled_from((1, 1, 2, 3))
EPOCH_STEPS: Final = st.sampled_from((0,) * 16 + (1, 1, 1, 1, -1, -1, 2, 2, MAX_EPOCH))
TRANSACTION_VERSIONS: Final = st.sampled_from((0, 2, 2))
SEQUENCES: Final = st.sampled_from(("next",) * 8 + ("again", "again", "older", "gap", "zero", "wrap"))
ORIGINS: Final = st.sampled_from((AppendOrigin.CLIENT,) * 6 + tuple(AppendOrigin))
MARKER_ORIGINS: Final = st.sampled_from((AppendOrigin.COORDINATOR,) * 4 + tuple(AppendOrigin))
DATA: Final = st.fixed_dictionaries({
    "kind": st.just("data"), "producer_id": PRODUCERS, "step": EPOCH_STEPS, "sequence": SEQUENCES,
    "records": st.integers(1, 3), "transactional": st.booleans(),
})  # fmt: skip
MARKER: Final = st.fixed_dictionaries({
    "kind": st.just("marker"), "producer_id": PRODUCERS, "step": EPOCH_STEPS, "commit": st.booleans(),
    "coordinator_epoch": st.sampled_from((1,) * 8 + (2, 0)),
})  # fmt: skip
EMPTIED: Final = st.fixed_dictionaries({"kind": st.just("emptied"), "producer_id": PRODUCERS, "step": EPOCH_STEPS})
SOMEWHERE: Final = st.integers(0, 100)


class SideBySide(RuleBasedStateMachine):
    """Every rule sends one command to both, and compares the answers."""

    driver: ClassVar[StateDriver]
    validation: ClassVar[ValidationRules]
    steps: ClassVar[int] = 0

    @initialize(expiration_ms=st.sampled_from(EXPIRATIONS_MS), verification=st.booleans())
    def begin(self, expiration_ms: int, verification: bool) -> None:
        self.now = self.log_start = 0
        self.guards: dict[int, VerificationGuard] = {}
        self.settings = ManagerSettings(
            expiry=Expiry(expiration_ms, 100),
            max_transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            verification_enabled=verification,
            rules=self.validation,
        )
        self.store, self.aside = MemorySnapshots(), set[str]()
        self.manager = ProducerStateManager(self.store, self.settings)
        kafkas = self.driver("reset", expiration_ms, int(verification), TRANSACTION_TIMEOUT_MS)
        assert kafkas == f"0|{self.state()}"

    # -- what producers and coordinators do

    @rule(data=DATA, origin=ORIGINS, verified=st.sampled_from((True, True, True, False)))
    def append_data(self, data: dict[str, Any], origin: AppendOrigin, verified: bool) -> None:
        batch = self.batch(data, self.manager.end_offset)[0]
        assert isinstance(batch, DataBatch)
        if verified and batch.transactional:
            self.verify(batch, bumps=bool(batch.timestamp % 2))
        self.append([data], origin)

    @rule(data=DATA, bumps=st.booleans())
    def verify_only(self, data: dict[str, Any], bumps: bool) -> None:
        batch = self.batch(data, self.manager.end_offset)[0]
        assert isinstance(batch, DataBatch)
        self.verify(batch, bumps=bumps)

    @rule(data=MARKER, origin=MARKER_ORIGINS, version=TRANSACTION_VERSIONS)
    def append_marker(self, data: dict[str, Any], origin: AppendOrigin, version: int) -> None:
        self.append([data], origin, version)

    @rule(
        data=st.lists(st.one_of(DATA, MARKER, EMPTIED), min_size=1, max_size=4),
        origin=ORIGINS,
        version=TRANSACTION_VERSIONS,
    )
    def append_several(self, data: list[dict[str, Any]], origin: AppendOrigin, version: int) -> None:
        self.append(data, origin, version)

    def verify(self, batch: DataBatch, *, bumps: bool) -> None:
        def ours() -> str:
            guard = self.manager.start_verification(
                batch.producer_id, sequence=batch.base_sequence, epoch=batch.producer_epoch, now_ms=self.now,
                supports_epoch_bump=bumps,
            )  # fmt: skip
            if guard is None:
                return "none"
            self.guards[batch.producer_id] = guard
            return "guard"

        words = ("verify", batch.producer_id, batch.base_sequence, batch.producer_epoch, int(bumps))
        self.compare(ours, *words)

    def append(self, data: list[dict[str, Any]], origin: AppendOrigin, version: int = 0) -> None:
        batches, encoded, offset = [], b"", self.manager.end_offset
        for one in data:
            batch, raw, offset = self.batch(one, offset)
            batches.append(batch)
            encoded += raw
        guarded = batches[0].producer_id

        def ours() -> str:
            appended = self.manager.append(
                batches, end_offset=offset, origin=origin, guard=self.guards.get(guarded), transaction_version=version
            )  # fmt: skip
            if appended.duplicate:
                return f"duplicate {batch_text(appended.duplicate)}"
            ended = [f" {t.producer_id}/{t.first_offset}/{t.last_offset}/{str(t.aborted).lower()}"
                     for t in appended.completed]  # fmt: skip
            return "0" + "".join(ended)

        words = ("append", origin.name, guarded, offset, version, encoded.hex())
        self.compare(ours, *words, shorten=last_stable_offsets_off)

    def batch(self, data: dict[str, Any], offset: int) -> tuple[ProducerBatch, bytes, int]:
        """Return a batch as it is described, its bytes, and the offset after it."""
        producer_id = data["producer_id"]
        known = self.manager.producers.get(producer_id, KnownProducer.unknown(producer_id))
        epoch = min(MAX_EPOCH, max(0, max(known.entry.producer_epoch, 0) + data["step"]))
        stamp = self.now + offset % 3
        match data["kind"]:
            case "marker":
                marker = Marker(producer_id, epoch, data["coordinator_epoch"], offset, stamp, data["commit"])
                raw = write_marker_batch(
                    offset=offset, producer_id=producer_id, producer_epoch=epoch, timestamp=stamp,
                    coordinator_epoch=data["coordinator_epoch"], commit=data["commit"],
                )  # fmt: skip
                return marker, raw, offset + 1
            case "emptied":
                raw = write_emptied_batch(
                    offset=offset, records=1, timestamp=stamp, producer_id=producer_id, producer_epoch=epoch,
                    transactional=True, control=True,
                )  # fmt: skip
                return EmptiedControl(producer_id, epoch), raw, offset + 1
        sequence, records = self.sequence(known, data["sequence"], data["records"])
        last = wrap_sequence(sequence + records - 1)
        raw = write_emptied_batch(
            offset=offset, records=records, timestamp=stamp, producer_id=producer_id, producer_epoch=epoch,
            base_sequence=sequence, transactional=data["transactional"],
        )  # fmt: skip
        batch = DataBatch(
            producer_id, epoch, sequence, last, offset, offset + records - 1, stamp, data["transactional"]
        )
        return batch, raw, offset + records

    def sequence(self, known: KnownProducer, kind: str, records: int) -> tuple[int, int]:
        """Return a first sequence of the kind that is asked for, and how many records the batch has."""
        if kind in ("again", "older") and known.batches:
            which = known.batches[-1] if kind == "again" else known.batches[0]
            return which.first_sequence, which.offset_delta + 1
        following = wrap_sequence(known.last_sequence + 1)
        return {"gap": wrap_sequence(following + 2), "zero": 0, "wrap": MAX_SEQUENCE - 1}.get(kind, following), records

    # -- what brokers do

    @rule(by_ms=st.sampled_from((1, 50, 500, 5_000, 302_000)))
    def let_time_pass(self, by_ms: int) -> None:
        self.now += by_ms
        self.compare(lambda: "0", "time", self.now)

    @rule()
    def remove_expired(self) -> None:
        self.does(lambda: self.manager.remove_expired(self.now), "expire")

    @rule(expiration_ms=st.sampled_from(EXPIRATIONS_MS))
    def change_expiration(self, expiration_ms: int) -> None:
        self.settings.expiry = Expiry(expiration_ms, 100)
        self.compare(lambda: "0", "expiration", expiration_ms)

    @rule(enabled=st.booleans())
    def change_verification(self, enabled: bool) -> None:
        self.settings.verification_enabled = enabled
        self.compare(lambda: "0", "verification", int(enabled))

    @rule()
    def take_snapshot(self) -> None:
        def ours() -> str:
            taken = self.manager.take_snapshot()
            return "none" if taken is None else f"taken {self.store.files[taken].hex()}"

        self.compare(ours, "snapshot", shorten=in_our_order)

    @rule(back=SOMEWHERE)
    def move_high_watermark(self, back: int) -> None:
        offset = max(0, self.manager.end_offset - back // 10)
        self.does(lambda: self.manager.transactions.replicated_up_to(offset), "highwatermark", offset)

    @rule(by=st.integers(0, 3))
    def move_log_start(self, by: int) -> None:
        self.log_start += by
        self.does(lambda: self.manager.log_start_incremented(self.log_start), "logstart", self.log_start)

    @rule(back=st.sampled_from((0, 0, 1, 2, 5)))
    def truncate(self, back: int) -> None:
        end = max(self.log_start, self.manager.end_offset - back)
        self.does(
            lambda: self.manager.truncate_and_reload(self.log_start, end, self.now), "truncate", self.log_start, end
        )

    @rule(snapshot_first=st.booleans())
    def restart(self, snapshot_first: bool) -> None:
        if snapshot_first:
            self.take_snapshot()
        end = max(self.log_start, self.manager.end_offset)
        self.manager = ProducerStateManager(self.store, self.settings)
        self.guards = {}
        self.does(
            lambda: self.manager.truncate_and_reload(self.log_start, end, self.now), "restart", self.log_start, end
        )

    @rule(offset=st.integers(0, 20), rare=st.integers(0, 5))
    def forget(self, offset: int, rare: int) -> None:
        if rare == 0:
            self.log_start = offset
            self.does(lambda: self.manager.truncate_fully_and_start_at(offset), "forget", offset)

    @rule(rare=st.integers(0, 5))
    def reload_snapshots(self, rare: int) -> None:
        if rare == 0:
            self.log_start = 0
            self.does(self.manager.truncate_fully_and_reload_snapshots, "reload")

    @rule(kept=st.lists(SOMEWHERE, max_size=3), real=st.booleans())
    def remove_strays(self, kept: list[int], real: bool) -> None:
        bases = sorted({*kept, *(self.manager.snapshots.offsets[:2] if real else ())})
        words = ",".join(map(str, bases)) or "-"
        self.does(lambda: self.manager.snapshots.delete_strays(bases), "strays", words)

    @rule(back=st.integers(0, 10))
    def delete_snapshots_before(self, back: int) -> None:
        offset = max(0, self.manager.end_offset - back)
        snapshots = self.manager.snapshots
        self.does(lambda: snapshots.delete([at for at in snapshots.offsets if at < offset]), "delete", offset)

    @rule(which=st.integers(0, 3))
    def put_snapshot_aside(self, which: int) -> None:
        offset = [*self.manager.snapshots.offsets, 7, 8, 9, 10][which]

        def ours() -> str:
            there = self.manager.snapshots.mark_deleted(offset)
            if there:
                self.aside.add(f"{segment_name(offset, 'snapshot')}.deleted")
            return str(there).lower()

        self.compare(ours, "aside", offset)

    @rule()
    def damage_the_newest_snapshot(self) -> None:
        newest = self.manager.snapshots.latest
        if newest is not None and newest in self.store.files:
            self.store.files[newest] = b"\x00\x01\x02"
            self.compare(lambda: "0", "damage", newest)

    # -- comparing

    def does(self, ours: Callable[[], object], *words: object) -> None:
        def verdict() -> str:
            ours()
            return "0"

        self.compare(verdict, *words)

    def compare(
        self, ours: Callable[[], str], *words: object, shorten: Callable[[str], str] = lambda verdict: verdict
    ) -> None:
        type(self).steps += 1
        try:
            verdict = ours()
        except RefusedError as error:
            verdict = str(error.error.value)
        kafkas, _, state = self.driver(*words).partition("|")
        assert shorten(kafkas) == verdict, words
        assert state == self.state(), words

    def state(self) -> str:
        manager = self.manager
        transactions, snapshots = manager.transactions, manager.snapshots.offsets
        verifications = [f"{producer_id}/{one.started_ms}/{one.lowest_sequence}/{one.epoch};"
                         for producer_id, one in sorted(manager.verifications.items())]  # fmt: skip
        files = sorted([*(segment_name(offset, "snapshot") for offset in self.store.files), *self.aside])
        numbers = (
            manager.end_offset, snapshots[-1] if snapshots else -1, snapshots[0] if snapshots else -1,
            or_none(transactions.first_undecided_offset), or_none(transactions.first_unstable_offset),
        )  # fmt: skip
        producers = ";".join(producer_text(known) for _, known in sorted(manager.producers.items()))
        late = str(manager.has_late_transaction(self.now)).lower()
        return "|".join([producers, "".join(verifications), ",".join(files), *map(str, numbers), late])


def or_none(offset: int | None) -> int:
    return -1 if offset is None else offset


def producer_text(known: KnownProducer) -> str:
    entry, batches = known.entry, ",".join(map(batch_text, known.batches))
    head = (entry.producer_id, entry.producer_epoch, entry.coordinator_epoch, entry.timestamp)
    return "/".join(map(str, (*head, entry.current_txn_first_offset, batches)))


def batch_text(batch: BatchMetadata) -> str:
    sequences = f"{batch.first_sequence}:{batch.last_sequence}"
    return f"{sequences}:{batch.first_offset}:{batch.last_offset}:{batch.timestamp}"


def last_stable_offsets_off(verdict: str) -> str:
    """Skip what only the log's own tests check."""
    head, *ended = verdict.split(" ")
    return verdict if head == "duplicate" else " ".join([head, *(one.rpartition("/")[0] for one in ended)])


def in_our_order(verdict: str) -> str:
    """Put the entries of a snapshot, which Kafka writes in the order of a hash table, in order."""
    word, _, data = verdict.partition(" ")
    return f"{word} {snapshot_bytes(read_snapshot(bytes.fromhex(data)).values()).hex()}" if data else word


@pytest.mark.kafka
@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("together", [True, False], ids=["one append", "one by one"])
def test_an_epoch_that_goes_away_and_comes_back_leaves_the_last_batch_only_within_one_append(
    together: bool, version: str, release: Callable[[str], Release], tmp_path: Path
) -> None:
    data = {"kind": "data", "producer_id": 1, "sequence": "next", "records": 1, "transactional": False}
    marker = {"kind": "marker", "producer_id": 1, "commit": True, "coordinator_epoch": 1}
    away, back = {**marker, "step": 1}, {**marker, "step": 0 if together else -1}
    with state_driver(release(version), tmp_path) as driver:

        class Machine(SideBySide):
            pass

        Machine.driver, Machine.validation = driver, RULES[version]
        machine = Machine()
        machine.begin(expiration_ms=1_000_000, verification=False)
        for appended in [[{**data, "step": 0}], *([[away, back]] if together else [[away], [back]])]:
            machine.append(appended, AppendOrigin.REPLICATION)
        known = machine.manager.producers[1]
        assert (known.entry.producer_epoch, bool(known.batches)) == (0, together)


@pytest.mark.kafka
@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("step", [0, MAX_EPOCH])
def test_a_marker_of_the_known_epoch_has_one_verdict_and_one_state(
    version: str, step: int, release: Callable[[str], Release], tmp_path: Path
) -> None:
    data = {"kind": "data", "producer_id": 1, "sequence": "next", "records": 1, "transactional": True, "step": step}
    marker = {"kind": "marker", "producer_id": 1, "commit": True, "coordinator_epoch": 1, "step": 0}
    with state_driver(release(version), tmp_path) as driver:

        class Machine(SideBySide):
            pass

        Machine.driver, Machine.validation = driver, RULES[version]
        machine = Machine()
        machine.begin(expiration_ms=1_000_000, verification=False)
        machine.append([data], AppendOrigin.REPLICATION)
        machine.append([marker], AppendOrigin.COORDINATOR, TRANSACTIONS_V2)
        is_strict = RULES[version].markers_bring_next_epoch and not (step and RULES[version].markers_end_last_epoch)
        assert machine.manager.producers[1].entry.has_open_transaction == is_strict
        machine.append([{**marker, "step": 1}], AppendOrigin.COORDINATOR, TRANSACTIONS_V2)
        machine.append([marker], AppendOrigin.COORDINATOR, TRANSACTIONS_V2)


def run_beside(release: Release, directory: Path, steps: int) -> int:
    """Run random histories until there have been ``steps`` of them; return how many there were."""
    with state_driver(release, directory) as driver:

        class Machine(SideBySide):
            pass

        Machine.driver, Machine.validation, Machine.steps = driver, RULES[release.version], 0
        chosen = settings(
            max_examples=100, stateful_step_count=60, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        while Machine.steps < steps:
            run_state_machine_as_test(Machine, settings=chosen)
        return Machine.steps


@pytest.mark.kafka
@pytest.mark.parametrize("version", RELEASES)
def test_5_000_steps_have_one_verdict_and_one_state(
    version: str, release: Callable[[str], Release], tmp_path: Path
) -> None:
    assert run_beside(release(version), tmp_path, 5_000) >= 5_000


@pytest.mark.kafka
@pytest.mark.heavy
@pytest.mark.parametrize("version", RELEASES)
def test_100_000_steps_have_one_verdict_and_one_state(
    version: str, release: Callable[[str], Release], tmp_path: Path
) -> None:
    assert run_beside(release(version), tmp_path, 100_000) >= 100_000
