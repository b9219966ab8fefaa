"""Log dirs of a node with all that ``resnap export`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resnap.tiering.cluster_state.group_offsets import CommittedOffset
from resnap.tiering.controller.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EntityData,
    FeatureLevelRecord,
    PartitionRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from tests.logs.metadata_checkpoint import checkpoint_bytes
from tests.logs.offsets_log import OffsetsLog, key_of, value_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from resnap.storage.log.names import TopicPartition
    from resnap.tiering.controller.metadata.records import MetadataRecord

CLUSTER: Final = "AAAAAAAAQACAAAAAAAAAAQ"
SECRET: Final = "sesame"
ENTRY: Final = AccessControlEntryRecord(
    id="UKQXDdQN8qtNI_fjesdrSw", resource_type=2, resource_name="payments", pattern_type=3, principal="User:alice",
    host="*", operation=4, permission_type=3,
)  # fmt: skip
CREDENTIAL: Final = UserScramCredentialRecord(
    name="alice", mechanism=1, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=4096
)
QUOTA: Final = ClientQuotaRecord(
    entity=(EntityData(entity_type="user", entity_name="alice"),), key="producer_byte_rate", value=1e6, remove=False
)
BROKER: Final = ConfigRecord(resource_type=4, resource_name="", name="log.cleaner.threads", value="2")
PASSWORD: Final = ConfigRecord(resource_type=4, resource_name="1", name="ssl.keystore.password", value=SECRET)
RETENTION: Final = ConfigRecord(resource_type=2, resource_name="payments", name="retention.ms", value="-1")


def topic(name: str, topic_id: str, partitions: int) -> list[MetadataRecord]:
    """Return the records of a topic of broker 1."""
    return [TopicRecord(name=name, topic_id=topic_id)] + [
        PartitionRecord(
            partition_id=number, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1, leader_epoch=0,
            partition_epoch=0,
        ) for number in range(partitions)
    ]  # fmt: skip


def node(path: Path, number: int = 1, cluster: str = CLUSTER) -> Path:
    """Make the log dir of a node."""
    path.mkdir(parents=True)
    (path / "meta.properties").write_text(f"version=1\nnode.id={number}\ncluster.id={cluster}\n")
    return path


def with_metadata(log_dir: Path, records: Sequence[MetadataRecord], end_offset: int = 100) -> Path:
    """Write a checkpoint of these records into a log dir."""
    directory = log_dir / "__cluster_metadata-0"
    directory.mkdir()
    all_records = [FeatureLevelRecord(name="metadata.version", feature_level=21), *records]
    (directory / f"{end_offset:020d}-0000000001.checkpoint").write_bytes(
        checkpoint_bytes(all_records, epoch=1, timestamp=1_700_000_000_000)
    )
    (directory / f"{end_offset:020d}.log").write_bytes(b"")
    return log_dir


def with_offsets(
    log_dir: Path,
    offsets: Mapping[str, Mapping[TopicPartition, int]],
    number: int = 0,
    share_groups: Sequence[str] = (),
) -> Path:
    """Write a partition of ``__consumer_offsets`` into a log dir."""
    log = OffsetsLog()
    for group in share_groups:
        log.records((b"\0\x0b" + len(group).to_bytes(2, "big") + group.encode(), bytes(15)))
    for group, committed in offsets.items():
        log.records(*((key_of(group, at), value_of(CommittedOffset(offset))) for at, offset in committed.items()))
    log.write(log_dir, number)
    return log_dir
