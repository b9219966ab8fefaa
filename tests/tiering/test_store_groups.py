from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from resnap.storage.stores.keeping import FolderStore
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.store_check import group_folders
from tests.cases import each

if TYPE_CHECKING:
    from collections.abc import Sequence

names = st.sampled_from(["a", "a-b", "a.b", "b", "none"])
folders = st.builds(
    lambda cluster, topic, topic_id, partition: f"{cluster}/{topic}/{topic_id}/{partition}/",
    names, names, names, st.sampled_from([0, 1, 2, 10]),
)  # fmt: skip


def _in(folder: str, listed: Sequence[Sequence[str]]) -> list[int]:
    """Return in which groups a folder is listed."""
    return [number for number, group in enumerate(listed) for one in group if folder.startswith(one)]


@given(st.dictionaries(folders, st.integers(1, 9), min_size=1), st.integers(1, 30))
def test_each_partition_is_listed_once_and_in_order_and_a_group_has_no_more_than_it_may(
    counts: dict[str, int], most: int
) -> None:
    listed = list(group_folders(counts, most))
    assert [_in(folder, listed) for folder in sorted(counts)] == sorted(_in(folder, listed)[:1] for folder in counts)
    assert [one for group in listed for one in group] == sorted(one for group in listed for one in group)
    for number, group in enumerate(listed):
        here = [folder for folder in counts if _in(folder, listed) == [number]]
        is_unit = len({folder.rsplit("/", 3)[0] for folder in here}) == 1
        assert group
        assert is_unit or sum(counts[folder] for folder in here) <= most


def test_a_topic_with_segments_without_its_id_is_not_divided() -> None:
    counts = {"c/t/none/0/": 5, "c/t/x/0/": 5, "c/t/x/1/": 5, "c/u/x/0/": 5, "c/u/x/1/": 5}
    assert list(group_folders(counts, 5)) == [["c/t/"], ["c/u/x/0/"], ["c/u/x/1/"]]


def test_a_topic_that_is_whole_in_a_group_is_listed_at_once() -> None:
    counts = {f"c/{topic}/x/{partition}/": 5 for topic in "tuv" for partition in range(3)}
    first, second, third = group_folders(counts, 20)
    assert first == ["c/t/x/", "c/u/x/0/"]
    assert second == ["c/u/x/1/", "c/u/x/2/", "c/v/x/0/", "c/v/x/1/"]
    assert third == ["c/v/x/2/"]


@each(
    ("prefix", "keys"),
    [("", ["a/0/1", "b/1/1"]), ("a", ["a/0/1"]), ("a/0/1", ["a/0/1"]), ("a/1/", []), ("b/1/", ["b/1/1"]), ("c", [])],
)
def test_a_listing_shows_the_folders_alone(prefix: str, keys: list[str]) -> None:
    name = f"memory://folders-{os.urandom(8).hex()}"
    inner = MemoryObjectStore(name.removeprefix("memory://"))
    for key in ("a/0/1", "a/1/1", "b/0/1", "b/1/1"):
        inner.put(key, b"")
    store = FolderStore(inner, [f"{name}/a/0/", f"{name}/b/1/"])
    assert [info.key for info in store.list(prefix)] == keys
    above = FolderStore(MemoryObjectStore(inner.url.removeprefix("memory://"), "b"), [f"{name}/a/0/", f"{name}/b/1/"])
    assert [info.key for info in above.list()] == ["1/1"]
