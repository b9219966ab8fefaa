"""Local files are read without a trace, and read all the same where that takes more rights than there are."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from resnap.storage.log.partition_dir import Segment
from resnap.storage.readers import FileFacts, FileReader
from resnap.storage.sources.files import Sources
from resnap.storage.stores.memory import MemoryObjectStore
from tests.tiering.stores import BeginningStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no O_NOATIME")
def test_reading_a_file_of_ones_own_leaves_its_access_time(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"segment")
    os.utime(path, (1, path.stat().st_mtime))
    with FileReader(str(path)) as reader:
        assert reader.read(0, 7) == b"segment"
    assert path.stat().st_atime == 1


def test_a_file_of_another_user_is_read_all_the_same() -> None:
    shell = shutil.which("sh")
    assert shell is not None
    with FileReader(shell) as reader:
        assert len(reader.read(0, 4)) == 4


class OfABeginningStore(Sources):
    def store(self, url: str) -> BeginningStore:
        return BeginningStore(super().store(url))


def test_an_object_is_unchanged_where_a_head_gives_another_time_than_the_listing_until_it_is_replaced() -> None:
    times = iter((5_000, 9_000))
    store = MemoryObjectStore("begins", clock_ms=times.__next__)
    sources, locator = OfABeginningStore(), "memory://begins/x.log"
    store.put("x.log", b"segment")
    (info,) = store.list()
    listed = FileFacts(info.size_bytes, info.modified_ms * 1_000_000, 0)
    segment = Segment(
        base_offset=0, next_base_offset=1, path=locator, size_bytes=listed.size_bytes, mtime_ns=listed.mtime_ns,
        inode=listed.inode, index_bytes=None, timeindex_bytes=None, txnindex_bytes=None,
    )  # fmt: skip
    assert not sources.facts(locator).is_same(listed)
    assert sources.is_unchanged(segment)
    store.put("x.log", b"segment")
    assert not sources.is_unchanged(segment)
