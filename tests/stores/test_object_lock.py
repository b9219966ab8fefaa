"""``resnap repair`` in buckets of real servers that lock objects."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pytest

from tests.scheduler.unfit_stores import ENGINE, Plugins, Scene
from tests.stores.servers import MINIO, VERSITYGW

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Ran, Resnap
    from tests.stores.servers import Kind, Server

    Sets = Callable[[str], FixtureSet]
    Servers = Callable[..., Server]

pytestmark = [pytest.mark.stores, pytest.mark.usefixtures("producers_stay")]
BUCKET: Final = "locked"


class Locked:
    """A bucket with object lock that holds what the plugin tiered, with wrong parts in its second and third segment."""

    def __init__(self, server: Server, scene: Scene) -> None:
        self.client: S3Client = server.client()
        self.client.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
        for key, body in scene.contents().items():
            self.client.put_object(Bucket=BUCKET, Key=key, Body=body)
        self._command = scene.command
        self._flags = ("--s3-endpoint-url", server.url, "--s3-region", "us-east-1", "--s3-addressing-style", "path")
        self._variables = {"AWS_ACCESS_KEY_ID": server.kind.access, "AWS_SECRET_ACCESS_KEY": server.kind.secret}

    def run(self, *arguments: str) -> Ran:
        return self._command(*arguments, f"s3://{BUCKET}", *ENGINE, *self._flags, **self._variables)

    def hold(self, key: str, status: str) -> None:
        self.client.put_object_legal_hold(Bucket=BUCKET, Key=key, LegalHold={"Status": status})  # type: ignore[typeddict-item]


@pytest.fixture
def scene(command: Resnap, fixture_set: Sets, tmp_path: Path) -> Scene:
    shutil.copytree(fixture_set("kafka-3.9.1-aiven-plain").remote, tmp_path / "store")
    scene = Scene(Plugins(tmp_path / "store", None), command)
    scene.damage()
    return scene


@pytest.mark.parametrize("kind", [pytest.param(VERSITYGW, id="refuses"), pytest.param(MINIO, id="keeps versions")])
def test_what_is_locked_is_named_or_kept_as_an_older_version(scene: Scene, server_of: Servers, kind: Kind) -> None:
    bucket, replaces = Locked(server_of(kind), scene), kind is MINIO
    key = str(scene.files.segments[1].relative_to(scene.files.store))
    bucket.hold(key, "ON")
    ran = bucket.run("repair")
    summary = ran.document["summary"]
    assert (ran.code, summary["snapshots"], summary["notRepaired"]) == ((0, 2, 0) if replaces else (3, 1, 1)), ran.err
    assert replaces or "locks the object: run again when that has ended" in ran.error["hint"]
    bucket.hold(key, "OFF")
    again = bucket.run("repair")
    assert (again.code, again.document["summary"]["snapshots"]) == (0, 0 if replaces else 1), again.err
    assert bucket.run("verify", "--store").code == 0
