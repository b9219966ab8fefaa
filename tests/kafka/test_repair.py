"""Wrong snapshots and transaction indexes that stock brokers have tiered: found, repaired, and right from then on.

The first half of each story is what happens without the repair.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Final

import pytest

from tests.kafka.aiven_plugin import KEY_ID, PREFIX, aiven_tiering, plugin
from tests.kafka.lost_state import IDEMPOTENT, TOPIC
from tests.kafka.unfit_remote import UnfitRemote, led_without_state, moved_without_snapshots

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka
HOW: Final = ("--engine", "local", "--output", "json", "-q")


def test_what_3_9_tiered_of_a_log_that_was_moved_without_its_snapshots_is_repaired(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    with moved_without_snapshots(release, tmp_path) as unfit:
        check_story(command, unfit, unfit.remote.as_uri())


@pytest.mark.heavy
def test_consumers_see_the_same_while_the_store_that_they_read_from_is_repaired_undone_and_repaired(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path
) -> None:
    """No read fails or differs: what `repair` replaces is whole at each moment, and brokers keep the segments."""
    with moved_without_snapshots(release, tmp_path) as unfit:
        store = unfit.remote.as_uri()
        how = ("--no-other-writers", *HOW)
        before, wrong, since = unfit.read("read_uncommitted"), unfit.read(), len(unfit.broker.printed())
        is_over = Event()

        def read_on() -> list[tuple[tuple[int, str], tuple[int, str]]]:
            seen = []
            while not is_over.is_set():
                seen.append((unfit.read("read_uncommitted"), unfit.read()))
            return seen

        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(read_on)
            try:
                for _ in range(2):
                    made = command("repair", store, "--topic", TOPIC, *how)
                    assert made.code == 0, made.err
                    undone = command("repair", store, "--undo", made.document["summary"]["run"], *how)
                    assert undone.code == 0, undone.err
                assert command("repair", store, "--topic", TOPIC, *how).code == 0
            finally:
                is_over.set()
            seen = reading.result()
        assert len(seen) > 1
        assert {uncommitted for uncommitted, _ in seen} == {before}
        assert {committed for _, committed in seen} <= {wrong}, "brokers read the index that they have fetched"
        assert unfit.broker.complaints(since) == []
        assert command("verify", "--store", store, *HOW).code == 0

        unfit.broker.stop()
        unfit.forget_indexes()
        unfit.broker.start_up()
        assert unfit.read()[0] == wrong[0] - 1
        assert unfit.read("read_uncommitted") == before


@pytest.mark.heavy
@pytest.mark.parametrize("version", ["3.9.1", "4.4.0"])
def test_what_a_replica_tiered_that_had_lost_its_state_is_repaired(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    with led_without_state(release(version), tmp_path) as unfit:
        check_story(command, unfit, unfit.remote.as_uri(), looks_everywhere=version < "4")


@pytest.mark.heavy
def test_what_the_plugin_of_aiven_tiered_compressed_and_encrypted_is_repaired(
    command: Resnap, release: Callable[[str], Release], fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    keys, classes = fixture_set("kafka-3.9.1-aiven-encrypted").root / "keys", tmp_path / "plugin"
    classes.mkdir()
    tiers = partial(aiven_tiering, class_path=plugin(release("3.9.1"), classes), keys=keys)
    private = ("--encryption-private-key", f"{KEY_ID}={keys / 'private.pem'}")
    with moved_without_snapshots(release, tmp_path, tiers=tiers) as unfit:
        check_story(command, unfit, f"{unfit.remote.as_uri()}/{PREFIX}".rstrip("/"), *private)


def check_story(command: Resnap, unfit: UnfitRemote, store: str, *flags: object, looks_everywhere: bool = True) -> None:
    """See what is wrong, repair it, and see that all is right then.

    ``flags`` say how the store is read. ``looks_everywhere`` is whether brokers look for a transaction index where
    there was none: from 4.0 on they have recorded of such a segment that it has none.
    """
    how, before = (*HOW, *flags), unfit.read("read_uncommitted")
    wrong = unfit.read()
    _check_unfit(command, unfit, store, how)

    indexes = set(unfit.remote.rglob("*.txnindex"))
    repair = ("repair", store, "--topic", TOPIC, "--no-other-writers", *how)
    ran = command(*repair)
    assert ran.code == 0, ran.err
    assert ran.document["summary"]["transactionIndexes"] == 1
    assert command(*repair).document["summary"]["repaired"] == 0
    assert command("verify", "--store", store, *how).code == 0
    assert unfit.read() == wrong, "brokers read the index that they have fetched"
    is_read = looks_everywhere or set(unfit.remote.rglob("*.txnindex")) == indexes
    if unfit.newcomer is not None:
        shown = unfit.read_of_new_replica()
        assert shown[0] == wrong[0] - 1 if is_read else shown == wrong

    unfit.broker.stop()
    _heal(command, unfit, store, how)
    unfit.broker.start_up()
    right = unfit.read()
    assert right[0] == wrong[0] - 1 if is_read else right == wrong
    assert unfit.read("read_uncommitted") == before
    tiered = len(list(unfit.remote.rglob("*.log")))
    unfit.append()
    assert len(list(unfit.remote.rglob("*.log"))) > tiered
    assert command("verify", "--store", store, *how).code == 0
    assert unfit.read()[0] > right[0]
    assert unfit.broker.complaints(unfit.broker.started_at) == []

    unfit.broker.stop()
    _check_restored(command, unfit, store, how)


def _check_unfit(command: Resnap, unfit: UnfitRemote, store: str, how: tuple[object, ...]) -> None:
    """Check that no broker complains, that verification finds it, and that nothing can be restored."""
    assert unfit.broker.complaints(unfit.since) == []
    found = command("verify", "--store", store, *how)
    assert found.code == 13
    assert found.document["summary"]["partitionsUnfit"] == 1
    assert f"producers {IDEMPOTENT}" in found.err or f", {IDEMPOTENT}" in found.err
    restored = command("restore", store, "--into", unfit.broker.root / "restored", *how)
    assert restored.code == 13
    assert "lacks the transaction of producer" in restored.err


def _heal(command: Resnap, unfit: UnfitRemote, store: str, how: tuple[object, ...]) -> None:
    """Give the stopped broker its own state back, else it goes on to tier what it knows; and let it fetch again."""
    data, healed = unfit.broker.log_dirs[0], unfit.broker.root / "healed"
    made = command(
        "regenerate", data, "--topic", TOPIC, "--remote", store, "--boundaries", "all", "--into", healed, *how
    )
    assert made.code == 0, made.err
    replaced = ("--replace", "false-empty", "--replace", "false-partial", "--replace", "txnindex")
    installed = command("install", healed, data, *replaced, "--output", "json")
    assert installed.code == 0, installed.err
    unfit.forget_indexes()


def _check_restored(command: Resnap, unfit: UnfitRemote, store: str, how: tuple[object, ...]) -> None:
    """See that producers go on with a log that comes back from the store, and that duplicates are refused."""
    shutil.rmtree(unfit.partition)
    restored = command("restore", store, "--into", unfit.broker.log_dirs[0], "--topic", TOPIC, *how)
    assert restored.code == 0, restored.err
    unfit.broker.start_up()
    assert unfit.send(0) == ("NONE", unfit.batch_offset)
    assert unfit.send(5)[0] == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    assert unfit.send(1)[0] == "NONE"
