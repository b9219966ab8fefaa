"""A metadata log that we wrote is read by Kafka's own dump tool, and a real quorum goes on with it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.log.log_dir import load_log_dir
from resnap.storage.messages.schema import message_json, oldest_version
from resnap.tiering.controller.audit import audit
from resnap.tiering.controller.metadata.batches import MetadataBatch
from resnap.tiering.controller.metadata.folding import load_image
from resnap.tiering.controller.metadata.image import ConfigResource, ResourceType
from resnap.tiering.controller.metadata.log_files import list_metadata_log, read_metadata_log
from resnap.tiering.controller.metadata.records import (
    TYPES_BY_MESSAGE,
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    Endpoint,
    EndTransactionRecord,
    EntityData,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    SupportedFeature,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from resnap.tiering.controller.metadata.writer import open_metadata_log
from tests.kafka.brokers import Broker, eventually
from tests.logs.metadata_checkpoint import checkpoint_bytes
from tests.scheduler.installed import copied
from tests.tiering.controller.metadata.metadata_dump import DumpedRecord, dumped_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka

TOOL: Final = "kafka.tools.DumpLogSegments"
UUID: Final = "UKQXDdQN8qtNI_fjesdrSw"
TOPIC_ID: Final = "YMc4MP1-R6O2oJbmBbBiPg"
ENDPOINT: Final = Endpoint(name="PLAINTEXT", host="örtlich", port=65535, security_protocol=-1)
FEATURE: Final = SupportedFeature(name="metadata.version", min_supported_version=1, max_supported_version=21)
OF_ALL_RELEASES: Final[tuple[MetadataRecord, ...]] = (
    RegisterBrokerRecord(
        broker_id=1, is_migrating_zk_broker=True, incarnation_id=UUID, broker_epoch=2**62, end_points=(ENDPOINT,),
        features=(FEATURE,), rack="r", fenced=False, in_controlled_shutdown=True, log_dirs=(UUID, TOPIC_ID),
    ),
    RegisterBrokerRecord(broker_id=2, incarnation_id=UUID, broker_epoch=5, end_points=(), features=(), rack=None),
    UnregisterBrokerRecord(broker_id=2, broker_epoch=5),
    TopicRecord(name="payments", topic_id=TOPIC_ID),
    PartitionRecord(
        partition_id=3, topic_id=TOPIC_ID, replicas=(1, 2), isr=(1,), removing_replicas=(2,), adding_replicas=(3,),
        leader=1, leader_recovery_state=1, leader_epoch=4, partition_epoch=5, directories=(UUID, TOPIC_ID),
        eligible_leader_replicas=(2,), last_known_elr=(3,),
    ),
    ConfigRecord(resource_type=4, resource_name="", name="producer.id.expiration.ms", value=None),
    ConfigRecord(resource_type=2, resource_name="payments", name="retention.ms", value="1"),
    PartitionChangeRecord(
        partition_id=3, topic_id=TOPIC_ID, isr=(1, 2), leader=-1, replicas=(1,), removing_replicas=(),
        adding_replicas=(2,), leader_recovery_state=0, directories=(UUID,), eligible_leader_replicas=(),
        last_known_elr=(1,),
    ),
    FenceBrokerRecord(id=1, epoch=6),
    UnfenceBrokerRecord(id=1, epoch=6),
    RemoveTopicRecord(topic_id=TOPIC_ID),
    DelegationTokenRecord(
        owner="User:a", requester="User:b", renewers=("User:c",), issue_timestamp=1, max_timestamp=2,
        expiration_timestamp=3, token_id="t",
    ),
    FeatureLevelRecord(name="metadata.version", feature_level=21),
    ClientQuotaRecord(
        entity=(EntityData(entity_type="user", entity_name=None), EntityData(entity_type="client-id", entity_name="c")),
        key="request_percentage", value=0.25, remove=False,
    ),
    ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=2**63 - 1),
    BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=6, fenced=-1, in_controlled_shutdown=1, log_dirs=(UUID,)
    ),
    AccessControlEntryRecord(
        id=UUID, resource_type=2, resource_name="a", pattern_type=3, principal="User:a", host="*", operation=3,
        permission_type=3,
    ),
    RemoveAccessControlEntryRecord(id=UUID),
    NoOpRecord(),
    ZkMigrationStateRecord(zk_migration_state=2),
    RemoveUserScramCredentialRecord(name="a", mechanism=1),
    BeginTransactionRecord(name="many records"),
    EndTransactionRecord(),
    AbortTransactionRecord(reason="no more"),
    RemoveDelegationTokenRecord(token_id="t"),
    RegisterControllerRecord(
        controller_id=1, incarnation_id=UUID, zk_migration_ready=True, end_points=(ENDPOINT,), features=(FEATURE,)
    ),
)  # fmt: skip
UNSHOWN: Final = UserScramCredentialRecord(
    name="a", mechanism=1, salt=b"\0\xff", stored_key=b"s", server_key=b"", iterations=4096
)
"""What Kafka's tool leaves out of what it shows."""
SINCE_4_0: Final = (ClearElrRecord(topic_name=""),)
SINCE_4_4: Final = (UnregisterControllerRecord(controller_id=3),)
"""And of these only classes of Kafka 4.4 say something; its dump tool is of a module of its own, and
``test_messages.py`` asks the classes."""


def as_dumped(records: list[MetadataRecord], first_offset: int, timestamp: int) -> list[DumpedRecord]:
    return [
        DumpedRecord(
            offset=first_offset + index,
            timestamp=timestamp,
            payload={
                "type": TYPES_BY_MESSAGE[type(one)].name,
                "version": oldest_version(one),
                "data": message_json(one, oldest_version(one)),
            },
        )
        for index, one in enumerate(records)
    ]


@pytest.mark.parametrize(
    ("version", "younger"), [("3.9.1", ()), pytest.param("4.1.1", SINCE_4_0, marks=pytest.mark.heavy)]
)
def test_kafkas_own_tool_shows_every_record_that_we_wrote(
    version: str, younger: tuple[MetadataRecord, ...], release: Callable[[str], Release], tmp_path: Path
) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    records = [*OF_ALL_RELEASES, *younger]
    assert {type(one) for one in (*OF_ALL_RELEASES, *SINCE_4_0, *SINCE_4_4, UNSHOWN)} == TYPES_BY_MESSAGE.keys()
    with open_metadata_log(directory, leader_id=1, timestamp=1_700_000_000_000) as log:
        first = log.append(records, timestamp=1_700_000_000_001)
        log.append([UNSHOWN], timestamp=1_700_000_000_002)
    checkpoint = directory / f"{first + len(records):020d}-{1:010d}.checkpoint"
    checkpoint.write_bytes(checkpoint_bytes(records, epoch=1, timestamp=1_700_000_000_003))
    files = f"{next(directory.glob('*.log'))},{checkpoint}"
    told = release(version).tool(TOOL, "--cluster-metadata-decoder", "--files", files)
    assert "isvalid: false" not in told
    assert "LEADER_CHANGE(2)" in told or "LeaderChange: {" in told
    shown = list(dumped_records(told))
    assert len(shown) == 2 * len(records) + 1
    assert shown[: len(records)] == as_dumped(records, first, 1_700_000_000_001)
    assert shown[len(records)].payload["type"] == "USER_SCRAM_CREDENTIAL_RECORD"
    assert shown[len(records) + 1 :] == as_dumped(records, 1, 1_700_000_000_003)


def test_a_broker_goes_on_with_a_metadata_log_that_we_wrote(
    fixture_set: Callable[[str], FixtureSet], release: Callable[[str], Release], tmp_path: Path
) -> None:
    fixture = fixture_set("kafka-3.9.1-kraft")
    data = copied(fixture.data, tmp_path / "data")
    directory = data / "__cluster_metadata-0"
    for path in directory.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    with open_metadata_log(directory, leader_id=1, timestamp=1_795_225_653_707) as log:
        for batch in read_metadata_log(list_metadata_log(fixture.data)):
            assert isinstance(batch, MetadataBatch)
            if not batch.header.is_control:
                log.append([record.message for record in batch.records], timestamp=batch.timestamp)
        for next_producer_id in (3000, 4000, 5000):
            block = ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=next_producer_id)
            log.append([block], timestamp=1_795_225_690_000)
    ours = load_image(data)
    assert ours.topic_ids() == load_image(fixture.data).topic_ids()
    broker = Broker(release("3.9.1"), [data])
    with broker.running():
        broker.drive("append", "payments", 0, 20)
    theirs = load_image(data)
    assert theirs.offset > ours.offset
    assert theirs.leader_epoch > ours.leader_epoch
    assert theirs.producer_id_blocks[:5] == ours.producer_id_blocks
    assert [one.next_producer_id for one in theirs.producer_id_blocks] == [1000, 2000, 3000, 4000, 5000, 6000]
    assert theirs.brokers[1].epoch > 6
    assert theirs.notes == ()
    found = audit(load_log_dir(data), lambda: theirs)
    assert found.findings == found.problems == ()
    assert audit(load_log_dir(data), lambda: ours).findings, (
        "the producer of the new records has an id of the new block"
    )


def test_a_change_while_the_broker_runs_is_seen_at_once(
    release: Callable[[str], Release], tmp_path: Path, command: Resnap
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    broker = Broker(release("4.4.0"), [data], {"producer.id.expiration.ms": 7_200_000})
    with broker.running():
        broker.drive("create", "payments", 1)
        assert effective(command, broker) == (7_200_000, "server-properties")
        for level, value in (("", 3_600_000), ("1", 1_800_000)):
            broker.drive("broker", level or "-", "producer.id.expiration.ms", value)
            eventually(partial(is_in_force, data, level, str(value)), "the broker has not replayed the change")
            name = "dynamic-broker" if level else "dynamic-default"
            assert effective(command, broker) == (value, name)
            told = command("plan", data, "--output", "json", "--server-properties", broker.settings)
            assert f"metadata log {data / '__cluster_metadata-0'}: {name}" in told.out
        broker.drive("broker", "1", "producer.id.expiration.ms", "-")
        eventually(partial(is_in_force, data, "1", None), "the broker has not replayed the change")
        assert effective(command, broker) == (3_600_000, "dynamic-default")
        assert broker.is_running


def is_in_force(data: Path, level: str, value: str | None) -> bool:
    values = load_image(data).configs.get(ConfigResource(ResourceType.BROKER, level), {})
    return values.get("producer.id.expiration.ms") == value


def effective(command: Resnap, broker: Broker) -> tuple[int, str]:
    """Return the expiration that the broker uses, and its origin."""
    ran = command("controller", "config", *broker.log_dirs, "--server-properties", broker.settings, "--output", "json")
    (row,) = [setting for setting in ran.document["settings"] if setting["name"] == "producer.id.expiration.ms"]
    return row["value"], row["level"]
