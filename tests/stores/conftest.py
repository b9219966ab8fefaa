"""Servers as fixtures: each is started once for a test file, and what was not built is skipped, aloud."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.scheduler.conftest import command, producers_stay, resnap
from tests.stores.servers import BINARIES, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.stores.servers import Kind, Server

__all__ = ["command", "producers_stay", "resnap"]
REQUIRED = frozenset(filter(None, os.environ.get("RESNAP_TEST_STORES_REQUIRED", "").split(",")))
"""Names of servers without which the tests fail; CI names those that it has built."""


@pytest.fixture(autouse=True)
def _no_aws_of_this_machine(no_aws_of_this_machine: None) -> None:
    """For all tests here."""


@pytest.fixture(scope="module")
def certificates() -> Iterator[Path]:
    """A directory with a certificate of 127.0.0.1 that signs itself, and its key."""
    with tempfile.TemporaryDirectory(prefix="resnap-tls-") as directory:
        subprocess.run(
            [
                "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
                "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "private.key", "-out", "public.crt",
            ],
            cwd=directory, check=True, capture_output=True,
        )  # fmt: skip
        for name, of_rustfs in (("private.key", "rustfs_key.pem"), ("public.crt", "rustfs_cert.pem")):
            Path(directory, of_rustfs).hardlink_to(Path(directory, name))
        yield Path(directory)


@pytest.fixture(scope="module")
def server_of() -> Iterator[Callable[..., Server]]:
    """Start a server of a kind, once."""
    memory = Path("/dev/shm")  # noqa: S108 - a directory of the test's own is made in it
    root = Path(tempfile.mkdtemp(prefix="resnap-stores-", dir=memory if os.access(memory, os.W_OK) else None))
    with ExitStack() as servers:

        @cache
        def started(kind: Kind, certificates: Path | None = None) -> Server:
            if not kind.binary.exists():
                missing = f"{kind.name} is not in {BINARIES}: run tests/stores/build {kind.name}"
                if kind.name in REQUIRED:
                    pytest.fail(missing)
                pytest.skip(missing)
            where = root / f"{kind.name}{'-tls' if certificates else ''}"
            return servers.enter_context(running(kind, where, certificates))

        yield started
    shutil.rmtree(root)
