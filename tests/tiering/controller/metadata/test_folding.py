from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from resnap.storage.errors import MetadataLogError, MetadataVersionError
from resnap.storage.log.partition_dir import PARTITION_METADATA
from resnap.storage.log.properties import read_partition_metadata
from resnap.storage.messages.wire import write_unsigned_varint
from resnap.tiering.controller.metadata.batches import MetadataBatch, TornTail, encode_record, read_batches
from resnap.tiering.controller.metadata.folding import fold, load_image, load_settings_image
from resnap.tiering.controller.metadata.image import (
    ALL_BROKERS,
    BlockSource,
    ConfigChange,
    ConfigResource,
    DeletedTopic,
    MetadataImage,
    MetadataTransaction,
    Note,
    ProducerIdBlock,
    ResourceType,
    TransactionOutcome,
)
from resnap.tiering.controller.metadata.log_files import list_metadata_log, read_checkpoint, read_metadata_log
from resnap.tiering.controller.metadata.records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    EntityData,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
)
from tests.logs.batch_builder import write_data_batch
from tests.logs.metadata_checkpoint import checkpoint_bytes
from tests.tiering.controller.metadata.metadata_dump import dumped_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet

    Sets: TypeAlias = Callable[[str], FixtureSet]

KRAFT = ("kafka-3.9.1-kraft", "kafka-4.1.1-kraft", "kafka-4.4.0-kraft")
TOPIC_ID = "YMc4MP1-R6O2oJbmBbBiPg"
UUID = "UKQXDdQN8qtNI_fjesdrSw"
TOPIC = TopicRecord(name="payments", topic_id=TOPIC_ID)
PARTITION = PartitionRecord(
    partition_id=0, topic_id=TOPIC_ID, replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=0, partition_epoch=0
)
BROKER = RegisterBrokerRecord(
    broker_id=1, incarnation_id=UUID, broker_epoch=6, end_points=(), features=(), rack=None, log_dirs=(UUID,)
)


@pytest.fixture
def folded(tmp_path: Path) -> Callable[..., MetadataImage]:
    """Fold records, or ready values of them, of which each batch holds one."""

    def fold_of(*records: MetadataRecord | bytes) -> MetadataImage:
        values = [record if isinstance(record, bytes) else encode_record(record) for record in records]
        path = tmp_path / f"{0:020d}.log"
        path.write_bytes(
            b"".join(write_data_batch(offset=at, values=[one], timestamps=at + 100) for at, one in enumerate(values))
        )
        return fold(read_batches(path, 0))

    return fold_of


def only(payloads: list[dict], kind: str) -> list[dict]:
    return [one["data"] for one in payloads if one["type"] == kind]


@pytest.mark.parametrize("name", KRAFT)
def test_the_image_is_what_kafkas_own_tool_shows(name: str, fixture_set: Sets) -> None:
    fixture = fixture_set(name)
    image = load_image(fixture.data)
    payloads = [record.payload for record in dumped_records((fixture.root / "metadata-dump.txt").read_text())]
    removed = {one["topicId"] for one in only(payloads, "REMOVE_TOPIC_RECORD")}
    created = {one["name"]: one["topicId"] for one in only(payloads, "TOPIC_RECORD")}
    assert image.topic_ids() == {topic: topic_id for topic, topic_id in created.items() if topic_id not in removed}
    assert {topic.topic_id for topic in image.deleted_topics} == removed
    partitions = {(one["topicId"], one["partitionId"]) for one in only(payloads, "PARTITION_RECORD")}
    assert {(topic.topic_id, one.partition) for topic in image.topics.values() for one in topic.partitions} == {
        pair for pair in partitions if pair[0] not in removed
    }
    configs = {
        (one["resourceType"], one["resourceName"], one["name"]): one["value"]
        for one in only(payloads, "CONFIG_RECORD")
        if created.get(one["resourceName"]) not in removed
    }
    assert configs == {
        (resource.type, resource.name, key): value
        for resource, values in image.configs.items()
        for key, value in values.items()
    }
    assert image.features == {one["name"]: one["featureLevel"] for one in only(payloads, "FEATURE_LEVEL_RECORD")}
    quotas = {(entity, key): value for entity, values in image.quotas.items() for key, value in values.items()}
    assert quotas == {
        (tuple((part["entityType"], part["entityName"]) for part in one["entity"]), one["key"]): one["value"]
        for one in only(payloads, "CLIENT_QUOTA_RECORD")
    }
    blocks = [(block.broker_id, block.broker_epoch, block.next_producer_id) for block in image.producer_id_blocks]
    assert blocks == [
        (one["brokerId"], one["brokerEpoch"], one["nextProducerId"]) for one in only(payloads, "PRODUCER_IDS_RECORD")
    ]
    assert [(one.name, one.outcome) for one in image.transactions] == [("Bootstrap records", TransactionOutcome.ENDED)]
    assert image.notes == ()


@pytest.mark.parametrize("name", KRAFT)
def test_the_log_up_to_a_checkpoint_and_the_checkpoint_are_the_same_image(name: str, fixture_set: Sets) -> None:
    files = list_metadata_log(fixture_set(name).data)
    # From 4.2 on a formatted directory begins with one at offset 0, whose records come in the log once more.
    checkpoints = [checkpoint for checkpoint in files.checkpoints if checkpoint.end_offset]
    assert len(checkpoints) >= 6
    parts = [part for part in read_metadata_log(files) if isinstance(part, MetadataBatch)]
    for checkpoint in checkpoints:
        ours = fold(part for part in parts if part.header.last_offset < checkpoint.end_offset)
        theirs = fold(read_checkpoint(checkpoint.path), covered=checkpoint.end_offset)
        # What only a log shows: the history, and what was deleted.
        history = replace(
            ours,
            topics={topic: replace(one, created_offset=None) for topic, one in ours.topics.items()},
            deleted_topics=(),
            broker_config_changes=theirs.broker_config_changes,
            producer_id_blocks=theirs.producer_id_blocks,
            transactions=(),
        )
        assert history == theirs


@pytest.mark.parametrize("name", [*KRAFT, "kafka-3.9.1-tiered"])
def test_topic_ids_are_those_that_brokers_wrote_beside_the_partitions(name: str, fixture_set: Sets) -> None:
    data = fixture_set(name).data
    topic_ids = load_image(data).topic_ids()
    written = [path for path in data.glob(f"*-*/{PARTITION_METADATA}") if not path.parent.name.startswith("__cluster")]
    assert len(written) > 2
    for path in written:
        topic = path.parent.name.rpartition("-")[0]
        assert topic_ids[topic] == read_partition_metadata(path.read_bytes()).topic_id


@pytest.mark.parametrize("name", KRAFT)
def test_the_expiration_is_found_with_when_it_was_set(name: str, fixture_set: Sets) -> None:
    image = load_image(fixture_set(name).data)
    assert image.configs[ALL_BROKERS]["producer.id.expiration.ms"] == "43200000"
    (change,) = [one for one in image.broker_config_changes if one.name == "producer.id.expiration.ms"]
    assert change.offset is not None
    assert 0 < change.timestamp < image.timestamp


@pytest.mark.parametrize("name", KRAFT)
def test_settings_read_alone_are_those_of_the_whole(name: str, fixture_set: Sets) -> None:
    data = fixture_set(name).data
    whole, settings, now = load_image(data), load_settings_image(data), load_image(data, is_current=True)
    for alone in (settings, now):
        assert (alone.features, alone.brokers, alone.configs) == (whole.features, whole.brokers, whole.configs)
        assert (alone.offset, alone.timestamp, alone.leader_epoch) == (
            whole.offset,
            whole.timestamp,
            whole.leader_epoch,
        )
    assert now.topic_ids() == whole.topic_ids()
    assert settings.topics.keys() == whole.topics.keys()
    assert not any(topic.partitions for topic in settings.topics.values())


def test_a_checkpoint_knows_of_producer_ids_only_where_the_next_block_begins(tmp_path: Path) -> None:
    path = tmp_path / f"{9:020d}-{1:010d}.checkpoint"
    record = ProducerIdsRecord(broker_id=-1, next_producer_id=3000)
    path.write_bytes(checkpoint_bytes([record], epoch=1, timestamp=77))
    image = fold(read_checkpoint(path), covered=9)
    assert (image.offset, image.timestamp, image.next_producer_id) == (8, 77, 3000)
    assert image.producer_id_blocks == (
        ProducerIdBlock(
            first_producer_id=0,
            next_producer_id=3000,
            broker_id=None,
            broker_epoch=None,
            source=BlockSource.CHECKPOINT,
            offset=None,
            timestamp=77,
        ),
    )


def test_the_old_checkpoints_that_name_broker_0_name_no_holder_either(tmp_path: Path) -> None:
    path = tmp_path / f"{9:020d}-{1:010d}.checkpoint"
    record = ProducerIdsRecord(broker_id=0, broker_epoch=0, next_producer_id=3000)
    path.write_bytes(checkpoint_bytes([record], epoch=1, timestamp=77))
    (block,) = fold(read_checkpoint(path), covered=9).producer_id_blocks
    assert (block.source, block.broker_id, block.first_producer_id) == (BlockSource.CHECKPOINT, None, 0)


def with_next_id(directory: Path, next_producer_id: int | None) -> MetadataImage:
    """Return the image of a checkpoint that says no more than where the next block begins, or nothing."""
    path = directory / f"{9:020d}-{1:010d}.checkpoint"
    records = [] if next_producer_id is None else [ProducerIdsRecord(broker_id=-1, next_producer_id=next_producer_id)]
    path.write_bytes(checkpoint_bytes(records, epoch=1, timestamp=77))
    return fold(read_checkpoint(path), covered=9)


def test_empty_image_round_trip(tmp_path: Path) -> None:
    assert with_next_id(tmp_path, None).next_producer_id is None


def test_image_1_round_trip(tmp_path: Path) -> None:
    assert with_next_id(tmp_path, 123).next_producer_id == 123


def test_apply_delta_1(folded: Callable[..., MetadataImage]) -> None:
    records = [
        ProducerIdsRecord(broker_id=id_, broker_epoch=2, next_producer_id=at) for id_, at in ((2, 1123), (3, 2123))
    ]
    assert folded(*records).next_producer_id == 2123


def test_image_2_round_trip(tmp_path: Path) -> None:
    assert with_next_id(tmp_path, 2123).next_producer_id == 2123


def spans(image: MetadataImage) -> list[tuple[int, int, str]]:
    return [(block.first_producer_id, block.next_producer_id, block.source.value) for block in image.producer_id_blocks]


def test_blocks_follow_one_another_and_say_whose_they_are(folded: Callable[..., MetadataImage]) -> None:
    image = folded(
        ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=1000),
        ProducerIdsRecord(broker_id=2, broker_epoch=8, next_producer_id=2000),
    )
    assert spans(image) == [(0, 1000, "allocated"), (1000, 2000, "allocated")]
    assert [(block.broker_id, block.broker_epoch, block.timestamp) for block in image.producer_id_blocks] == [
        (1, 6, 100),
        (2, 8, 101),
    ]
    assert image.next_producer_id == 2000
    assert image.notes == ()


def test_a_migration_from_zookeeper_stands_for_all_ids_before_it(folded: Callable[..., MetadataImage]) -> None:
    image = folded(
        ProducerIdsRecord(broker_id=3, next_producer_id=7000),
        ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=8000),
    )
    assert spans(image) == [(0, 7000, "migration"), (7000, 8000, "allocated")]
    assert image.notes == ()


@pytest.mark.parametrize(
    ("second", "span", "text"),
    [
        (1500, (500, 1500, "allocated"), "does not begin at 1000: ids below 1000 were allocated before"),
        (1000, (0, 1000, "allocated"), "does not begin at 1000: ids below 1000 were allocated before"),
        (5000, (4000, 5000, "allocated"), "does not begin at 1000: ids from 1000 to 4000 were allocated to no broker"),
    ],
)
def test_a_block_out_of_order_is_kept_as_it_was_given_and_is_noted(
    second: int, span: tuple[int, int, str], text: str, folded: Callable[..., MetadataImage]
) -> None:
    image = folded(
        ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=1000),
        ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=second),
    )
    assert spans(image)[1] == span
    assert image.notes == (Note(offset=1, text=f"the block of producer ids below {second} {text}"),)


def test_records_of_a_transaction_count_from_its_end_on(folded: Callable[..., MetadataImage]) -> None:
    begun = (BeginTransactionRecord(name="move"), TOPIC)
    assert folded(*begun).topics == {}
    assert folded(*begun, EndTransactionRecord()).topic_ids() == {"payments": TOPIC_ID}


def test_the_outcome_of_transactions_is_reported(folded: Callable[..., MetadataImage]) -> None:
    image = folded(
        BeginTransactionRecord(name="first"),
        TOPIC,
        AbortTransactionRecord(reason="the leader changed"),
        BeginTransactionRecord(),
        EndTransactionRecord(),
        BeginTransactionRecord(name="third"),
        ProducerIdsRecord(broker_id=1, broker_epoch=6, next_producer_id=1000),
    )
    assert image.topics == {}
    assert image.producer_id_blocks == ()
    ends = [(one.name, one.begin_offset, one.end_offset, one.records, one.outcome) for one in image.transactions]
    assert ends == [
        ("first", 0, 2, 1, TransactionOutcome.ABORTED),
        (None, 3, 4, 0, TransactionOutcome.ENDED),
        ("third", 5, None, 1, TransactionOutcome.OPEN),
    ]
    assert isinstance(image.transactions[0], MetadataTransaction)
    assert image.transactions[0].reason == "the leader changed"


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ([BeginTransactionRecord(), BeginTransactionRecord()], "begins while another one is open"),
        ([TOPIC, EndTransactionRecord()], "ends that never began"),
        ([TOPIC, AbortTransactionRecord()], "ends that never began"),
        ([BROKER, PARTITION], f"the topic with id {TOPIC_ID} is not there"),
        ([BROKER, RemoveTopicRecord(topic_id=TOPIC_ID)], f"the topic with id {TOPIC_ID} is not there"),
        ([TOPIC, PartitionChangeRecord(partition_id=3, topic_id=TOPIC_ID)], "partition 3 of topic .* never created"),
        ([TOPIC, BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6)], "epoch 6, changes, but it is not regis"),
        ([BROKER, FenceBrokerRecord(id=1, epoch=5)], "epoch 5, changes, but it is registered under epoch 6"),
        ([BROKER, BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6, fenced=2)], "not -1 to 1"),
        ([TOPIC, ClearElrRecord(topic_name="orders")], "topic orders is not there"),
    ],
)
def test_records_that_contradict_what_came_before_are_refused_with_their_place(
    records: list[MetadataRecord], complaint: str, folded: Callable[..., MetadataImage]
) -> None:
    with pytest.raises(MetadataLogError, match=rf"0\.log: record at offset 1, in the batch at byte \d+: .*{complaint}"):
        folded(*records)


def younger(api_key: int, version: int) -> bytes:
    """Return a record of a type, or a version of one, that is not known yet."""
    return b"".join(map(write_unsigned_varint, (1, api_key, version))) + b"whatever"


def test_a_younger_metadata_version_is_read_and_noted(folded: Callable[..., MetadataImage]) -> None:
    image = folded(FeatureLevelRecord(name="metadata.version", feature_level=99), TOPIC)
    assert image.metadata_version == 99
    assert image.topic_ids() == {"payments": TOPIC_ID}
    assert [one.text for one in image.notes] == ["metadata.version 99 is newer than 4.5-IV0, the newest known"]


def test_what_is_younger_is_skipped_and_named_once(folded: Callable[..., MetadataImage]) -> None:
    tagged = encode_record(TOPIC)[:-1] + bytes([1, 9, 1, 0])
    image = folded(younger(77, 0), younger(77, 0), younger(14, 5), tagged)
    assert image.topic_ids() == {"payments": TOPIC_ID}
    assert [one.text for one in image.notes] == [
        "tagged field 9 of TopicRecord, unknown to this release: 1 skipped",
        "1 record of CLIENT_QUOTA_RECORD, version 5, unknown to this release, was skipped",
        "2 records of type 77, unknown to this release, were skipped",
    ]


def test_an_answer_that_a_skipped_record_could_change_is_refused_by_name(folded: Callable[..., MetadataImage]) -> None:
    image = folded(younger(77, 0), TOPIC, younger(15, 3))
    assert image.relying_on(TopicRecord, ConfigRecord) is image
    with pytest.raises(
        MetadataVersionError,
        match=r"record at offset 2, in the batch at byte \d+: 1 record of PRODUCER_IDS_RECORD, version 3, unknown",
    ):
        image.relying_on(TopicRecord, ProducerIdsRecord)


def test_what_a_skipped_record_made_is_skipped_with_it(folded: Callable[..., MetadataImage]) -> None:
    image = folded(younger(2, 1), PARTITION, PARTITION)
    assert image.topics == {}
    assert [str(one) for one in image.skipped] == [
        "2 records of PARTITION_RECORD, about what a skipped record may have made, were skipped",
        "1 record of TOPIC_RECORD, version 1, unknown to this release, was skipped",
    ]
    with pytest.raises(MetadataVersionError, match="PARTITION_RECORD"):
        image.relying_on(PartitionRecord)


def test_which_records_count_is_never_guessed(folded: Callable[..., MetadataImage]) -> None:
    with pytest.raises(
        MetadataVersionError, match=r"END_TRANSACTION_RECORD, version 1, is unknown .* which records coun"
    ):
        folded(BeginTransactionRecord(), TOPIC, younger(24, 1))


def test_a_controller_that_is_taken_out_is_gone(folded: Callable[..., MetadataImage]) -> None:
    controller = RegisterControllerRecord(
        controller_id=3, incarnation_id=UUID, zk_migration_ready=False, end_points=(), features=()
    )
    assert set(folded(controller).controllers) == {3}
    assert folded(controller, UnregisterControllerRecord(controller_id=3)).controllers == {}


def test_log_dirs_are_cordoned_until_a_change_says_otherwise(folded: Callable[..., MetadataImage]) -> None:
    broker = replace(BROKER, cordoned_log_dirs=(UUID,))
    fenced = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6, fenced=1)
    assert folded(broker, fenced).brokers[1].cordoned_log_dirs == (UUID,)
    assert folded(broker, replace(fenced, cordoned_log_dirs=())).brokers[1].cordoned_log_dirs == ()


def test_a_torn_tail_is_noted(tmp_path: Path) -> None:
    whole = write_data_batch(offset=0, values=[encode_record(TOPIC)], timestamps=5)
    (tmp_path / f"{0:020d}.log").write_bytes(whole + b"\0" * 9)
    image = load_image(tmp_path)
    assert image.topic_ids() == {"payments": TOPIC_ID}
    assert [one.text for one in image.notes] == [f"{0:020d}.log: 9 bytes from byte {len(whole)} on are a torn batch"]
    assert isinstance(list(read_metadata_log(list_metadata_log(tmp_path)))[-1], TornTail)


def test_a_deleted_topic_takes_partitions_and_configuration_with_it(folded: Callable[..., MetadataImage]) -> None:
    config = ConfigRecord(resource_type=2, resource_name="payments", name="retention.ms", value="1")
    image = folded(TOPIC, PARTITION, config, RemoveTopicRecord(topic_id=TOPIC_ID))
    assert image.topics == image.configs == {}
    assert image.deleted_topics == (DeletedTopic(name="payments", topic_id=TOPIC_ID, offset=3, timestamp=103),)


def test_a_topic_created_again_has_another_id_and_nothing_of_the_old_one(folded: Callable[..., MetadataImage]) -> None:
    again = TopicRecord(name="payments", topic_id=UUID)
    image = folded(TOPIC, PARTITION, RemoveTopicRecord(topic_id=TOPIC_ID), again)
    assert image.topics["payments"].topic_id == UUID
    assert image.topics["payments"].partitions == ()


def test_changes_of_a_partition_add_up(folded: Callable[..., MetadataImage]) -> None:
    image = folded(
        TOPIC,
        PARTITION,
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=(1,), eligible_leader_replicas=(2,)),
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=-1, leader_recovery_state=1),
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=2, last_known_elr=(1,)),
    )
    (partition,) = image.topics["payments"].partitions
    assert (partition.isr, partition.replicas, partition.leader, partition.leader_recovery_state) == (
        (1,),
        (1, 2),
        2,
        1,
    )
    assert (partition.leader_epoch, partition.partition_epoch) == (2, 3)
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((2,), (1,))


@pytest.mark.parametrize("name", ["payments", ""])
def test_eligible_leaders_are_cleared_for_one_topic_or_all(name: str, folded: Callable[..., MetadataImage]) -> None:
    with_elr = replace(PARTITION, eligible_leader_replicas=(2,), last_known_elr=(1,))
    (partition,) = folded(TOPIC, with_elr, ClearElrRecord(topic_name=name)).topics["payments"].partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())


def test_a_brokers_registration_follows_its_changes(folded: Callable[..., MetadataImage]) -> None:
    change = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6, fenced=-1, in_controlled_shutdown=1)
    broker = folded(BROKER, change).brokers[1]
    assert (broker.fenced, broker.in_controlled_shutdown, broker.log_dirs) == (False, True, (UUID,))
    fenced = FenceBrokerRecord(id=1, epoch=6)
    assert folded(BROKER, change, fenced).brokers[1].fenced
    assert not folded(BROKER, fenced, UnfenceBrokerRecord(id=1, epoch=6)).brokers[1].fenced
    assert folded(BROKER, UnregisterBrokerRecord(broker_id=1, broker_epoch=6)).brokers == {}
    again = replace(BROKER, broker_epoch=9)
    assert folded(BROKER, again).brokers[1].epoch == 9


def test_settings_and_quotas_are_taken_away_again(folded: Callable[..., MetadataImage]) -> None:
    given = ConfigRecord(resource_type=4, resource_name="1", name="producer.id.expiration.ms", value="5")
    entity = (EntityData(entity_type="user", entity_name=None),)
    quota = ClientQuotaRecord(entity=entity, key="request_percentage", value=5.0, remove=False)
    image = folded(given, quota)
    assert image.configs == {ConfigResource(ResourceType.BROKER, "1"): {"producer.id.expiration.ms": "5"}}
    assert image.quotas == {(("user", None),): {"request_percentage": 5.0}}
    image = folded(given, replace(given, value=None), quota, replace(quota, remove=True))
    assert image.configs == image.quotas == {}
    assert [(change.value, change.offset) for change in image.broker_config_changes] == [("5", 0), (None, 1)]
    assert isinstance(image.broker_config_changes[0], ConfigChange)


def test_a_feature_of_level_0_is_gone(folded: Callable[..., MetadataImage]) -> None:
    given = FeatureLevelRecord(name="group.version", feature_level=1)
    assert folded(given).features == {"group.version": 1}
    assert folded(given, replace(given, feature_level=0)).features == {}


ENTRY: Final = AccessControlEntryRecord(
    id=UUID, resource_type=2, resource_name="a", pattern_type=3, principal="User:a", host="*", operation=3,
    permission_type=3,
)  # fmt: skip


def test_an_access_control_entry_is_there_until_it_is_removed(folded: Callable[..., MetadataImage]) -> None:
    removed = RemoveAccessControlEntryRecord(id=UUID)
    assert folded(ENTRY).access_control_entries == (ENTRY,)
    assert folded(ENTRY, removed).access_control_entries == ()
    with pytest.raises(MetadataLogError, match="which was never added"):
        folded(removed)


def test_a_user_has_one_credential_of_each_mechanism(folded: Callable[..., MetadataImage]) -> None:
    first = UserScramCredentialRecord(
        name="alice", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
    )
    changed, other = replace(first, salt=b"t"), replace(first, mechanism=2)
    removed = RemoveUserScramCredentialRecord(name="alice", mechanism=1)
    assert folded(first, other, changed).scram_credentials == (changed, other)
    assert folded(first, other, removed).scram_credentials == (other,)


def test_what_is_not_folded_is_counted(folded: Callable[..., MetadataImage]) -> None:
    token = RemoveDelegationTokenRecord(token_id="a")
    assert folded(token, token).left_aside == {"REMOVE_DELEGATION_TOKEN_RECORD": 2}


@pytest.mark.parametrize("content", [b"", bytes(100)])
def test_a_log_without_a_record_says_nothing_of_a_cluster(content: bytes, tmp_path: Path) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(content)
    for load in (load_image, load_settings_image, partial(load_image, is_current=True)):
        with pytest.raises(MetadataLogError, match="holds no record"):
            load(tmp_path)
