"""200 clients of a service that replays: nothing is lost, doubled or left behind. How fast it is, no test asks.

``python -m tests.benchmarks service`` measures; half an hour at a time is for the nightly run, a few seconds for each.
"""

from __future__ import annotations

import re
import shutil
import socket
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from tests.benchmarks.datasets import LogOptions, LogStore
from tests.load.accounts import faults
from tests.load.under_load import UnderLoad, clients, seen, under_load
from tests.scheduler.api.whole import FINAL
from tests.scheduler.daemon.process import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

pytestmark = pytest.mark.slow

STREAMS: Final = 150
POLLERS: Final = 50
LOUD: Final = 5
"""Streams of those who read, beside others who do not."""
PARTITIONS: Final = 30
SMALL: Final = LogOptions(size_bytes=8 << 20, batch_bytes=200, segment_bytes=512 << 10, producers=200)
ROOM_BYTES: Final = 400 << 20
"""What 200 clients may add to a service that takes about 300 MB; each of them could have a megabyte and more."""
HALF_AN_HOUR_S: Final = 1800
MAY_GROW: Final = 1.1
"""The last third of the time against the first."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnderLoad]:
    directory = tmp_path_factory.mktemp("load")
    with under_load(directory, LogStore(directory / "logs").log(SMALL), PARTITIONS) as found:
        yield found


def streams_open(client: httpx.Client) -> int:
    found = re.search(r"^resnap_event_streams (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def test_two_hundred_clients_get_every_event_once_and_leave_nothing_behind(service: UnderLoad) -> None:
    before = service.usage()
    found = seen(clients(service.orders(streams=STREAMS, pollers=POLLERS)))
    assert found.errors == []
    assert [run["state"] for run in found.runs] == ["succeeded"]
    assert len(found.streams) == STREAMS
    assert faults(found) == []
    assert {Counter(one.kinds)["partition"] for one in found.streams} == {PARTITIONS}
    assert {one.last_state for one in found.streams} == {"succeeded"}
    assert found.reads
    assert service.usage().rss_bytes < before.rss_bytes + ROOM_BYTES
    with service.process.client() as client:
        eventually(lambda: streams_open(client), lambda count: count == 0)
    eventually(lambda: service.usage().files, lambda files: files < before.files + STREAMS // 2)


def test_clients_that_never_read_or_that_vanish_block_no_other_client(service: UnderLoad) -> None:
    with service.process.client() as client:
        at = client.post("/v1/replays", json=service.replays(1)[0]).headers["location"]
        silent = [deaf_follower(service.port, f"{at}/events") for _ in range(20)]
        eventually(lambda: streams_open(client), lambda count: count == len(silent))
        for vanished in silent[::2]:
            # At once and without a close, as a client that is killed.
            vanished.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            vanished.close()
        others = clients(service.orders(streams=LOUD, pollers=5))
        assert eventually(lambda: client.get(at).json()["state"], lambda state: state in FINAL) == "succeeded"
        eventually(lambda: streams_open(client), lambda count: count <= LOUD)
        for one in silent[1::2]:
            told = b"".join(iter(lambda one=one: one.recv(1 << 16), b""))
            assert told.count(b"event: partition") == PARTITIONS, "all of it was sent, and waits to be read"
            one.close()
        found = seen(others)
        assert (found.errors, faults(found)) == ([], [])
        eventually(lambda: streams_open(client), lambda count: count == 0)


def deaf_follower(port: int, path: str) -> socket.socket:
    """Ask for events and read nothing.

    The room for them is the kernel's own: where it is smaller than what comes, the server's kernel holds the rest, and
    forgets it some time after the close (in Linux 6.18 within a minute), whether it was read or not.
    """
    made = socket.socket()
    made.settimeout(PATIENCE_S)
    made.connect(("127.0.0.1", port))
    made.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    return made


@pytest.mark.heavy
def test_memory_is_flat_over_half_an_hour(service: UnderLoad, record_property: Callable[[str, object], None]) -> None:
    ends_s, resident = time.monotonic() + HALF_AN_HOUR_S, list[int]()
    out = service.process.directory / "out"
    while time.monotonic() < ends_s:
        running = clients(service.orders(replays=10, streams=STREAMS, pollers=POLLERS))
        found = seen(running, lambda: resident.append(service.usage().rss_bytes))
        assert (found.errors, faults(found)) == ([], [])
        shutil.rmtree(out)
    third = len(resident) // 3
    first, last = (sum(part) / third for part in (resident[:third], resident[-third:]))
    record_property("resident", {"first third": first, "last third": last, "most": max(resident)})
    assert last < MAY_GROW * first
