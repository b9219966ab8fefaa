"""Fixtures of an S3 protocol server on loopback; ``tests/conftest.py`` gives them to every test that asks."""

from __future__ import annotations

import logging
import os
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mypy_boto3_s3 import S3Client

    from resnap.storage.stores.s3_settings import S3Settings


@pytest.fixture(scope="session")
def botocore_reads_once() -> None:
    """Let all sessions of botocore share what it reads of its own files: a client takes 10 ms instead of 100."""
    import botocore.session  # noqa: PLC0415
    from botocore.loaders import create_loader  # noqa: PLC0415

    botocore.session.create_loader = cache(create_loader)  # type: ignore[attr-defined]


@pytest.fixture
def no_aws_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, botocore_reads_once: None) -> None:  # noqa: ARG001
    """Keep the developer's own AWS configuration out of the test, and botocore off the metadata address."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="session")
def s3_endpoint(botocore_reads_once: None) -> Iterator[str]:  # noqa: ARG001
    """URL of moto's server: right about keys, ranges, conditions and races; it accepts wrong checksums and any key."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication as Dispatcher  # noqa: PLC0415 - as below
    from moto.s3.responses import S3Response  # noqa: PLC0415 - takes seconds to import, for the few that ask
    from moto.server import ThreadedMotoServer  # noqa: PLC0415

    put_object, one_at_a_time = S3Response.put_object, Lock()

    def put_alone(self: S3Response) -> Any:
        # moto looks whether the condition holds, and then writes: two that come at once would both find that it does.
        with one_at_a_time:
            return put_object(self)

    S3Response.put_object = put_alone  # type: ignore[method-assign]
    # For each request it lists its folder of services twice, and tries the patterns of all, though hosts are few.
    Dispatcher.get_backend_for_host = cache(Dispatcher.get_backend_for_host)  # type: ignore[method-assign]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_settings(s3_endpoint: str, no_aws_of_this_machine: None) -> S3Settings:  # noqa: ARG001
    from resnap.storage.stores.s3_settings import S3Settings  # noqa: PLC0415

    return S3Settings(
        endpoint_url=s3_endpoint,
        region="us-east-1",
        access_key_id="testaccess",
        secret_access_key="testsecret123",
        addressing_style="path",
    )


@pytest.fixture(scope="session")
def s3_client(s3_endpoint: str) -> Iterator[S3Client]:
    """boto3 itself, to check what the store under test did."""
    import boto3  # noqa: PLC0415

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
