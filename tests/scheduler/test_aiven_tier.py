"""What ``tier --layout aiven`` writes is what the plugin wrote; what it leaves out is not needed."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from resnap.storage.encryption import KeyRing, RsaKey
from resnap.storage.key_file import KeyFile
from resnap.storage.layouts.aiven.manifest import read_manifest
from resnap.storage.layouts.aiven.members import Member, parse_key
from resnap.storage.sources.files import Sources
from tests.fixture_sets import AIVEN
from tests.scheduler.shipped import files_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Bucket, Ran, Resnap

    Sets = Callable[[str], FixtureSet]

PLAIN, ZSTD, ENCRYPTED, HEURISTIC = (
    f"kafka-3.9.1-aiven-{name}" for name in ("plain", "zstd", "encrypted", "heuristic")
)
JSON: Final = ("--output", "json", "-q")
HOW: Final = ("--engine", "local", "--as-of", "roll", *JSON)
FORMS: Final = {
    PLAIN: [],
    ZSTD: ["--chunk-compression", "zstd"],
    HEURISTIC: ["--chunk-compression", "heuristic"],
}


def form_of(fixture: FixtureSet) -> list[str]:
    """Return the flags that write as the plugin of a set was configured."""
    public = f"key1={fixture.root / 'keys' / 'public.pem'}"
    own = ["--encryption-public-key", public] if fixture.name == ENCRYPTED else FORMS[fixture.name]
    return ["--layout", "aiven", "--key-prefix", "tiered/", "--chunk-size", "4096", *own]


def key_of(fixture: FixtureSet) -> list[str]:
    private = f"key1={fixture.root / 'keys' / 'private.pem'}"
    return ["--encryption-private-key", private] if fixture.name == ENCRYPTED else []


def tier(command: Resnap, fixture: FixtureSet, store: Path, *arguments: object) -> Ran:
    store.mkdir(exist_ok=True)
    form = arguments or form_of(fixture)
    return command("tier", fixture.data, "--topic", "payments", "--to", store.as_uri(), *form, *HOW)


def objects(root: Path) -> dict[tuple[int, int, str], tuple[str, bytes]]:
    """Return ids and bytes of all objects of the layout below ``root``, by partition, base offset and suffix."""
    found = {}
    for path in root.rglob("*"):
        place = parse_key(str(path.relative_to(root))) if path.is_file() else None
        if place is not None:
            found[place.partition, place.base_offset, place.suffix] = (place.segment_id, path.read_bytes())
    return found


def as_theirs(ours: tuple[str, bytes], theirs: tuple[str, bytes]) -> bytes:
    """Return our manifest with the two things that the plugin was given by the broker: an id and a time."""
    (our_id, body), (their_id, golden) = ours, theirs
    event = re.search(rb'"eventTimestampMs":\d+', golden)
    assert event is not None
    return re.sub(rb'"eventTimestampMs":\d+', event[0], body.replace(our_id.encode(), their_id.encode()))


@pytest.fixture(scope="module")
def written() -> dict[str, Path]:
    """Stores that a test of this module has filled, by set."""
    return {}


@pytest.fixture
def tiered(
    command: Resnap, fixture_set: Sets, written: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Give a store with what ``tier`` makes of the log dir of a set; no test may change it."""

    def filled(name: str) -> Path:
        if name not in written:
            store = tmp_path_factory.mktemp("tiered")
            ran = tier(command, fixture_set(name), store)
            assert ran.code == 0, ran.err
            written[name] = store
        return written[name]

    return filled


@pytest.mark.parametrize("name", [PLAIN, HEURISTIC])
def test_plain_objects_are_those_of_the_plugin_byte_for_byte(
    name: str, tiered: Callable[[str], Path], fixture_set: Sets
) -> None:
    ours, theirs = objects(tiered(name)), objects(fixture_set(name).remote)
    assert ours.keys() == theirs.keys()
    for place, golden in theirs.items():
        body = as_theirs(ours[place], golden) if place[2] == "rsm-manifest" else ours[place][1]
        assert body == golden[1], place


def members(root: Path, fixture: FixtureSet) -> dict[str, bytes]:
    """Return every file of every segment below ``root``, by partition, base offset and suffix."""
    private = fixture.root / "keys" / "private.pem"
    ring = KeyRing((RsaKey("key1", KeyFile.read(private)),)) if private.exists() else KeyRing()
    sources, found = Sources(keys=ring), {}
    for path in root.rglob("*.rsm-manifest"):
        stem = path.with_suffix("").as_uri()
        indexes = read_manifest(path.read_bytes()).indexes
        for suffix in ("log", "index", "timeindex", "snapshot", "leader-epoch-checkpoint", "txnindex"):
            if suffix != "txnindex" or indexes["transaction"] is not None:
                name = f"{path.parent.name}/{path.name[:20]}.{suffix}"
                found[name] = sources.read(Member(stem, suffix).locator)
    return found


@pytest.mark.parametrize("name", [ZSTD, ENCRYPTED])
def test_other_objects_hold_what_those_of_the_plugin_hold(
    name: str, tiered: Callable[[str], Path], fixture_set: Sets
) -> None:
    fixture = fixture_set(name)
    assert members(tiered(name), fixture) == members(fixture.remote, fixture) != {}
    ours, theirs = objects(tiered(name)), objects(fixture.remote)
    assert ours.keys() == theirs.keys()
    for place, golden in theirs.items():
        if place[2] != "rsm-manifest":
            continue
        # What was drawn, and how well a chunk was compressed, is theirs and ours; all else is the same.
        own = rb'"(dataKey|aad|transformedChunks)":"[^"]+"'
        assert re.sub(own, b"", as_theirs(ours[place], golden)) == re.sub(own, b"", golden[1])


@pytest.mark.parametrize("name", AIVEN)
def test_what_is_shipped_is_not_shipped_again(
    name: str, command: Resnap, tiered: Callable[[str], Path], fixture_set: Sets
) -> None:
    before = files_of(tiered(name))
    ran = tier(command, fixture_set(name), tiered(name))
    assert ran.code == 0, ran.err
    assert ran.document["summary"]["shipped"] == 0
    assert ran.document["summary"]["already"] == len(list(tiered(name).rglob("*.rsm-manifest")))
    assert files_of(tiered(name)) == before


def test_what_a_broker_has_tiered_is_not_shipped_again(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    fixture = fixture_set(PLAIN)
    shutil.copytree(fixture.remote, tmp_path / "store")
    (gone,) = tmp_path.glob(f"store/tiered/*/0/{149:020d}-*.rsm-manifest")
    gone.unlink()
    ran = tier(command, fixture, tmp_path / "store")
    assert (ran.code, ran.document["summary"]["shipped"]) == (0, 1)
    assert ran.document["summary"]["already"] == 6
    assert len(list(gone.parent.glob(f"{149:020d}-*.rsm-manifest"))) == 1
    assert len(list(gone.parent.glob(f"{149:020d}-*.log"))) == 2, "the broker's may be under way"


@pytest.mark.parametrize("name", AIVEN)
def test_a_store_is_read_back_whichever_program_filled_it(
    name: str, command: Resnap, tiered: Callable[[str], Path], fixture_set: Sets
) -> None:
    fixture = fixture_set(name)
    for store in (tiered(name), fixture.remote):
        ran = command("verify", "--store", store.as_uri(), *HOW, *key_of(fixture))
        assert ran.code == 0, ran.err
        summary, segments = ran.document["summary"], len(list(store.rglob("*.rsm-manifest")))
        assert (summary["segments"], summary["different"]) == (segments, 0)
        assert (summary["snapshotsReplayed"], summary["snapshotsDifferent"]) == (segments, 0)
        assert [chain["gaps"] for chain in summary["chains"]] == [[], []]


@pytest.mark.slow
@pytest.mark.s3
def test_a_bucket_is_filled_and_read_back_like_a_directory(command: Resnap, bucket: Bucket, fixture_set: Sets) -> None:
    fixture = fixture_set(ENCRYPTED)
    there = [*bucket.flags, *HOW]
    ran = command(
        "tier", fixture.data, "--topic", "payments", "--to", f"{bucket.url}/some", *form_of(fixture), *there,
        **bucket.variables,
    )  # fmt: skip
    assert (ran.code, ran.document["summary"]["shipped"]) == (0, 8), ran.err
    places = {place for key in bucket.objects() if (place := parse_key(key))}
    assert len(places) == 24
    ran = command("verify", "--store", f"{bucket.url}/some", *key_of(fixture), *there, **bucket.variables)
    assert ran.code == 0, ran.err
    assert ran.document["summary"]["snapshotsReplayed"] == 8


def damaged(path: Path, at: int) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(body)


@pytest.mark.parametrize("place", [(PLAIN, "log", 700), (ENCRYPTED, "log", 700), (PLAIN, "indexes", 7),
                                   (PLAIN, "indexes", 300)])  # fmt: skip
def test_a_changed_byte_is_reported_with_its_object(
    place: tuple[str, str, int], command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    name, suffix, at = place
    fixture = fixture_set(name)
    store = shutil.copytree(fixture.remote, tmp_path / "store")
    changed = sorted(store.rglob(f"0/*.{suffix}"))[1]
    damaged(changed, at)
    ran = command("verify", "--store", store.as_uri(), *HOW, *key_of(fixture))
    assert ran.code in {3, 13}
    assert changed.stem in ran.err
    assert ran.document["summary"]["different"] == 1


def test_gc_deletes_nothing_in_this_layout(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    """A log without a manifest may be a broker's upload that is under way."""
    store = shutil.copytree(fixture_set(PLAIN).remote, tmp_path / "store")
    for path in store.rglob("*.rsm-manifest"):
        path.unlink()
    before = files_of(store)
    ran = command("gc", store.as_uri(), "--older-than", "0s", "--delete", "--no-other-writers", *JSON)
    assert ran.code == 0, ran.err
    assert files_of(store) == before != {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--key-prefix", "tiered/"],
        ["--layout", "flat", "--chunk-size", "4096"],
        ["--layout", "local-tiered", "--chunk-compression", "zstd"],
        ["--layout", "aiven", "--chunk-size", "0"],
        ["--layout", "aiven", "--chunk-size", "1GiB"],
        ["--layout", "plugin"],
    ],
)
def test_settings_that_mean_nothing_are_a_usage_error(
    arguments: list[Any], command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    ran = tier(command, fixture_set(PLAIN), tmp_path / "store", *arguments)
    assert ran.code == 2
    assert files_of(tmp_path / "store") == {}


def test_a_key_prefix_that_would_be_read_as_part_of_the_topic_is_refused(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    ran = tier(command, fixture_set(PLAIN), tmp_path / "store", "--layout", "aiven", "--key-prefix", "not/a topic")
    assert (ran.code, "its part 'a topic' would be read as part of the topic" in ran.err) == (10, True)
    assert files_of(tmp_path / "store") == {}


def test_without_a_topic_id_there_is_no_key(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    fixture = fixture_set("kafka-2.7.2")
    ran = tier(command, fixture, tmp_path / "store", "--layout", "aiven")
    assert "topic-id-unknown" in ran.out
    assert not list(tmp_path.glob("store/payments*"))


@pytest.mark.parametrize(("layout", "longest"), [("aiven", 177), ("local-tiered", 175)])
def test_a_topic_whose_name_no_store_is_sure_to_keep_in_a_key_is_refused_by_name(
    command: Resnap, fixture_set: Sets, tmp_path: Path, layout: str, longest: int
) -> None:
    refused_too = {"active-segment", "topic-name-too-long"}
    for length, reasons in ((longest, {"active-segment"}), (longest + 1, refused_too), (249, refused_too)):
        data, store = tmp_path / f"data-{length}", tmp_path / f"store-{length}"
        shutil.copytree(fixture_set(PLAIN).data / "payments-0", data / f"{'t' * length}-0")
        ran = command("tier", data, "--to", store.as_uri(), "--layout", layout, "--high-watermark", "9999", *HOW)
        (row,) = ran.document["partitions"]
        assert {refused["reason"] for refused in row["refused"]} == reasons, ran.err
        assert bool(list(store.rglob("*.log"))) is (length == longest)


def test_chunks_may_be_larger_than_any_segment(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    ran = tier(command, fixture_set(PLAIN), tmp_path / "store", "--layout", "aiven", "--chunk-size", f"{(1 << 30) - 1}")
    assert ran.code == 0, ran.err
    (manifest, *_) = sorted((tmp_path / "store").rglob("*.rsm-manifest"))
    assert read_manifest(manifest.read_bytes()).chunks.chunk_size == (1 << 30) - 1


def test_a_file_of_settings_for_this_layout_does_not_prevent_another(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    settings = tmp_path / "resnap.toml"
    settings.write_text('chunk-size = "4KiB"\n[encryption-public-key]\nkey1 = "nowhere.pem"\n')
    assert command("scan", fixture_set(PLAIN).data, "--config", settings).code == 0
    ran = tier(command, fixture_set(PLAIN), tmp_path / "store", "--layout", "aiven", "--config", settings)
    assert (ran.code, "nowhere.pem: cannot be read" in ran.err) == (10, True)


def test_only_brokers_delete_in_it(command: Resnap, fixture_set: Sets, tmp_path: Path) -> None:
    store = shutil.copytree(fixture_set(PLAIN).remote, tmp_path / "store")
    before = files_of(store)
    for url in (store.as_uri(), f"{store.as_uri()}/tiered"):
        ran = command("retain", url, "--retention", "1s", "--delete", *JSON)
        assert (ran.code, "retention.ms" in ran.error["hint"]) == (2, True)
    assert files_of(store) == before


def test_a_wrong_key_is_reported_as_such_and_no_hint_says_to_delete_anything(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    RSA = pytest.importorskip("Crypto.PublicKey.RSA")  # noqa: N806 - a module
    (tmp_path / "other.pem").write_bytes(RSA.generate(2048).export_key(pkcs=8))
    store = fixture_set(ENCRYPTED).remote.as_uri()
    ran = command("verify", "--store", store, "--encryption-private-key", f"key1={tmp_path / 'other.pem'}", *HOW)
    assert (ran.code, ran.error["type"], "delete" in ran.err) == (10, "ConfigurationError", False)
    assert "'key1'" in ran.error["message"]


def test_of_a_damaged_segment_it_is_asked_first_whether_brokers_know_it(
    command: Resnap, fixture_set: Sets, tmp_path: Path
) -> None:
    """Without its manifest a segment whose local copies are gone would be lost for good."""
    fixture = fixture_set(PLAIN)
    for change, suffix in ((lambda path: path.unlink(), "log"), (lambda path: path.write_bytes(b"{"), "rsm-manifest")):
        store = shutil.copytree(fixture.remote, tmp_path / suffix)
        change(sorted(store.rglob(f"0/*.{suffix}"))[1])
        for ran in (
            command("verify", "--store", store.as_uri(), *HOW),
            command("scan", f"{store.as_uri()}/tiered", *JSON),
            tier(command, fixture, store),
        ):
            hints = [line["error"]["hint"] for line in map(json.loads, ran.err.splitlines()) if "error" in line]
            assert (ran.code != 0, "whether they know it" in hints[0]) == (True, True), ran.err
