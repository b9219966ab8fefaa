"""Shipped beside a writer that appends, rolls and deletes as a broker does: nothing wrong ever has a manifest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.log.checkpoints import write_offset_checkpoint
from tests.scheduler.files import bases, file_at
from tests.scheduler.installed import delete_oldest
from tests.scheduler.shipped import check_store, entries, files_of, manifests
from tests.scheduler.test_install_beside_a_writer import PARTITION, Writer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.slow

KEPT_SEGMENTS: Final = 24
PATIENCE_S: Final = 300
SEEN_RUNS: Final = 3


class Broker(Writer):
    """Writes its high watermark as it goes, deletes what is beyond retention, and keeps a copy of what it closed."""

    def __init__(self, log_dir: Path) -> None:
        self.closed: dict[int, bytes] = {}
        self.deleted = 0
        self.kept = KEPT_SEGMENTS
        super().__init__(log_dir, old_segments=16)

    def _append(self) -> None:
        base = self._writer.base_offset
        super()._append()
        if self._writer.base_offset != base:
            self.closed[base] = file_at(self.partition, base, "log").read_bytes()
            self._write_high_watermark()
            if len(self.closed) - self.deleted > self.kept:
                delete_oldest(self.partition, 1)
                self.deleted += 1

    def _write_high_watermark(self) -> None:
        path = self.log_dir / "replication-offset-checkpoint"
        path.with_suffix(".tmp").write_bytes(write_offset_checkpoint({PARTITION: self._writer.base_offset}))
        path.with_suffix(".tmp").replace(path)

    def check(self, store: Path) -> int:
        """Check all that has a manifest against what was written; return how many segments that is."""
        objects = files_of(store) if store.exists() else {}
        for manifest in manifests(objects).values():
            bodies = {entry["kind"]: objects[entry["key"]] for entry in manifest["objects"]}
            assert bodies["log"] == self.closed[manifest["baseOffset"]]
            truth = {entry.producer_id: tuple(entry) for entry in self.truth[manifest["nextBaseOffset"]]}
            assert entries(bodies["snapshot"]) == truth
        return len(check_store(objects, strict=False))


@pytest.mark.parametrize("seconds", [6, pytest.param(600, marks=pytest.mark.heavy)])
def test_whatever_is_shipped_beside_a_writer_is_what_it_wrote(command: Resnap, tmp_path: Path, seconds: int) -> None:
    log_dir, store = tmp_path / "data", tmp_path / "store"
    log_dir.mkdir()
    arguments = ("tier", log_dir, "--to", store.as_uri(), "--engine", "local", "--quiet", "--output", "json")
    broker, shipped, codes = Broker(log_dir), [], set()
    broker.start()
    begun = time.monotonic()
    while (
        time.monotonic() - begun < seconds
        or len(shipped) < SEEN_RUNS
        or shipped[-1] == shipped[0]
        or broker.deleted <= KEPT_SEGMENTS
    ):
        assert time.monotonic() - begun < seconds + PATIENCE_S, "the writer and the runs do not come on"
        ran = command(*arguments)
        assert "InternalError" not in ran.err, ran.err
        codes.add(ran.code)
        shipped.append(broker.check(store))
        if shipped[-2:] == shipped[-1:] * 2:  # on a slow machine such a retention takes all before it is shipped
            broker.kept *= 2
    broker.stop()
    assert codes <= {0, 1, 3}, "what retention took while it was read is reported, and the rest is shipped"
    assert shipped[-1] > shipped[0]
    ran = command(*arguments)
    assert ran.code == 0, ran.err
    there = {one.base_offset for one in check_store(files_of(store), strict=False)}
    assert set(bases(broker.partition)[:-1]) <= there
    broker.check(store)
