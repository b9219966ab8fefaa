"""What ``resnap restore`` keeps of a log besides its files: where it starts, and what is open at its end."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.tiering.controller.transactions.metadata import TransactionState
from tests.logs.transaction_log import step, write_segment
from tests.scheduler.files import bases

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

    Sets = Callable[[str], FixtureSet]

KRAFT: Final = "kafka-3.9.1-kraft"
HOW: Final = ("--engine", "local", "--as-of", "roll", "--output", "json", "-q")
STARTS: Final = "log-start-offset-checkpoint"


@pytest.fixture
def log_dir(fixture_set: Sets, writable_copy: Any) -> Path:
    found: Path = writable_copy(fixture_set(KRAFT).data)
    return found


def remove_records(log_dir: Path, start: int) -> None:
    """Do to the checkpoints of ``payments-1`` what a broker does when records below ``start`` are deleted."""
    (log_dir / STARTS).write_text(f"0\n1\npayments 1 {start}\n")
    (log_dir / "payments-1" / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {start}\n")


def ship(command: Resnap, log_dir: Path, store: Path, layout: str) -> None:
    ran = command("tier", log_dir, "--topic", "payments", "--to", store.as_uri(), "--layout", layout, *HOW)
    assert ran.code == 0, ran.err


def restored(command: Resnap, store: Path, into: Path) -> tuple[Ran, dict[str, Any]]:
    """Restore, and return what was said of ``payments-1``."""
    into.mkdir(exist_ok=True)
    ran = command("restore", store.as_uri(), "--into", into, "--output", "json")
    return ran, next(row for row in ran.document["partitions"] if row["partition"] == 1)


@pytest.mark.parametrize("layout", ["flat", "aiven", "local-tiered"])
def test_removed_records_stay_removed(command: Resnap, log_dir: Path, tmp_path: Path, layout: str) -> None:
    start = bases(log_dir / "payments-1")[1] + 10
    remove_records(log_dir, start)
    ship(command, log_dir, tmp_path / "store", layout)
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / STARTS).write_text("0\n1\norders 0 7\n")
    ran, row = restored(command, tmp_path / "store", tmp_path / "new")
    assert (ran.code, row["logStartOffset"]) == (0, start), ran.err
    assert sorted((tmp_path / "new" / STARTS).read_text().split("\n")) == sorted(
        ["0", "2", "orders 0 7", f"payments 1 {start}", ""]
    )


def test_records_that_were_removed_after_their_segment_was_shipped_stay_removed(
    command: Resnap, log_dir: Path, tmp_path: Path
) -> None:
    ship(command, log_dir, tmp_path / "store", "flat")
    last = max((tmp_path / "store").rglob("*/1/*.manifest"))
    for path in last.parent.glob(f"{last.stem}.*"):
        path.unlink()
    start = bases(log_dir / "payments-1")[0] + 10
    remove_records(log_dir, start)
    ship(command, log_dir, tmp_path / "store", "flat")
    _, row = restored(command, tmp_path / "store", tmp_path / "new")
    assert (row["startOffset"], row["logStartOffset"]) == (0, start)


def test_removed_records_stay_removed_though_the_leader_epochs_come_from_the_batches(
    command: Resnap, log_dir: Path, tmp_path: Path
) -> None:
    start = bases(log_dir / "payments-1")[0] + 10
    remove_records(log_dir, start)
    (log_dir / "payments-1" / "leader-epoch-checkpoint").unlink()
    ship(command, log_dir, tmp_path / "store", "flat")
    assert restored(command, tmp_path / "store", tmp_path / "new")[1]["logStartOffset"] == start


def test_what_retention_has_taken_from_the_broker_comes_back(command: Resnap, log_dir: Path, tmp_path: Path) -> None:
    ship(command, log_dir, tmp_path / "store", "flat")
    last = max((tmp_path / "store").rglob("*/1/*.manifest"))
    for path in last.parent.glob(f"{last.stem}.*"):
        path.unlink()
    remove_records(log_dir, bases(log_dir / "payments-1")[2])
    ship(command, log_dir, tmp_path / "store", "flat")
    assert restored(command, tmp_path / "store", tmp_path / "new")[1]["logStartOffset"] == 0
    assert not (tmp_path / "new" / STARTS).exists()


def test_a_later_log_start_in_the_checkpoint_of_the_log_dir_is_kept(
    command: Resnap, log_dir: Path, tmp_path: Path
) -> None:
    start = bases(log_dir / "payments-1")[1] + 10
    remove_records(log_dir, start)
    ship(command, log_dir, tmp_path / "store", "flat")
    remembered = f"0\n1\npayments 1 {start + 20}\n"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / STARTS).write_text(remembered)
    restored(command, tmp_path / "store", tmp_path / "new")
    assert (tmp_path / "new" / STARTS).read_text() == remembered


def restored_beside_a_state_log(command: Resnap, log_dir: Path, tmp_path: Path, layout: str, cluster: str) -> str:
    """Restore into a log dir whose coordinator has an open transaction of producer 8, and return what was warned."""
    ship(command, log_dir, tmp_path / "store", layout)
    write_segment(tmp_path / "new", 0, [(0, "ledger", step(8, TransactionState.EMPTY, producer_epoch=4))])
    if cluster != "unknown":
        shutil.copy(log_dir / "meta.properties", tmp_path / "new")
    dry = command("restore", (tmp_path / "store").as_uri(), "--into", tmp_path / "new", "--dry-run")
    assert "read_committed" not in dry.err, "what to do about it is for the run to say"
    assert "Open transactions at the end of payments-1, whose end was not shipped" in dry.out
    ran, row = restored(command, tmp_path / "store", tmp_path / "new")
    assert row["openTransactions"] == [{"producerId": 8, "producerEpoch": 4, "coordinatorEpoch": 0, "firstOffset": 791}]
    assert ran.code == 0
    assert (
        "kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic payments --partition 1 --start-offset 791"
        in ran.err
    )
    return ran.err


def test_what_is_open_at_the_end_is_named_with_the_command_that_ends_it(
    command: Resnap, log_dir: Path, tmp_path: Path
) -> None:
    warned = restored_beside_a_state_log(command, log_dir, tmp_path, "flat", "same")
    assert "since offset 791, held by transactional id 'ledger', and its end was not shipped" in warned
    assert "Find out before any abort" not in warned


@pytest.mark.parametrize(("layout", "cluster"), [("flat", "unknown"), ("aiven", "same")])
def test_the_transactions_of_a_cluster_that_may_be_another_say_nothing_of_what_is_open(
    command: Resnap, log_dir: Path, tmp_path: Path, layout: str, cluster: str
) -> None:
    warned = restored_beside_a_state_log(command, log_dir, tmp_path, layout, cluster)
    assert "ledger" not in warned
    assert "Find out before any abort" in warned
