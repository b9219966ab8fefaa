"""A request that is held up on its way to a real server, and reaches it when another run has done all of its work."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest

from resnap.storage.errors import ResnapError
from resnap.storage.stores.s3 import S3ObjectStore
from tests.stores.fault_proxy import Call, Fault, Reply, proxying
from tests.stores.servers import GARAGE, MINIO, RCLONE, STRICT, VERSITYGW
from tests.tiering.shipping import UPGRADED, manifest_keys
from tests.tiering.test_two_holders import Actor, check_all
from tests.tiering.test_uploader import a_cargo

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixture_sets import FixtureSet
    from tests.stores.servers import Server

pytestmark = pytest.mark.stores


class Scene(NamedTuple):
    """What is done before, what is done late, the key of whose request, and what is done while that is held."""

    before: str
    late: str
    held: str
    meanwhile: str


def is_change_of(ending: str) -> Callable[[Call], bool]:
    """Pick what writes or deletes an object whose key ends so."""
    return lambda call: call.method in {"PUT", "DELETE"} and call.path.partition("?")[0].endswith(ending)


@pytest.fixture(params=[VERSITYGW, MINIO, GARAGE, RCLONE], ids=lambda kind: kind.name)
def server(request: pytest.FixtureRequest, server_of: Callable[..., Server]) -> Server:
    return server_of(request.param)


@pytest.fixture
def actor(fixture_set: Callable[[str], FixtureSet]) -> Actor:
    return Actor(a_cargo(fixture_set(UPGRADED).data))


@pytest.mark.parametrize(
    "scene",
    [
        Scene("", "tier", ".manifest", "tier retain"),
        Scene("", "tier", ".manifest", "gc"),
        Scene("", "tier", ".log", "tier retain"),
        Scene("tier", "retain", ".manifest", "retain tier"),
        Scene("tier", "retain", ".log", "tier"),
        Scene("tier", "retain", ".snapshot", "tier retain tier"),
        Scene("leave", "gc", ".manifest", "tier"),
        Scene("leave", "gc", ".log", "tier"),
    ],
)
def test_a_late_request_publishes_nothing_wrong_and_deletes_nothing(scene: Scene, server: Server, actor: Actor) -> None:
    """Without conditional writes a late manifest may lie; then the next run repairs it."""
    bucket = server.new_bucket()

    def store_at(url: str) -> S3ObjectStore:
        return S3ObjectStore(bucket, "", server.settings(endpoint_url=url))

    store = store_at(server.url)
    actor.do(store, scene.before)
    said: list[str | None] = []

    def hold(call: Call, answer: Callable[[Call], Reply]) -> Reply:
        with suppress(ResnapError):
            said.append(actor.do(store, scene.meanwhile))
        return answer(call)

    with proxying(server.url) as proxy:
        proxy.set(Fault(name="held", harm=hold), is_change_of(scene.held))
        with suppress(ResnapError):
            actor.do(store_at(proxy.url), scene.late)
        assert proxy.struck, "nothing was held"
    if server.kind in STRICT:
        check_all(store)
        assert all(key in manifest_keys(store) for key in said if key is not None)
    with suppress(ResnapError):
        actor.do(store, "tier")
    check_all(store)
    assert manifest_keys(store)
