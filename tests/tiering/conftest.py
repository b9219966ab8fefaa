"""Stores of every kind, empty."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from resnap.storage.stores.local import LocalObjectStore
from resnap.storage.stores.memory import MemoryObjectStore

if TYPE_CHECKING:
    from pathlib import Path

    from resnap.storage.stores.protocol import ObjectStore

KINDS = ["memory", "local", pytest.param("s3", marks=pytest.mark.s3)]


@pytest.fixture
def memory_store() -> ObjectStore:
    return MemoryObjectStore(f"tiering-{uuid4()}")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Give each kind of store in turn."""
    if request.param == "memory":
        return MemoryObjectStore(f"tiering-{uuid4()}")
    if request.param == "local":
        return LocalObjectStore(tmp_path / "store")
    from resnap.storage.stores.s3 import S3ObjectStore  # noqa: PLC0415 - boto3 takes a second to import

    return S3ObjectStore(request.getfixturevalue("s3_bucket"), "some/prefix", request.getfixturevalue("s3_settings"))
