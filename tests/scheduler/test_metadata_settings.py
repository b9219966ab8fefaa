from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.settings.loading import load_settings
from resnap.storage.errors import FormatError, UsageError
from resnap.storage.log.properties import MetaProperties
from resnap.tiering.controller.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    SupportedFeature,
)
from resnap.tiering.controller.metadata.writer import open_metadata_log
from tests.logs.log_writer import write_meta_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resnap.scheduler.settings.settings import Settings
    from tests.fixture_sets import FixtureSet

NAME = "producer_id_expiration_ms"
UUID = "UKQXDdQN8qtNI_fjesdrSw"


def of_broker(broker_id: int | None, value: str | None, name: str = "producer.id.expiration.ms") -> ConfigRecord:
    resource_name = "" if broker_id is None else str(broker_id)
    return ConfigRecord(resource_type=4, resource_name=resource_name, name=name, value=value)


def registered(broker_id: int, newest: int) -> RegisterBrokerRecord:
    feature = SupportedFeature(name="metadata.version", min_supported_version=1, max_supported_version=newest)
    return RegisterBrokerRecord(
        broker_id=broker_id, incarnation_id=UUID, broker_epoch=6, end_points=(), features=(feature,), rack=None
    )


def log_dir(
    tmp_path: Path, *records: MetadataRecord, broker_id: int = 1, version: int = 21, cluster_id: str = "c"
) -> Path:
    """A log dir of a broker, with a metadata log in it."""
    place = tmp_path / f"data-{broker_id}"
    with open_metadata_log(place / "__cluster_metadata-0", leader_id=1, timestamp=5) as log:
        log.append([FeatureLevelRecord(name="metadata.version", feature_level=version), *records], timestamp=6)
    meta = MetaProperties(version=1, node_id=broker_id, cluster_id=cluster_id, directory_id=None)
    (place / "meta.properties").write_bytes(write_meta_properties(meta))
    return place


def loaded(places: Sequence[Path], properties: str = "", **flags: object) -> Settings:
    file = places[0] / "server.properties" if places else None
    if file is not None and properties:
        file.write_text(properties)
        flags["server_properties"] = file
    return load_settings(flags, environment={}, directory=places[0].parent, places=[str(place) for place in places])


def test_the_expiration_of_a_real_cluster_comes_with_its_origin(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = fixture_set("kafka-3.9.1-kraft").data
    for place in (data, data / "payments-0", data / "__cluster_metadata-0"):
        settings = load_settings({}, environment={}, directory=tmp_path, places=[str(place)])
        assert settings.expiration_ms == 43_200_000
        assert settings.expiration_note is None
        assert settings.expiration_origin == f"metadata log {data}/__cluster_metadata-0: dynamic-default"


def test_a_command_that_needs_no_expiration_reads_no_metadata_log(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    (tmp_path / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(b"\1" * 100)
    settings = load_settings({"log_dirs": str(tmp_path)}, environment={}, directory=tmp_path)
    assert settings.metadata_warnings == ()


def test_a_brokers_own_value_wins_over_that_of_all(tmp_path: Path) -> None:
    place = log_dir(tmp_path, of_broker(None, "1000"), of_broker(1, "2000"), of_broker(2, "3000"))
    assert loaded([place]).expiration_ms == 2000


def test_what_was_set_at_run_time_wins_over_server_properties_and_that_is_said(tmp_path: Path) -> None:
    place = log_dir(tmp_path, of_broker(None, "1000"))
    settings = loaded([place], "producer.id.expiration.ms=5000\n")
    assert settings.expiration_ms == 1000
    assert settings.metadata_warnings == (
        "producer.id.expiration.ms is 1000 by dynamic-default, which overrules server-properties=5000",
    )


def test_without_a_value_in_the_log_server_properties_count(tmp_path: Path) -> None:
    settings = loaded([log_dir(tmp_path)], "producer.id.expiration.ms=5000\n")
    assert settings.expiration_ms == 5000
    assert settings.origin(NAME).startswith("server.properties ")
    assert settings.metadata_warnings == ()


def test_a_flag_wins_and_the_setting_of_the_brokers_is_reported(tmp_path: Path) -> None:
    place = log_dir(tmp_path, of_broker(None, "1000"))
    settings = loaded([place], producer_id_expiration_ms=7000)
    assert settings.expiration_ms == 7000
    (warning,) = settings.metadata_warnings
    assert warning == (
        "producer.id.expiration.ms is 7000 (flag --producer-id-expiration-ms), but the brokers use 1000"
        f" (metadata log {place}/__cluster_metadata-0: dynamic-default)"
    )
    assert loaded([place], producer_id_expiration_ms=1000).metadata_warnings == ()


@pytest.mark.parametrize("properties", ["node.id=9\n", "broker.id=9\n"])
def test_server_properties_of_another_node_are_warned_of(properties: str, tmp_path: Path) -> None:
    place = log_dir(tmp_path, registered(1, 21))
    settings = loaded([place], f"{properties}producer.id.expiration.ms=1000\n")
    assert settings.expiration_ms == 1000
    assert any("is of node 9, the log dirs are of 1:" in warning for warning in settings.metadata_warnings)


@pytest.mark.parametrize("properties", ["node.id=1\n", "broker.id=-1\n", ""])
def test_server_properties_of_this_node_or_of_none_are_not(properties: str, tmp_path: Path) -> None:
    place = log_dir(tmp_path, registered(1, 21))
    assert loaded([place], f"{properties}producer.id.expiration.ms=1000\n").metadata_warnings == ()


def test_of_brokers_that_differ_the_longest_is_taken_and_that_is_said(tmp_path: Path) -> None:
    records = (of_broker(1, "1000"), of_broker(2, "9000"))
    places = [log_dir(tmp_path, *records, broker_id=1), log_dir(tmp_path, *records, broker_id=2)]
    settings = loaded(places)
    assert settings.expiration_ms == 9000
    assert settings.metadata_warnings == (
        "brokers expire producers after different times (broker 1: 1000, broker 2: 9000): the longest is used",
    )


def test_a_broker_before_3_4_uses_the_setting_of_transactional_ids(tmp_path: Path) -> None:
    place = log_dir(tmp_path, registered(1, 7), registered(2, 21), of_broker(None, "1000"), version=7)
    settings = loaded([place], "transactional.id.expiration.ms=5000\n")
    assert settings.expiration_ms == 5000
    assert settings.origin(NAME).endswith("brokers before 3.4 use transactional.id.expiration.ms, server-properties")
    assert settings.metadata_warnings == (
        "brokers 1 are older than 3.4, and use transactional.id.expiration.ms; the others do not",
    )


def test_a_value_that_no_broker_takes_is_ignored_and_reported(tmp_path: Path) -> None:
    settings = loaded([log_dir(tmp_path, of_broker(1, "0"), of_broker(None, "1000"))])
    assert settings.expiration_ms == 1000
    assert settings.metadata_warnings == (
        "producer.id.expiration.ms: dynamic-broker=0 is refused: a broker takes 1 to 2147483647",
    )


def test_a_metadata_log_that_was_found_and_cannot_be_used_is_warned_of(tmp_path: Path) -> None:
    place = log_dir(tmp_path, BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6))
    settings = loaded([place])
    (warning,) = settings.metadata_warnings
    assert warning.startswith("the metadata log is not used: ")
    assert settings.expiration_note is not None


def test_a_metadata_log_that_was_named_and_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    place = log_dir(tmp_path)
    (place / "__cluster_metadata-0" / f"{0:020d}.log").write_bytes(b"\1" * 100)
    with pytest.raises(FormatError, match="metadata batch length"):
        loaded([place], metadata_log=place)
    with pytest.raises(UsageError, match="holds no metadata log"):
        loaded([place], metadata_log=tmp_path)


def test_a_metadata_log_may_be_named_by_flag_by_file_and_by_the_brokers_own_properties(tmp_path: Path) -> None:
    elsewhere = log_dir(tmp_path / "controller", of_broker(None, "1000"))
    place = tmp_path / "data"
    place.mkdir()
    assert loaded([place], metadata_log=elsewhere).expiration_ms == 1000
    assert loaded([place], f"metadata.log.dir={elsewhere}\n").expiration_ms == 1000
    (tmp_path / "resnap.toml").write_text('metadata-log = "controller/data-1"\n')
    assert loaded([place]).expiration_ms == 1000


def test_a_second_log_dir_of_a_broker_has_the_metadata_log_of_the_first(tmp_path: Path) -> None:
    first, second = log_dir(tmp_path, of_broker(None, "1000")), tmp_path / "second"
    partition, elsewhere = second / "t-0", tmp_path / "elsewhere"
    for place in (partition, elsewhere):
        place.mkdir(parents=True)
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={first},{second}\n")
    for place in (second, partition):
        settings = loaded([place], server_properties=properties)
        assert settings.expiration_origin == f"metadata log {first}/__cluster_metadata-0: dynamic-default"
        assert settings.metadata is not None
    assert loaded([elsewhere], server_properties=properties).metadata is None


def test_the_metadata_log_of_another_cluster_is_refused(tmp_path: Path) -> None:
    another = log_dir(tmp_path / "controller", of_broker(None, "1000"), cluster_id="x")
    place = tmp_path / "data"
    place.mkdir()
    (place / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    with pytest.raises(UsageError, match=r"__cluster_metadata-0 is of cluster x, the log dirs are of c"):
        loaded([place], metadata_log=another / "__cluster_metadata-0")
    (place / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    assert loaded([place], metadata_log=another / "__cluster_metadata-0").expiration_ms == 1000


def test_without_places_log_dirs_are_searched(tmp_path: Path) -> None:
    place = log_dir(tmp_path, of_broker(None, "1000"))
    file = tmp_path / "server.properties"
    file.write_text(f"log.dirs={tmp_path / 'none'},{place}\n")
    settings = load_settings({"server_properties": file}, environment={}, directory=tmp_path, places=[])
    assert settings.expiration_ms == 1000


def test_the_newest_checkpoint_is_enough(fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> None:
    data = shutil.copytree(fixture_set("kafka-4.1.1-kraft").data, tmp_path / "data")
    for old in sorted((data / "__cluster_metadata-0").glob("*.checkpoint"))[:-1]:
        old.write_bytes(b"")
    assert load_settings({}, environment={}, directory=tmp_path, places=[str(data)]).expiration_ms == 43_200_000
