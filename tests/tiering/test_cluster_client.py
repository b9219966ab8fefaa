"""What the door to a cluster says where nobody opens; the rest needs brokers, and is in ``tests/kafka``."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from storage.errors import ClusterError
from tiering.cluster.client import Cluster

PATIENCE_MS = 3_000
"""Enough for one attempt, on however slow a machine."""


def test_where_nobody_listens_it_says_that_the_connection_was_refused() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"^cannot connect to {address}: .*ECONNREFUSED"):
            Cluster(address, {}, patience_ms=PATIENCE_MS)


def test_of_a_broker_that_hangs_up_it_says_so_and_what_that_may_mean() -> None:
    def hang_up() -> None:
        with suppress(OSError):  # until it is closed
            while True:
                listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        broker = threading.Thread(target=hang_up)
        broker.start()
        try:
            with pytest.raises(ClusterError, match=f"^cannot connect to {address}: .*(disconnected|reset)") as caught:
                Cluster(address, {}, patience_ms=PATIENCE_MS)
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            broker.join()
    assert "wrong credentials" in (caught.value.hint or "")
