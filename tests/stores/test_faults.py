"""Whatever goes wrong on the way to a store: success at another try, or a typed error with nothing wrong visible."""

from __future__ import annotations

import io
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import boto3
import pytest

from resnap.storage.crc32c import crc32c
from resnap.storage.errors import (
    FormatError,
    ResnapError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
    VerificationError,
)
from resnap.storage.layouts.manifest import read_manifest
from resnap.storage.layouts.segments import NewObject
from resnap.storage.stores.s3 import S3ObjectStore
from resnap.storage.stores.s3_settings import S3Settings
from resnap.storage.stores.s3_upload import PART_BYTES
from resnap.tiering.shipping.delivery import Delivery
from tests.stores.fault_proxy import (
    BUSY,
    CHANGES,
    LISTINGS,
    REFUSALS,
    RESETS,
    SWALLOWED,
    Call,
    Fault,
    FaultProxy,
    Reply,
    proxying,
)
from tests.stores.servers import ACCESS, SECRET, VERSITYGW
from tests.tiering.shipping import UPGRADED, check_objects, manifest_keys, manifests
from tests.tiering.test_uploader import ANOTHER_SNAPSHOT, Cargo, a_cargo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resnap.storage.crc32c import Buffer
    from resnap.storage.stores.protocol import ObjectStore
    from tests.fixture_sets import FixtureSet

pytestmark = pytest.mark.slow

SERVERS = [
    pytest.param("moto", marks=pytest.mark.s3),
    pytest.param("versitygw", marks=pytest.mark.stores),
]
"""One that takes anything, so that all is read back, and one whose own check is relied on."""
checking = pytest.mark.parametrize(
    "proxy", [pytest.param("moto", marks=[pytest.mark.s3, pytest.mark.heavy]), SERVERS[1]], indirect=True
)
"""For faults that do not depend on who compares the bytes."""
BODY = bytes(range(256)) * ((PART_BYTES >> 8) + 1)
"""Of two parts."""


@pytest.fixture(scope="module", params=SERVERS)
def proxy(request: pytest.FixtureRequest) -> Iterator[FaultProxy]:
    if request.param == "moto":
        upstream = request.getfixturevalue("s3_endpoint")
    else:
        upstream = request.getfixturevalue("server_of")(VERSITYGW).url
    with proxying(upstream) as made:
        yield made


@pytest.fixture
def settings(proxy: FaultProxy) -> S3Settings:
    proxy.set(None)
    return S3Settings(
        endpoint_url=proxy.url, region="us-east-1", access_key_id=ACCESS, secret_access_key=SECRET,
        addressing_style="path", max_attempts=4,
    )  # fmt: skip


@pytest.fixture
def bucket(proxy: FaultProxy) -> str:
    name = f"bucket-{uuid4()}"
    boto3.client(
        "s3", endpoint_url=proxy.upstream, region_name="us-east-1", aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
    ).create_bucket(Bucket=name)  # fmt: skip
    return name


@pytest.fixture
def store(settings: S3Settings, bucket: str) -> S3ObjectStore:
    """Give the store as seen through the proxy, which does no harm yet."""
    return S3ObjectStore(bucket, "", settings)


@pytest.fixture
def cargo(fixture_set: Callable[[str], FixtureSet]) -> Cargo:
    return a_cargo(fixture_set(UPGRADED).data)


def on(method: str, ending: str = "") -> Callable[[Call], bool]:
    """Pick the requests of a method for an object whose key ends so; not those of a probe or a lease."""

    def strikes(call: Call) -> bool:
        path = call.path.partition("?")[0]
        return call.method == method and path.endswith(ending) and "/.resnap/" not in path

    return strikes


def is_listing(call: Call) -> bool:
    return call.method == "GET" and "list-type=2" in call.path


PLACES = {
    "the log": on("PUT", ".log"),
    "the snapshot": on("PUT", ".snapshot"),
    "the manifest": on("PUT", ".manifest"),
    "a look at an object": on("HEAD"),
    "what is read back of the manifest": on("GET", ".manifest"),
    "a listing": is_listing,
    "anything": lambda _: True,
}


def unreadable(store: ObjectStore) -> list[str]:
    """Return the manifests that every reader refuses."""
    found = []
    for key in manifest_keys(store):
        try:
            read_manifest(store.get(key))
        except (FormatError, StoreUnavailableError):
            found.append(key)
    return found


def ship_through(proxy: FaultProxy, store: ObjectStore, cargo: Cargo) -> ResnapError | None:
    """Ship, make sure that nothing wrong is visible, and that one more run completes it; return what went wrong."""
    said: ResnapError | None = None
    try:
        cargo.ship(store)
    except ResnapError as error:
        said = error
    proxy.set(None)
    damaged = unreadable(store)
    assert not damaged or said is not None, "a manifest is read back, whatever the store is worth"
    for key in damaged:
        store.delete(key)  # as the error says; no reader takes it for a manifest
    for manifest in manifests(store):
        check_objects(store, manifest)
    if said is None:
        assert len(manifest_keys(store)) == 1
    cargo.ship(store)
    check_objects(store, manifests(store)[0])
    assert len(manifest_keys(store)) == 1
    return said


@checking
@pytest.mark.parametrize("place", ["the log", "the manifest", "a listing"])
@pytest.mark.parametrize("fault", [*RESETS, *BUSY[::2]], ids=lambda fault: fault.name)
def test_what_passes_is_tried_again_and_ends_well(
    proxy: FaultProxy, store: S3ObjectStore, cargo: Cargo, fault: Fault, place: str
) -> None:
    proxy.set(fault, PLACES[place])
    assert ship_through(proxy, store, cargo) is None


@checking
@pytest.mark.parametrize("fault", [*RESETS[:1], *BUSY[:1]], ids=lambda fault: fault.name)
def test_what_does_not_pass_ends_in_an_error_that_says_so(
    proxy: FaultProxy, store: S3ObjectStore, cargo: Cargo, fault: Fault
) -> None:
    proxy.set(fault, PLACES["the snapshot"], times=1000)
    assert isinstance(ship_through(proxy, store, cargo), StoreUnavailableError)


@checking
@pytest.mark.parametrize("place", ["the log", "a listing"])
@pytest.mark.parametrize("fault", REFUSALS, ids=lambda fault: fault.name)
def test_a_refusal_is_reported_at_once_as_such(
    proxy: FaultProxy, store: S3ObjectStore, cargo: Cargo, fault: Fault, place: str
) -> None:
    proxy.set(fault, PLACES[place])
    said = ship_through(proxy, store, cargo)
    assert isinstance(said, StoreError)
    assert isinstance(said, StoreAccessError) is (fault.name != "501 NotImplemented")
    assert not said.transient


@pytest.mark.parametrize("place", ["the log", "the manifest"])
@pytest.mark.parametrize("fault", CHANGES, ids=lambda fault: fault.name)
def test_bytes_that_change_on_their_way_never_end_under_a_manifest(
    proxy: FaultProxy, store: S3ObjectStore, cargo: Cargo, fault: Fault, place: str
) -> None:
    proxy.set(fault, PLACES[place])
    ship_through(proxy, store, cargo)


@pytest.mark.parametrize("place", ["the log", "the snapshot", "the manifest"])
@pytest.mark.parametrize("fault", [CHANGES[0], SWALLOWED], ids=lambda fault: fault.name)
def test_a_store_that_obeys_conditions_in_the_probe_alone_is_reported(
    proxy: FaultProxy, store: S3ObjectStore, cargo: Cargo, fault: Fault, place: str
) -> None:
    proxy.set(fault, PLACES[place], times=1000)
    assert isinstance(ship_through(proxy, store, cargo), StoreError | VerificationError)


@checking
@pytest.mark.parametrize("fault", LISTINGS, ids=lambda fault: fault.name)
def test_a_listing_that_is_not_true_does_no_harm(
    proxy: FaultProxy, store: S3ObjectStore, cargo: Cargo, fault: Fault
) -> None:
    cargo.ship(store)
    before = manifest_keys(store)
    proxy.set(fault, is_listing, times=1000)
    if fault.name == "repeated listing":
        with pytest.raises(StoreError, match="out of order"):
            cargo.ship(store)
    else:
        cargo.ship(store)
    proxy.set(None)
    assert manifest_keys(store) == before
    check_objects(store, manifests(store)[0])


class Careless(S3ObjectStore):
    """As stores are that ignore conditions; a proxy cannot take them out of a request that is signed."""

    def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:  # noqa: ARG002
        super().put(key, body)


def test_a_store_that_ignores_conditions_shows_nothing_wrong_with_runs_at_once(
    settings: S3Settings, bucket: str, fixture_set: Callable[[str], FixtureSet]
) -> None:
    data = fixture_set(UPGRADED).data
    cargos = [a_cargo(data), a_cargo(data), a_cargo(data, ANOTHER_SNAPSHOT)]
    together = threading.Barrier(len(cargos))
    unexpected: list[Exception] = []

    def ship(cargo: Cargo) -> None:
        together.wait()
        try:
            cargo.ship(Careless(bucket, "", settings))
        except ResnapError:
            pass
        except Exception as error:  # noqa: BLE001 - reported below, in the test's own thread
            unexpected.append(error)

    threads = [threading.Thread(target=ship, args=(cargo,)) for cargo in cargos]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = S3ObjectStore(bucket, "", settings)
    assert unexpected == []
    found = manifests(store)
    assert 1 <= len(found) <= 2
    for manifest in found:
        check_objects(store, manifest)


def is_part(call: Call) -> bool:
    return call.method == "PUT" and "partNumber=" in call.path


def is_completion(call: Call) -> bool:
    return call.method == "POST" and "uploadId=" in call.path


def is_beginning(call: Call) -> bool:
    return call.method == "POST" and call.path.endswith("uploads")


@checking
@pytest.mark.parametrize("strikes", [is_beginning, is_part, is_completion], ids=["beginning", "part", "completion"])
@pytest.mark.parametrize("fault", [*RESETS[:2], BUSY[0]], ids=lambda fault: fault.name)
def test_an_upload_in_parts_survives_what_passes_at_each_step(
    proxy: FaultProxy, store: S3ObjectStore, fault: Fault, strikes: Callable[[Call], bool]
) -> None:
    proxy.set(fault, strikes)
    store.put_stream("large", lambda: io.BytesIO(BODY), size_bytes=len(BODY), crc32c=crc32c(BODY))
    assert proxy.struck == 1
    proxy.set(None)
    assert store.get("large") == BODY


@checking
@pytest.mark.parametrize("fault", [*RESETS[:2], BUSY[0]], ids=lambda fault: fault.name)
def test_a_body_that_is_uploaded_while_it_is_read_is_sent_again_after_a_passing_fault(
    proxy: FaultProxy, store: S3ObjectStore, fault: Fault
) -> None:
    proxy.set(fault, on("PUT", "large"))
    store.put_stream(
        "large", lambda: io.BytesIO(BODY), size_bytes=len(BODY), crc32c=crc32c(BODY), sha256=sha256(BODY).hexdigest()
    )
    assert (proxy.struck, len(proxy.calls)) == (1, 2)
    proxy.set(None)
    assert store.get("large") == BODY


@pytest.mark.parametrize("fault", CHANGES[:2], ids=lambda fault: fault.name)
def test_a_body_changed_during_its_upload_is_sent_again_or_reported(
    proxy: FaultProxy, store: S3ObjectStore, fault: Fault
) -> None:
    """A store that checks refuses it; from one that does not it comes back different, or not at all."""
    delivery = Delivery(store=store)
    reads_back = delivery.reads_back
    proxy.set(fault, on("PUT", "large"))

    def deliver() -> None:
        body = NewObject("large", lambda: io.BytesIO(BODY), len(BODY), crc32c(BODY), sha256(BODY).hexdigest())
        delivery.deliver(body)

    if reads_back:
        with pytest.raises((StoreError, VerificationError), match="large"):
            deliver()
    else:
        deliver()
        assert store.get("large") == BODY
    assert proxy.struck == 1


@checking
@pytest.mark.parametrize("position", [0, 1, 65_536, len(BODY) // 2, len(BODY) - 1])
def test_a_download_goes_on_where_it_broke_off(proxy: FaultProxy, store: S3ObjectStore, position: int) -> None:
    def cut(call: Call, server: Callable[[Call], Reply]) -> Reply:
        reply = server(call)
        return Reply(status=reply.status, headers=reply.headers, body=reply.body, cut_at=position)

    store.put("object", BODY)
    proxy.set(Fault(name="cut", harm=cut), on("GET", "object"))
    with store.open("object") as chunks:
        assert b"".join(chunks) == BODY
    assert proxy.struck == 1
    assert len(proxy.calls) == 2


@checking
def test_a_download_that_breaks_off_is_not_gone_on_with_in_another_version(
    proxy: FaultProxy, store: S3ObjectStore
) -> None:
    def replace_and_cut(call: Call, server: Callable[[Call], Reply]) -> Reply:
        reply = server(call)
        other.put("object", bytes(len(BODY)))
        return Reply(status=reply.status, headers=reply.headers, body=reply.body, cut_at=len(BODY) // 2)

    other = store
    store.put("object", BODY)
    proxy.set(Fault(name="replaced", harm=replace_and_cut), on("GET", "object"))
    with pytest.raises(StoreError, match="replaced"), store.open("object") as chunks:
        assert b"".join(chunks) == BODY


@checking
def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_was_set(
    proxy: FaultProxy, store: S3ObjectStore, settings: S3Settings, bucket: str
) -> None:
    given_up = threading.Event()

    def stall(_call: Call, _server: Callable[[Call], Reply]) -> Reply:
        given_up.wait(60)
        return Reply(status=500)

    impatient = S3Settings(**{name: getattr(settings, name) for name in _names()} | {"read_timeout_s": 2.0})
    proxy.set(Fault(name="stalled", harm=stall), on("PUT", "key"))
    S3ObjectStore(bucket, "", impatient).put("key", b"body")
    given_up.set()
    proxy.set(None)
    assert store.get("key") == b"body"


def _names() -> list[str]:
    return [name for name in S3Settings.__slots__ if name != "read_timeout_s"]


@pytest.mark.heavy
@pytest.mark.parametrize("fault", [*RESETS, *BUSY, *CHANGES, *REFUSALS, *LISTINGS], ids=lambda fault: fault.name)
def test_any_fault_at_any_request_leaves_nothing_wrong_visible(
    proxy: FaultProxy, settings: S3Settings, fault: Fault, cargo: Cargo, bucket: str
) -> None:
    cargo.ship(S3ObjectStore(bucket, "count", settings))
    requests = len(proxy.calls)
    for number in range(requests):
        count = iter(range(10_000))

        def strikes(_: Call, count: Any = count, number: int = number) -> bool:
            return next(count) == number

        store = S3ObjectStore(bucket, f"at-{number}", settings)
        proxy.set(fault, strikes)
        ship_through(proxy, store, cargo)
