from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.log.partition_dir import PARTITION_METADATA
from resnap.tiering.controller.metadata.cluster import with_topic_ids
from resnap.tiering.controller.metadata.folding import load_image

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.storage.log.log_dir import LogDir
    from tests.fixture_sets import FixtureSet


@pytest.fixture
def without_ids(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> Path:
    data = shutil.copytree(fixture_set("kafka-3.9.1-kraft").data, tmp_path / "data")
    for path in data.glob(f"*/{PARTITION_METADATA}"):
        path.unlink()
    return data


def ids(log_dir: LogDir) -> dict[str, str | None]:
    return {str(partition.topic_partition): partition.topic_id for partition in log_dir.partitions}


def test_lost_topic_ids_are_those_that_the_broker_had_written(
    without_ids: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    listed = load_log_dir(without_ids)
    assert set(ids(listed).values()) == {None}
    found = with_topic_ids(listed, lambda: load_image(without_ids))
    assert ids(found) == ids(load_log_dir(fixture_set("kafka-3.9.1-kraft").data))


def test_where_nothing_is_missing_no_metadata_log_is_read(fixture_set: Callable[[str], FixtureSet]) -> None:
    listed = load_log_dir(fixture_set("kafka-3.9.1-kraft").data)
    assert with_topic_ids(listed, lambda: pytest.fail("read")) is listed


def test_an_id_is_not_taken_from_a_cluster_that_does_not_have_the_partition_on_this_broker(without_ids: Path) -> None:
    another = replace(load_log_dir(without_ids), broker_id=7)
    assert set(ids(with_topic_ids(another, lambda: load_image(without_ids))).values()) == {None}
    nobodys = replace(load_log_dir(without_ids), broker_id=None)
    assert set(ids(with_topic_ids(nobodys, lambda: load_image(without_ids))).values()) == {None}


def test_without_a_metadata_log_they_stay_unknown(without_ids: Path) -> None:
    listed = load_log_dir(without_ids)
    assert with_topic_ids(listed, lambda: None) is listed
