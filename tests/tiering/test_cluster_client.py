"""Errors of the cluster client where no broker answers; the rest needs brokers, and is in ``tests/kafka``."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from resnap.storage.errors import ClusterError, UsageError
from resnap.tiering.cluster import connecting
from resnap.tiering.cluster.client import Cluster
from resnap.tiering.cluster.connecting import connect_in_time

OPEN_FILES = Path("/proc/self/fd")
PATIENCE_MS = 3_000
"""Enough for one attempt, on however slow a machine."""


def test_where_no_broker_listens_the_error_names_each_address_with_connection_refused() -> None:
    with socket.socket() as one, socket.socket() as other:
        for bound in (one, other):
            bound.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{bound.getsockname()[1]}" for bound in (one, other)]
        told = "; ".join(f"{address}: Connection refused" for address in addresses)
        with pytest.raises(ClusterError, match=f"^cannot connect to {told}$") as caught:
            Cluster(",".join(addresses), {})
    assert "socket.connection.setup.timeout.ms" in (caught.value.hint or "")


def test_where_connections_are_not_taken_it_says_for_how_long_it_waited() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as filling:
        place = listener.getsockname()[:2]
        for _ in range(3):  # connections that are not accepted fill the queue, and the kernel answers no more
            waiting = filling.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(place)
        address = f"{place[0]}:{place[1]}"
        with pytest.raises(ClusterError, match=f"^cannot connect to {address}: no answer within 0.3 s$"):
            Cluster(address, {}, setup_timeout_s=0.3)


@pytest.mark.parametrize("address", ["kafka", "kafka:", ":9092", "kafka:kafka", ""])
def test_an_invalid_address_is_a_usage_error(address: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        Cluster(f"127.0.0.1:9092,{address}", {})


def test_of_a_broker_that_hangs_up_it_says_so_and_what_that_may_mean() -> None:
    def hang_up() -> None:
        with suppress(OSError):  # until it is closed
            while True:
                listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        broker = threading.Thread(target=hang_up)
        broker.start()
        files = len([*OPEN_FILES.iterdir()])
        try:
            with pytest.raises(ClusterError, match=f"^cannot connect to {address}: .*(disconnected|reset)") as caught:
                Cluster(address, {}, patience_ms=PATIENCE_MS)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            broker.join()
        assert (len([*OPEN_FILES.iterdir()]), "kafka" in str(threading.enumerate())) == (files, False)
    assert "the credentials are wrong" in (caught.value.hint or "")


def test_a_broker_that_takes_a_connection_and_answers_no_handshake_of_tls_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one does whose process is stopped."""
    monkeypatch.setattr(connecting, "HANDSHAKE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"^cannot connect to {address}: .*no answer within 0.3 s$"):
            Cluster(address, {"security_protocol": "SSL"}, patience_ms=PATIENCE_MS)


def test_a_server_that_takes_a_connection_and_hangs_does_not_block_the_other_addresses() -> None:
    """The library stays with the one that it has chosen."""

    def connect(_wait_ms: int, some: list[str]) -> str:
        if "hangs" in some:
            raise TimeoutError
        return some[0]

    assert connect_in_time(connect, (OSError,), ["hangs", "answers"], PATIENCE_MS) == "answers"
