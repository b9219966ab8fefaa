from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from resnap.storage.stores.memory import MemoryObjectStore
from tests.storage.stores.contract import ObjectStoreContract

if TYPE_CHECKING:
    from resnap.storage.stores.protocol import ObjectStore


class TestMemoryObjectStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryObjectStore(str(uuid4()), "some/prefix")


def test_stores_of_one_name_share_objects_and_those_of_others_do_not() -> None:
    name = str(uuid4())
    MemoryObjectStore(name, "a").put("b/c", b"x")
    assert MemoryObjectStore(name, "a/b").get("c") == b"x"
    assert [entry.key for entry in MemoryObjectStore(name).list()] == ["a/b/c"]
    assert list(MemoryObjectStore(str(uuid4())).list()) == []


def test_the_clock_is_the_callers() -> None:
    store = MemoryObjectStore(str(uuid4()), clock_ms=lambda: 42)
    store.put("key", b"")
    assert store.head("key").modified_ms == 42
