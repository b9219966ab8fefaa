from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.replay.spark.reach import _mark, _Question, is_reached, one_of_each_root
from resnap.storage.disk import FileAttributes
from resnap.storage.sources.files import PLAIN, Sources
from resnap.storage.stores.memory import MemoryObjectStore

if TYPE_CHECKING:
    from resnap.storage.stores.s3_settings import S3Settings


def test_an_executor_reports_what_it_cannot_see_and_why(tmp_path: Path) -> None:
    there, gone = tmp_path / "there.log", tmp_path / "gone.log"
    there.touch()
    MemoryObjectStore("reach").put("logs/0.log", b"x")
    asked = _Question((str(there), str(gone), "memory://reach/logs/0.log", "memory://reach/logs/1.log"), None, PLAIN)
    assert dict(asked.answers(0)) == {
        str(gone): f"{gone}: the file is gone",
        "memory://reach/logs/1.log": "memory://reach/logs/1.log: no such object",
    }


def test_one_segment_of_each_log_dir_and_bucket_is_asked_for() -> None:
    disks = [f"/disk{number % 2}/topic-{number}/0.log" for number in range(1000)]
    objects = [f"s3://{bucket}/logs/topic-{number}/0.log" for bucket in ("a", "b") for number in range(1000)]
    assert len(list(one_of_each_root([*disks, *objects]))) == 4


def test_what_was_asked_for_a_moment_ago_is_not_asked_for_again() -> None:
    segments = ["s3://logs/topic-0/0.log", "s3://logs/topic-1/0.log"]
    reached = {"s3://logs", "s3://bucket/to"}
    assert is_reached(segments, "s3://bucket/to/.staging/1", reached)
    assert not is_reached(segments, "s3://bucket/too/.staging/1", reached)
    assert not is_reached([*segments, "s3://others/topic-0/0.log"], "s3://bucket/to", reached)
    assert not is_reached(segments, "s3://bucket/to", ())


def test_an_executor_writes_beside_a_mark_and_leaves_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.write_bytes(b"")
    attributes = FileAttributes(mode=0o644, user_id=os.getuid(), group_id=os.getgid())
    assert list(_Question((str(mark),), None, PLAIN, str(mark), attributes).answers(0)) == []
    assert list(tmp_path.iterdir()) == [mark]
    full = Path("/proc/self/status")  # beside which nothing can be written
    assert [locator for locator, _ in _Question((str(full),), None, PLAIN, str(full)).answers(0)] == [str(full)]


def test_nothing_of_an_executor_that_was_killed_while_it_wrote_stays_in_a_directory(tmp_path: Path) -> None:
    with _mark(tmp_path / "staged") as mark:
        Path(f"{mark}7~").touch()
    assert list((tmp_path / "staged").iterdir()) == []


def test_an_executor_tries_to_write_and_leaves_nothing() -> None:
    store = MemoryObjectStore("reach-sink", "staging")
    question = _Question((), (store.url, ".resnap/probe/1"), PLAIN)
    store.put(".resnap/probe/1/7", b"")  # by an executor that was killed then
    assert list(question.answers(6)) == []
    assert [info.key for info in store.list()] == [".resnap/probe/1/7"]
    assert list(question.answers(7)) == []
    assert list(store.list()) == []


@pytest.mark.s3
def test_a_store_that_an_executor_may_not_use_is_reported_in_its_own_words(s3_settings: S3Settings) -> None:
    question = _Question(
        ("s3://no-such-bucket/0.log",), ("s3://no-such-bucket/staging", ".resnap/probe/1"), Sources(s3=s3_settings)
    )
    asked = pickle.loads(pickle.dumps(question))  # noqa: S301 - our own, as it travels to executors
    said = dict(asked.answers(0))
    assert said.keys() == {"s3://no-such-bucket/0.log", "s3://no-such-bucket/staging"}
    assert all("bucket" in told for told in said.values())
