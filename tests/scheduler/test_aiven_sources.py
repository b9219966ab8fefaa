"""What brokers tiered through the plugin, through the commands."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.fixture_sets import AIVEN
from tests.scheduler.mirrors import mirror
from tests.scheduler.shipped import files_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Resnap

    Sets = Callable[[str], FixtureSet]

ENCRYPTED: Final = "kafka-3.9.1-aiven-encrypted"
HOW: Final = ("--as-of", "roll", "--output", "json", "-q")
LOCAL: Final = ("--engine", "local", *HOW)


def key_of(fixture: FixtureSet) -> list[str]:
    """Return the flag that gives the private key of a set, where it has one."""
    private = fixture.root / "keys" / "private.pem"
    return ["--encryption-private-key", f"key1={private}"] if private.exists() else []


@pytest.mark.parametrize("name", AIVEN)
def test_a_replay_of_what_was_tiered_proves_every_snapshot_that_was_tiered_with_it(
    name: str, command: Resnap, fixture_set: Sets
) -> None:
    fixture = fixture_set(name)
    ran = command("verify", f"{fixture.remote.as_uri()}/tiered", *LOCAL, *key_of(fixture))
    assert ran.code == 0, ran.err
    found = ran.document["summary"]
    assert found["snapshotsReplayed"] == len(list(fixture.remote.rglob("*.rsm-manifest"))) > 0
    assert (found["snapshotsDifferent"], found["different"]) == (0, 0)


@pytest.mark.heavy
@pytest.mark.s3
@pytest.mark.spark
def test_executors_decrypt_chunk_by_chunk_what_they_replay_in_a_bucket(
    command: Resnap, bucket: Bucket, tmp_path: Path, fixture_set: Sets
) -> None:
    fixture = fixture_set(ENCRYPTED)
    mirror(bucket.client, bucket.name, fixture.remote, "store")
    made: dict[str, dict[str, bytes]] = {}
    for engine in ("local", "spark"):
        ran = command(
            "regenerate", f"{bucket.url}/store/tiered", "--boundaries", "all", "--into", tmp_path / engine,
            "--engine", engine, *HOW, *key_of(fixture), *bucket.flags, **bucket.variables,
        )  # fmt: skip
        assert ran.code == 0, ran.err
        assert "PRIVATE" not in ran.out + ran.err
        made[engine] = files_of(tmp_path / engine)
    assert made["spark"] == made["local"] != {}


def test_a_missing_or_wrong_key_is_a_configuration_error(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    fixture = fixture_set(ENCRYPTED)
    url = f"{fixture.remote.as_uri()}/tiered"
    secret = tmp_path / "secret.pem"
    secret.write_text("-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n")
    for arguments in ([], ["--encryption-private-key", f"key1={secret}"], ["--encryption-private-key", "key1=nowhere"]):
        ran = command("verify", url, *LOCAL, *arguments)
        assert (ran.code, ran.error["type"]) == (10, "ConfigurationError")
        assert "key1" in ran.err
        assert "hunter2" not in ran.err
    other = command("verify", url, *LOCAL, "--encryption-private-key", key_of(fixture)[1].replace("key1=", "key2="))
    assert "the given private keys are: key2" in other.err


def test_a_key_in_a_file_of_settings_is_found_from_there_and_never_shown(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    fixture = fixture_set(ENCRYPTED)
    shutil.copy(fixture.root / "keys" / "private.pem", tmp_path / "mine.pem")
    file = tmp_path / "settings.toml"
    file.write_text('[encryption-private-key]\nkey1 = "mine.pem"\n')
    shown = command("config", "show", "--config", file)
    assert str(tmp_path / "mine.pem") in shown.out
    assert "BEGIN" not in shown.out
    ran = command("verify", f"{fixture.remote.as_uri()}/tiered", *LOCAL, "--config", file)
    assert ran.code == 0, ran.err


def inspected(command: Resnap, file: object, *arguments: str) -> Any:
    ran = command("inspect", file, "--output", "json", *arguments)
    assert ran.code == 0, ran.err
    return ran.document


@pytest.mark.parametrize("name", AIVEN)
def test_inspect_shows_what_the_broker_had(name: str, command: Resnap, fixture_set: Sets) -> None:
    fixture = fixture_set(name)
    path = sorted(fixture.remote.rglob("*.rsm-manifest"))[1]
    manifest = inspected(command, path)
    assert (manifest["kind"], manifest["topic"], manifest["partition"]) == ("rsm-manifest", "payments", 0)
    assert manifest["encryptionKeyPair"] == ("key1" if name == ENCRYPTED else None)
    broker = fixture.data / "payments-0" / f"{manifest['startOffset']:020d}.log"
    log = inspected(command, path.with_suffix(".log"), *key_of(fixture))
    theirs = inspected(command, broker)
    assert log["batches"] == theirs["batches"] != []
    parts = inspected(command, path.with_suffix(".indexes"), *key_of(fixture))["indexes"]
    assert [row["index"] for row in parts] == [row["index"] for row in manifest["indexes"]]
    for row, suffix in zip(
        parts, ("index", "timeindex", "snapshot", "leader-epoch-checkpoint", "txnindex"), strict=False
    ):
        file = row["file"].removeprefix("file://")
        assert len(inspected(command, file, *key_of(fixture)).get("entries", [1] * row["entries"])) == row["entries"]
        if suffix in {"index", "timeindex", "txnindex"}:
            assert row["bytes"] == broker.with_suffix(f".{suffix}").stat().st_size


def test_indexes_without_their_manifest_are_a_usage_error(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    path = next(fixture_set(AIVEN[0]).remote.rglob("*.indexes"))
    copy = shutil.copy(path, tmp_path / "copy.indexes")
    ran = command("inspect", copy, "--kind", "indexes")
    assert (ran.code, "without its manifest" in ran.err) == (2, True)
