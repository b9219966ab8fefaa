"""Real S3 servers on loopback, each in a process of its own with an empty directory."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from storage.remote.s3_settings import S3Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_s3 import S3Client

BINARIES: Final = Path(os.environ.get("RESNAP_TEST_STORES") or Path.home() / ".cache/resnap-stores")
ACCESS, SECRET = "testaccess", "testsecret123"
PATIENCE_S: Final = 300


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A server that ``tests/stores/build`` makes."""

    name: str
    arguments: tuple[str, ...]
    """With ``{port}``, ``{other}`` (another port) and ``{data}`` (an empty directory)."""
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    tls: tuple[str, ...] = ()
    """Arguments that make it speak TLS, with ``{certificates}``, a directory."""

    @property
    def binary(self) -> Path:
        return BINARIES / self.name


VERSITYGW: Final = Kind(
    name="versitygw",
    arguments=("--quiet", "--keep-alive", "--port", "127.0.0.1:{port}", "--access", ACCESS, "--secret", SECRET),
    tls=("--cert", "{certificates}/public.crt", "--key", "{certificates}/private.key"),
)
MINIO: Final = Kind(
    name="minio",
    arguments=("server", "--address", "127.0.0.1:{port}", "--console-address", "127.0.0.1:{other}"),
    environment={"MINIO_ROOT_USER": ACCESS, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_UPDATE": "off"},
    tls=("--certs-dir", "{certificates}"),
)
RCLONE: Final = Kind(
    name="rclone",
    arguments=(
        "serve", "s3", "--addr", "127.0.0.1:{port}", "--auth-key", f"{ACCESS},{SECRET}", "--vfs-cache-mode", "off",
    ),
)  # fmt: skip
S3S_FS: Final = Kind(
    name="s3s-fs",
    arguments=("--host", "127.0.0.1", "--port", "{port}", "--access-key", ACCESS, "--secret-key", SECRET),
)
STRICT: Final = (VERSITYGW, MINIO)
LIARS: Final = (RCLONE, S3S_FS)
LAST: Final = {"versitygw": ("posix", "{data}")}
"""Arguments that stand behind all others; else the directory alone."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """One that runs."""

    kind: Kind
    url: str
    data: Path
    """Where it keeps what it is given."""
    ca_bundle: str | None = None

    def settings(self, **others: object) -> S3Settings:
        fields: dict[str, object] = {
            "endpoint_url": self.url,
            "region": "us-east-1",
            "access_key_id": ACCESS,
            "secret_access_key": SECRET,
            "addressing_style": "path",
            "ca_bundle": self.ca_bundle,
        }
        return S3Settings(**(fields | others))  # type: ignore[arg-type]

    def client(self) -> S3Client:
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
            verify=self.ca_bundle,
            config=Config(
                retries={"total_max_attempts": 1},
                response_checksum_validation="when_required",
                s3={"addressing_style": "path"},
            ),
        )

    def new_bucket(self) -> str:
        name = f"bucket-{uuid4()}"
        self.client().create_bucket(Bucket=name)
        return name


@contextmanager
def running(kind: Kind, directory: Path, certificates: Path | None = None) -> Iterator[Server]:
    """Start a server that keeps its data below ``directory``, and end it with the context."""
    data = directory / "data"
    data.mkdir(parents=True)
    places = {"port": free_port(), "other": free_port(), "data": data, "certificates": certificates}
    last = LAST.get(kind.name, ("{data}",))
    arguments = [text.format(**places) for text in (*kind.arguments, *(kind.tls if certificates else ()), *last)]
    ca_bundle = None if certificates is None else str(certificates / "public.crt")
    url = f"{'https' if certificates else 'http'}://127.0.0.1:{places['port']}"
    server = Server(kind=kind, url=url, data=data, ca_bundle=ca_bundle)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(kind.binary), *arguments], cwd=directory, env=os.environ | kind.environment, stdout=log, stderr=log
        )
        try:
            _wait_until_ready(server, process, directory / "log")
            yield server
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            server.client().list_buckets()
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{server.kind.name} does not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.05)
        else:
            return
