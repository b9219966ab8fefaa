"""An S3 protocol server on loopback, servers with canned answers, and disks that are small or read-only."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import boto3
import pytest
from moto.server import ThreadedMotoServer

from storage.remote.s3_settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

    from mypy_boto3_s3 import S3Client


@pytest.fixture(autouse=True)
def _no_aws_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the developer's own AWS configuration out of the tests, and botocore off the metadata address."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """URL of moto's server: right about keys, ranges, conditions and races; it accepts wrong checksums and any key."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_settings(s3_endpoint: str) -> S3Settings:
    return S3Settings(
        endpoint_url=s3_endpoint,
        region="us-east-1",
        access_key_id="testaccess",
        secret_access_key="testsecret123",
        addressing_style="path",
    )


@pytest.fixture(scope="session")
def s3_client(s3_endpoint: str) -> Iterator[S3Client]:
    """boto3 itself, to look at what the store under test did."""
    client = boto3.client(
        "s3",
        endpoint_url=s3_endpoint,
        region_name="us-east-1",
        aws_access_key_id="testaccess",
        aws_secret_access_key="testsecret123",
    )
    yield client
    client.close()


@pytest.fixture
def s3_bucket(s3_client: S3Client) -> str:
    """Name of a new, empty bucket."""
    name = f"bucket-{uuid4()}"
    s3_client.create_bucket(Bucket=name)
    return name


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a canned server says to one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    claimed_length: int | None = None
    """Content-Length, where it shall lie; the connection is closed after the body."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a canned server was asked."""

    method: str
    path: str
    headers: Message
    body: bytes


@dataclass
class CannedServer:
    """Gives its answers in order, the last one again and again, and keeps the requests."""

    url: str
    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def next_answer(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def canned_server() -> Iterator[CannedServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            canned.requests.append(Request(method=self.command, path=self.path, headers=self.headers, body=body))
            answer = canned.next_answer()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            length = len(answer.body) if answer.claimed_length is None else answer.claimed_length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            self.close_connection = answer.claimed_length is not None

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 - http.server's own names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of clients that hang up: that is what some tests are about."""

    server = Server(("127.0.0.1", 0), Handler)
    canned = CannedServer(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield canned
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system with room for one megabyte."""
    with _mounted(tmp_path / "tiny", "size=1m") as path:
        yield path


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system that nobody may write to, not even root."""
    with _mounted(tmp_path / "read-only", "size=1m,ro") as path:
        yield path


@contextmanager
def _mounted(path: Path, options: str) -> Iterator[Path]:
    path.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"NOT TESTED: mounting a tmpfs needs root and CAP_SYS_ADMIN: {mount.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder
        folder.chmod(0o777)


@pytest.fixture
def as_nobody() -> Iterator[None]:
    """Run the test without the powers of root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)
