"""What a running cluster is asked for, and what is made of its answers."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from types import SimpleNamespace as Made
from typing import TYPE_CHECKING, Any

import pytest
from kafka import TopicPartition as Place
from kafka.errors import UnsupportedVersionError
from kafka.structs import OffsetAndMetadata

from resnap.storage.errors import ClusterError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.live_state import ask_cluster_state, offsets_partition
from resnap.tiering.cluster_state.group_offsets import OFFSETS_TOPIC, CommittedOffset

if TYPE_CHECKING:
    from collections.abc import Iterator

CLUSTER_AUTHORIZATION_FAILED, SECURITY_DISABLED = 31, 54


class Admin:
    """Answers as kafka-python does for an old cluster, one of whose partitions of offsets has no leader."""

    def list_config_resources(self) -> object:
        raise UnsupportedVersionError

    def list_partition_offsets(self, asked: dict[Place, object]) -> dict[Place, object]:
        assert [place.partition for place in asked] == [0]
        return {place: Made(offset=7) for place in asked}

    def list_groups(self) -> list[dict[str, object]]:
        return [{"group_id": "b"}, {"group_id": "c"}, {"group_id": "sharers", "group_type": "share"}]

    def list_group_offsets(self, names: list[str] | str) -> dict[str, dict[Place, OffsetAndMetadata]]:
        if names == ["b", "c"]:
            raise UnsupportedVersionError  # by a broker before 3.0
        of = {Place("t", 0): OffsetAndMetadata(5, None, None), Place("t", 1): OffsetAndMetadata(-1, "", -1)}
        return {"b": {"b": of}, "c": {"c": {}}}[names]

    def describe_user_scram_credentials(self) -> dict[str, dict[str, list[object]]]:
        return {"alice": {"credential_infos": [{"mechanism": 1}, {"mechanism": 2}]}}


class FakeCluster:
    """A cluster without brokers, whose answers have the given error codes, by what they are of."""

    def __init__(self, *, high_watermark: int | None = None, **codes: int) -> None:
        self.high_watermark = high_watermark
        """Of the metadata log; None: brokers do not know the request, as with ZooKeeper."""
        self.codes = defaultdict(int, codes)

    def cluster_id(self) -> str | None:
        return None if self.codes["id"] else "c"

    @contextmanager
    def admin(self, _: str) -> Iterator[Admin]:
        yield Admin()

    def broker_ids(self) -> list[int]:
        return [1]

    def describe_topics(self) -> list[dict[str, Any]]:
        partitions = [{"partition_index": 0, "leader_id": 1}, {"partition_index": 1, "leader_id": -1}]
        return [{"name": OFFSETS_TOPIC, "topic_id": None, "partitions": partitions}]

    def hidden(self, names: set[str]) -> dict[str, str]:
        return dict.fromkeys(names & {"secret"}, "TOPIC_AUTHORIZATION_FAILED") if self.codes["topics"] else {}

    def ask(self, what: str, request: Any, broker_id: int | None = None) -> Made:
        if "logs of broker" in what:
            topics = [Made(name=name) for name in (OFFSETS_TOPIC, "secret", "deleted meanwhile")]
            return Made(results=[Made(topics=topics)])
        if "configuration" in what:
            return Made(results=[self._settings(kind, name, broker_id) for kind, name, _ in request.resources])
        if "quorum" in what:
            if self.high_watermark is None:
                raise ClusterError(what) from UnsupportedVersionError()
            topic = Made(partitions=[Made(high_watermark=self.high_watermark)])
            return Made(error_code=self.codes["quorum"], topics=[topic])
        if "quotas" in what:
            return Made(error_code=self.codes["quotas"], entries=None)
        return Made(error_code=self.codes["entries"], resources=[])

    def _settings(self, kind: int, name: str, broker_id: int | None) -> Made:
        sources = {2: (1, 5), 4: (2, 3, 4)}[kind]
        assert broker_id == (int(name) if kind == 4 and name else None)
        configs = [Made(name=f"from.{one}", value=f"{one}", config_source=one, is_sensitive=False) for one in sources]
        configs.append(Made(name="a.password", value=None, config_source=sources[0], is_sensitive=True))
        return Made(resource_type=kind, resource_name=name, error_code=self.codes["configs"], configs=configs)


def asked(high_watermark: int | None = None, **codes: int) -> Any:
    cluster: Any = FakeCluster(high_watermark=high_watermark, **codes)
    return ask_cluster_state(cluster, taken_ms=1)


def test_what_a_cluster_does_not_tell_is_named() -> None:
    state, faults = asked(entries=SECURITY_DISABLED)
    assert state.share_groups == ("sharers",)
    assert [str(fault) for fault in faults] == [f"{OFFSETS_TOPIC}-1 has no leader: its groups are not exported"]
    (partition,) = state.offsets
    assert (partition.partition, partition.end_offset) == (0, 7)
    assert partition.groups == {"b": {TopicPartition("t", 0): CommittedOffset(5)}}
    metadata = state.metadata
    assert (metadata.offset, metadata.topics, metadata.access_control_entries, metadata.quotas) == (0, {}, (), {})
    assert {(one.type, one.name): values for one, values in metadata.configs.items()} == {
        (2, OFFSETS_TOPIC): {"from.1": "1"}, (4, "1"): {"from.2": "2"}, (4, ""): {"from.3": "3"},
    }  # fmt: skip
    assert metadata.secrets_left_out == 2 + 2  # of topic and broker, and of the user
    assert metadata.scram_left_out == (("alice", 1), ("alice", 2))


def test_the_state_is_as_of_the_last_record_of_the_metadata_log() -> None:
    state, _ = asked(high_watermark=8)
    assert (state.cluster_id, state.metadata.offset) == ("c", 7)


def test_the_state_of_a_cluster_without_an_id_cannot_be_kept() -> None:
    with pytest.raises(ClusterError, match="no cluster id"):
        asked(id=1)


def test_a_state_without_topics_that_the_user_may_not_describe_is_not_kept() -> None:
    with pytest.raises(ClusterError, match="may not describe secret: TOPIC_AUTHORIZATION_FAILED") as refused:
        asked(topics=1)
    assert "DESCRIBE" in str(refused.value.hint)


@pytest.mark.parametrize("of", ["entries", "quotas", "configs", "quorum"])
def test_what_is_refused_ends_the_run_with_what_is_needed(of: str) -> None:
    with pytest.raises(ClusterError, match="CLUSTER_AUTHORIZATION_FAILED") as refused:
        asked(high_watermark=8, **{of: CLUSTER_AUTHORIZATION_FAILED})
    assert "DESCRIBE" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("group", "partition"),
    [("", 0), ("abc", 96354 % 50), ("polygenelubricants", 0), ("\U0001f600", (31 * 0xD83D + 0xDE00) % 50)],
)
def test_a_group_is_in_the_partition_of_its_hash_in_java(group: str, partition: int) -> None:
    assert offsets_partition(group, 50) == partition
