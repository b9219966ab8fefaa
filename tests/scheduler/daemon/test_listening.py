"""The socket that the service listens at."""

from __future__ import annotations

import resource
import socket
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.clock import Clock
from resnap.scheduler.commands.serve import FILES, GONE_MS, Daemon, _allow_files
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.service.services import Services
from resnap.storage.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def test_answers_do_not_wait_for_acknowledgements_nor_for_ever_for_who_is_gone(tmp_path: Path) -> None:
    flags = {"state_dir": str(tmp_path), "engine": "local", "listen": "127.0.0.1:0"}
    services = Services(Configuration(flags=flags, environment={}, directory=tmp_path), Clock())
    with Daemon(services)._listening() as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == GONE_MS
    services.database.close()


def test_a_port_that_is_taken_is_not_what_the_hint_names(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = {"state_dir": str(tmp_path), "engine": "local", "listen": f"127.0.0.1:{port}"}
        services = Services(Configuration(flags=flags, environment={}, directory=tmp_path), Clock())
        with pytest.raises(ConfigurationError, match="address already in use") as caught:
            Daemon(services)._listening()
    services.database.close()
    assert caught.value.hint is not None
    assert "name another port" in caught.value.hint
    assert str(port) not in caught.value.hint


def test_the_service_takes_as_many_files_as_it_may_have() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
        _allow_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, FILES), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
