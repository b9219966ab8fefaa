"""``resnap restore --new-cluster`` with what ``resnap export`` has written: offsets of groups, ACLs, quotas, users."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.scheduler.cli import run
from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.names import TopicPartition
from resnap.tiering.controller.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    UserScramCredentialRecord,
)
from tests.scheduler.exported import (
    BROKER,
    CREDENTIAL,
    ENTRY,
    PASSWORD,
    QUOTA,
    RETENTION,
    node,
    topic,
    with_metadata,
    with_offsets,
)
from tests.scheduler.test_new_cluster import FORMS, SET, formatted, records, topic_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.controller.metadata.records import MetadataRecord
    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap

JSON: Final = ("--output", "json")
FIRST, SECOND, OTHER = TopicPartition("payments", 0), TopicPartition("payments", 1), TopicPartition("gone", 0)
FAR: Final = 1 << 40
"""An offset above all that was shipped."""


@pytest.fixture(scope="module")
def shipped(fixture_set: Callable[[str], FixtureSet], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was shipped without a metadata log: topics are known by the export alone."""
    root, data = tmp_path_factory.mktemp("shipped"), tmp_path_factory.mktemp("old") / "data"
    shutil.copytree(fixture_set(SET).data, data)
    shutil.rmtree(data / "__cluster_metadata-0")
    store = root / "store"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RESNAP_STATE_DIR", "none")
        words = ["tier", str(data), "--topic", "payments", "--to", store.as_uri(), "--as-of", "roll"]
        assert run([*words, "--engine", "local", "--quiet", *JSON]) == 0
    return store


@pytest.fixture
def store(shipped: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shipped, tmp_path / "store")


@pytest.fixture
def cluster_id(fixture_set: Callable[[str], FixtureSet]) -> str:
    found = load_log_dir(fixture_set(SET).data).cluster_id
    assert found is not None
    return found


@pytest.fixture
def export(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], store: Path, cluster_id: str, tmp_path: Path
) -> Callable[..., str]:
    """Export a node with these offsets, and more records; return the key."""

    def exported(
        offsets: Any,
        *more: MetadataRecord,
        number: int = 1,
        end_offset: int = 100,
        of: str = "",
        share_groups: tuple[str, ...] = (),
        credentials: bool = True,
    ) -> str:
        payments = topic("payments", of or topic_id(fixture_set).strip(), 5)
        data = node(tmp_path / f"node-{number}-{end_offset}", number, cluster_id)
        with_offsets(with_metadata(data, [*payments, RETENTION, *more], end_offset), offsets, share_groups=share_groups)
        ran = command("export", data, "--to", store.as_uri(), *(["--credentials"] if credentials else []), *JSON)
        assert ran.code == 0, ran.err
        return str(ran.document["key"])

    return exported


@pytest.fixture
def restore(command: Resnap, store: Path, tmp_path: Path) -> Callable[..., Ran]:
    """Restore into a new cluster, whose log dir is ``data``."""
    data = formatted(tmp_path / "data")

    def restored(*more: object) -> Ran:
        return command("restore", store.as_uri(), "--into", data, "--new-cluster", data, *more, *JSON)

    return restored


def test_share_groups_that_were_seen_are_named(export: Callable[..., str], restore: Callable[..., Ran]) -> None:
    export({}, share_groups=("sharers",))
    ran = restore()
    assert ran.code == 0, ran.err
    assert "the offsets of 1 share group (sharers) are not restored" in " ".join(ran.err.split())


def state_of(ran: Ran) -> Any:
    return ran.document["summary"]["newCluster"]["clusterState"]


@pytest.mark.parametrize("form", FORMS)
def test_what_was_exported_comes_into_the_metadata_of_the_new_cluster(
    command: Resnap, export: Callable[..., str], store: Path, tmp_path: Path, form: str
) -> None:
    export({}, BROKER, PASSWORD, QUOTA, ENTRY, CREDENTIAL)
    data = formatted(tmp_path / form[:9], form=form)
    words = ("restore", store.as_uri(), "--into", data, "--new-cluster", data, *JSON)
    ran = command(*words)
    assert ran.code == 0, ran.err
    assert records(data, AccessControlEntryRecord, form) == [ENTRY]
    assert records(data, ClientQuotaRecord, form) == [QUOTA]
    assert records(data, UserScramCredentialRecord, form) == [CREDENTIAL]
    assert records(data, ConfigRecord, form) == [BROKER, RETENTION]
    assert "settings of single brokers are left out, which are of the lost machines: 1 (ssl.keystore" in ran.err
    found = state_of(ran)
    assert (found["accessControlEntries"], found["quotas"], found["scramCredentials"]) == (1, 1, 1)
    assert "how many partitions it had is not known" not in ran.err
    assert "partitions 2, 3, 4: they begin empty" in ran.err
    written = (data / form).read_bytes()
    assert (command(*words).code, (data / form).read_bytes()) == (0, written)


def test_who_has_a_credential_of_an_older_export_is_named(
    export: Callable[..., str], restore: Callable[..., Ran]
) -> None:
    export({}, CREDENTIAL)
    export({}, CREDENTIAL, number=2, end_offset=200, credentials=False)
    ran = restore()
    assert (ran.code, state_of(ran)["scramCredentials"]) == (0, 1), ran.err
    said = f"SCRAM credentials of {CREDENTIAL.name} are of an older export: set those again that were changed since"
    assert said in " ".join(ran.err.split())


def test_offsets_come_as_files_for_kafkas_tool_and_are_cut_to_the_log_end(
    export: Callable[..., str], restore: Callable[..., Ran], tmp_path: Path
) -> None:
    export({"billing": {FIRST: 7, SECOND: FAR}, "a/b": {FIRST: 1}, "lost": {OTHER: 3}})
    offsets = tmp_path / "offsets"
    planned = restore("--dry-run", "--offsets-to", offsets)
    assert (planned.code, offsets.exists()) == (0, False)
    ran = restore("--offsets-to", offsets)
    assert ran.code == 0, ran.err
    end = next(row["endOffset"] for row in ran.document["partitions"] if row["partition"] == 1)
    assert (offsets / "billing.csv").read_text() == f"payments,0,7\npayments,1,{end}\n"
    assert (offsets / "a=2Fb.csv").read_text() == "payments,0,1\n"
    assert sorted(path.name for path in offsets.iterdir()) == ["a=2Fb.csv", "billing.csv", "reset-offsets.sh"]
    assert f"billing at payments-1 from {FAR} to {end}" in ran.err
    assert "offsets in topics that were not restored are left out: gone" in ran.err
    script = (offsets / "reset-offsets.sh").read_text()
    assert "--group a/b --reset-offsets --from-file a=2Fb.csv --execute\n" in script
    assert state_of(ran)["groups"][1] == {
        "group": "billing", "file": "billing.csv", "offsets": 2,
        "cut": [{"topic": "payments", "partition": 1, "committedOffset": FAR, "endOffset": end}],
    }  # fmt: skip
    assert state_of(planned)["groups"] == state_of(ran)["groups"]


def test_offsets_that_are_known_and_not_written_are_named(
    export: Callable[..., str], restore: Callable[..., Ran]
) -> None:
    export({"billing": {FIRST: 7}})
    ran = restore()
    assert (ran.code, "the offsets of 1 consumer group are known: with --offsets-to DIR" in ran.err) == (0, True)


def test_what_nodes_know_is_put_together_and_a_named_object_is_taken_alone(
    export: Callable[..., str], restore: Callable[..., Ran], tmp_path: Path
) -> None:
    first = export({"billing": {FIRST: 1}, "audit": {FIRST: 1}}, ENTRY)
    second = export({"billing": {FIRST: 5}}, number=2, end_offset=200)
    ran = restore("--offsets-to", tmp_path / "all")
    assert (ran.code, state_of(ran)["objects"]) == (0, [first, second])
    assert state_of(ran)["accessControlEntries"] == 0, "node 2 has read more of the metadata log"
    assert (tmp_path / "all" / "billing.csv").read_text() == "payments,0,1\n", "node 1 has read more of the partition"
    alone = restore("--cluster-state", second, "--offsets-to", tmp_path / "alone")
    assert (alone.code, state_of(alone)["objects"]) == (0, [second])
    assert (tmp_path / "alone" / "billing.csv").read_text() == "payments,0,5\n"
    for nothing in ("other", "../../../../etc/passwd", f"{second[:-6]}9.json"):
        refused = restore("--cluster-state", nothing)
        assert (refused.code, f"--cluster-state {nothing}: " in refused.err) == (2, True), refused.err


def test_offsets_of_another_topic_of_the_same_name_are_left_out(
    export: Callable[..., str], restore: Callable[..., Ran], tmp_path: Path
) -> None:
    export({"billing": {FIRST: 1}}, of="j4HddtbpRpaN2jZcdru3GQ")
    ran = restore("--offsets-to", tmp_path / "offsets")
    assert (ran.code, state_of(ran)["groups"], state_of(ran)["offsetsLeftOut"]) == (0, [], ["payments"])
    assert "how many partitions it had is not known" in ran.err


def test_a_store_without_an_export_is_named(restore: Callable[..., Ran]) -> None:
    ran = restore()
    assert (ran.code, "the store has no state of the cluster" in ran.err, state_of(ran)) == (0, True, None)


def test_damage_of_an_exported_object_ends_the_run_before_anything_is_written(
    export: Callable[..., str], restore: Callable[..., Ran], store: Path, tmp_path: Path
) -> None:
    path = store / export({})
    path.write_bytes(path.read_bytes()[:-3])
    ran = restore()
    assert (ran.code, str(path.name) in ran.err, list((tmp_path / "data").glob("payments-*"))) == (1, True, [])


def test_what_is_for_a_new_cluster_is_refused_without_one(command: Resnap, store: Path, tmp_path: Path) -> None:
    ran = command("restore", store.as_uri(), "--into", tmp_path / "into", "--offsets-to", tmp_path / "offsets")
    assert (ran.code, "are for a new cluster" in ran.err) == (2, True)
