"""A request that is held up on its way to a real server, and reaches it when another run has done all of its work."""

from __future__ import annotations

from contextlib import suppress
from itertools import count
from threading import Event
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from resnap.storage.errors import ResnapError
from resnap.storage.stores.s3 import S3ObjectStore
from tests.stores.fault_proxy import Call, Fault, Reply, ResetError, proxying
from tests.stores.servers import GARAGE, MINIO, RCLONE, RUSTFS, SEAWEEDFS, STRICT, VERSITYGW
from tests.tiering.shipping import UPGRADED, manifest_keys
from tests.tiering.test_repair_schedules import check, scenes
from tests.tiering.test_two_holders import Actor, check_all
from tests.tiering.test_uploader import a_cargo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixture_sets import FixtureSet
    from tests.stores.servers import Kind, Server
    from tests.tiering.test_repair_schedules import Scene

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


@pytest.fixture(params=[VERSITYGW, MINIO, RUSTFS, SEAWEEDFS, GARAGE, RCLONE], ids=lambda kind: kind.name)
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


OTHERS: Final = ("undo", "repair", "gc")


@pytest.mark.parametrize(
    ("meanwhile", "kind"),
    [
        *((one, VERSITYGW) for one in ("undo repair", *OTHERS)),
        ("undo repair", MINIO),
        *(pytest.param(one, MINIO, marks=pytest.mark.heavy) for one in OTHERS),
    ],
    ids=lambda one: getattr(one, "name", one),
)
@pytest.mark.parametrize("late", ["aiven .rsm-manifest", "aiven .indexes", "flat .manifest", "flat .snapshot"])
def test_a_request_of_a_killed_repair_that_comes_late_destroys_nothing(
    late: str,
    meanwhile: str,
    kind: Kind,
    server_of: Callable[..., Server],
    fixture_set: Callable[[str], FixtureSet],
) -> None:
    """Each write of such a key is held in turn, until the others are done; after it nothing comes from that run."""
    layout, held = late.split()
    server, put = server_of(kind), scenes(layout, fixture_set)
    for number in (1, 2):
        bucket, calls, is_dead = server.new_bucket(), count(1), Event()
        scene = put(S3ObjectStore(bucket, "", server.settings()))

        def is_held(call: Call, calls: Iterator[int] = calls, number: int = number, is_dead: Event = is_dead) -> bool:
            return is_dead.is_set() or (is_change_of(held)(call) and next(calls) == number)

        def hold(call: Call, answer: Callable[[Call], Reply], scene: Scene = scene, is_dead: Event = is_dead) -> Reply:
            if not is_dead.is_set():
                is_dead.set()
                scene.do(scene.store, meanwhile)
                answer(call)
            raise ResetError

        with proxying(server.url) as proxy:
            proxy.set(Fault(name="held", harm=hold), is_held, times=1_000_000)
            scene.do(S3ObjectStore(bucket, "", server.settings(endpoint_url=proxy.url, max_attempts=1)), "repair")
        assert is_dead.is_set() or (held, number) in {(".indexes", 2), (".snapshot", 2)}
        assert not list(check(scene, "repair"))
