"""``resnap restore`` from the layout ``aiven``: what brokers or Resnap put there is a broker's directory again."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pytest

from tests.fixture_sets import AIVEN
from tests.scheduler.files import bases, file_at, flip, tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

    Sets = Callable[[str], FixtureSet]

PLAIN: Final = "kafka-3.9.1-aiven-plain"
ENCRYPTED: Final = "kafka-3.9.1-aiven-encrypted"
JSON: Final = ("--output", "json", "-q")


def key_of(fixture: FixtureSet) -> tuple[str, ...]:
    private = fixture.root / "keys" / "private.pem"
    return ("--encryption-private-key", f"key1={private}") if private.exists() else ()


def restored(command: Resnap, fixture: FixtureSet, store: Path, into: Path, *arguments: object) -> Ran:
    """Restore below the key prefix of a set, with its key where it has one."""
    into.mkdir(exist_ok=True)
    return command("restore", f"{store.as_uri()}/tiered", "--into", into, *key_of(fixture), *arguments, *JSON)


@pytest.mark.parametrize("name", AIVEN)
def test_what_brokers_tiered_comes_back_byte_for_byte(
    name: str, command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture, into = fixture_set(name), tmp_path / "new"
    ran = restored(command, fixture, fixture.remote, into, "--dry-run")
    assert (ran.code, list(into.iterdir())) == (0, [])
    ran = restored(command, fixture, fixture.remote, into)
    assert ran.code == 0, ran.err
    rows = {f"{row['topic']}-{row['partition']}": row for row in ran.document["partitions"]}
    assert rows.keys() == {path.name for path in into.iterdir()} != set()
    for partition in into.iterdir():
        theirs = fixture.data / partition.name
        assert bases(partition) == [base for base in bases(theirs) if base < rows[partition.name]["endOffset"]]
        for path in partition.iterdir():
            if path.suffix == ".snapshot":
                assert path.read_bytes() == (fixture.expected / partition.name / path.name).read_bytes()
            elif path.name != "leader-epoch-checkpoint":
                assert path.read_bytes() == (theirs / path.name).read_bytes()
        assert bases(partition, "snapshot") == [*bases(partition)[1:], rows[partition.name]["endOffset"]]
        assert (partition / "leader-epoch-checkpoint").read_bytes().startswith(b"0\n")
    ran = restored(command, fixture, fixture.remote, into)
    assert (ran.code, ran.document["summary"]["alreadyThere"]) == (0, len(rows))


def test_it_is_what_comes_back_from_the_layout_flat(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    fixture = fixture_set(ENCRYPTED)
    form = ("--layout", "aiven", "--key-prefix", "of.ours_", "--chunk-compression", "zstd",
            "--encryption-public-key", f"key1={fixture.root / 'keys' / 'public.pem'}")  # fmt: skip
    for store, own in (("flat", ()), ("copies", form)):
        to = ("--to", (tmp_path / store).as_uri(), *own, "--engine", "local", "--as-of", "roll", "-q")
        assert command("tier", fixture.data, "--topic", "payments", *to).code == 0
        segments = len([path for path in (tmp_path / store).rglob("*manifest") if path.is_file()])
        read = command("verify", "--store", (tmp_path / store).as_uri(), *key_of(fixture), *to[2 + len(own) :], *JSON)
        assert (read.code, read.document["summary"]["snapshotsReplayed"]) == (0, segments), read.err
        (tmp_path / f"from-{store}").mkdir()
        # Where the key prefix ends without a slash only manifests say where the topic's name begins.
        ran = command("restore", (tmp_path / store).as_uri(), "--into", tmp_path / f"from-{store}", *key_of(fixture),
                      "--topic", "pay*", *JSON)  # fmt: skip
        assert (ran.code, ran.document["summary"]["restored"]) == (0, 2), ran.err
    flat, copies = ({path: look[::2] for path, look in tree(tmp_path / f"from-{name}").items() if look[2] != "folder"}
                    for name in ("flat", "copies"))  # fmt: skip
    assert flat == copies != {}


@pytest.mark.parametrize(
    "place", [(PLAIN, "log", 700), (ENCRYPTED, "log", 700), (PLAIN, "indexes", 7), (PLAIN, "indexes", 90)]
)
def test_what_is_damaged_gets_no_name_and_the_rest_comes_back(
    place: tuple[str, str, int], command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    name, suffix, position = place
    fixture, into = fixture_set(name), tmp_path / "new"
    store = shutil.copytree(fixture.remote, tmp_path / "store")
    changed = sorted(store.rglob(f"0/*.{suffix}"))[1]
    flip(changed, position)
    ran = restored(command, fixture, store, into)
    assert (ran.code, changed.stem in ran.err) == (3, True), ran.err
    assert [row["partition"] for row in ran.document["partitions"]] == [1]
    assert not (into / "payments-0").exists()


def test_without_the_right_key_nothing_is_written(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    store = f"{fixture_set(ENCRYPTED).remote.as_uri()}/tiered"
    ran = command("restore", store, "--into", tmp_path, *JSON)
    assert (ran.code, ran.error["type"], list(tmp_path.glob("payments*"))) == (10, "ConfigurationError", [])
    assert "--encryption-private-key" in ran.error["hint"]


def test_what_has_the_name_already_is_never_touched(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    fixture, into = fixture_set(PLAIN), tmp_path / "new"
    assert restored(command, fixture, fixture.remote, into).code == 0
    flip(file_at(into / "payments-0", 0, "log"), 100)
    before = tree(into)
    ran = restored(command, fixture, fixture.remote, into)
    assert (ran.code, {row["outcome"] for row in ran.document["partitions"]}) == (1, {"occupied", "already-there"})
    assert tree(into) == before
