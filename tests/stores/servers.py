"""Real S3 servers on loopback, each in a process of its own with an empty directory."""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from resnap.storage.stores.s3_settings import S3Settings
from tests.kafka.brokers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mypy_boto3_s3 import S3Client

BINARIES: Final = Path(os.environ.get("RESNAP_TEST_STORES") or Path.home() / ".cache/resnap-stores")
ACCESS, SECRET = "testaccess", "testsecret123"
PATIENCE_S: Final = 300


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A server that ``tests/stores/build`` makes."""

    name: str
    arguments: tuple[str, ...]
    """With ``{port}``, more ports (``{other}``, ``{third}``, ``{ports[0]}``), an empty ``{data}`` and ``{config}``."""
    access: str = ACCESS
    secret: str = SECRET
    environment: dict[str, str] = field(default_factory=dict, hash=False)
    config: str = ""
    """The content of the file ``{config}``, with the same words in braces."""
    once: tuple[str, ...] = ()
    """Arguments of a second command, which is run when the server is ready."""
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
GARAGE_KEY: Final = "GK" + "5e" * 12
GARAGE: Final = Kind(
    name="garage",
    access=GARAGE_KEY,
    secret="5e" * 32,
    arguments=("-c", "{config}", "server", "--single-node", "--default-bucket"),
    environment={
        "GARAGE_DEFAULT_ACCESS_KEY": GARAGE_KEY, "GARAGE_DEFAULT_SECRET_KEY": "5e" * 32,
        "GARAGE_DEFAULT_BUCKET": "default",
    },
    config="""
        metadata_dir = "{data}/meta"
        data_dir = "{data}/data"
        db_engine = "sqlite"
        replication_factor = 1
        rpc_bind_addr = "127.0.0.1:{other}"
        rpc_public_addr = "127.0.0.1:{other}"
        rpc_secret = "5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e"
        [s3_api]
        api_bind_addr = "127.0.0.1:{port}"
        s3_region = "us-east-1"
        [admin]
        api_bind_addr = "127.0.0.1:{third}"
    """,
    once=("-c", "{config}", "key", "allow", "--create-bucket", GARAGE_KEY),
)  # fmt: skip
SEAWEEDFS: Final = Kind(
    name="weed",
    arguments=(
        "server", "-ip=127.0.0.1", "-filer", "-s3", "-s3.port={port}", "-s3.port.grpc={ports[0]}",
        "-master.port={ports[1]}", "-master.port.grpc={ports[2]}", "-master.volumeSizeLimitMB=64", "-volume.max=1000",
        "-volume.port={ports[3]}", "-volume.port.grpc={ports[4]}",
        "-filer.port={ports[5]}", "-filer.port.grpc={ports[6]}",
    ),
    # Each bucket takes volumes for itself: seven unless told, and then writes fail where none is left.
    environment={"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"},
)  # fmt: skip
RUSTFS: Final = Kind(
    name="rustfs",
    arguments=("server", "--address", "127.0.0.1:{port}", "--access-key", ACCESS, "--secret-key", SECRET),
    environment={"RUSTFS_CONSOLE_ENABLE": "false"},
    tls=("--tls-path", "{certificates}"),
)
STRICT: Final = (VERSITYGW, MINIO, RUSTFS)
HONEST: Final = (*STRICT, SEAWEEDFS, GARAGE)
"""Their checks of what is written hold; Garage's conditions do not."""
LIARS: Final = (RCLONE, S3S_FS)
LAST: Final = {"versitygw": ("posix", "{data}"), "garage": (), "weed": ("-dir={data}",)}
"""Arguments after all others; else the directory alone."""


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
            "access_key_id": self.kind.access,
            "secret_access_key": self.kind.secret,
            "addressing_style": "path",
            "ca_bundle": self.ca_bundle,
        }
        return S3Settings(**(fields | others))  # type: ignore[arg-type]

    def client(self, attempts: int = 10) -> S3Client:
        """Return a client that tries again: a listing may fail while others write, as of versitygw."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=self.kind.access,
            aws_secret_access_key=self.kind.secret,
            verify=self.ca_bundle,
            config=Config(
                retries={"total_max_attempts": attempts},
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
    places = {
        "port": free_port(), "other": free_port(), "third": free_port(), "ports": [free_port() for _ in range(7)],
        "data": data,
        "certificates": certificates, "config": directory / "config.toml",
    }  # fmt: skip
    _write_config(kind, directory / "config.toml", places)
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
            if kind.once:
                once = [text.format(**places) for text in kind.once]
                subprocess.run([str(kind.binary), *once], cwd=directory, check=True, stdout=log, stderr=log)
            # SeaweedFS answers before it has a volume to write to.
            server.client().put_object(Bucket=server.new_bucket(), Key="ready", Body=b"?")
            yield server
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _write_config(kind: Kind, path: Path, places: Mapping[str, object]) -> None:
    if kind.config:
        path.write_text(textwrap.dedent(kind.config).format(**places))
        path.chmod(0o600)


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            server.client(attempts=1).list_buckets()
        except (BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{server.kind.name} does not start: {log.read_text()[-2000:]}") from error
            time.sleep(0.05)
        else:
            return
