"""A cluster dies, and from its bucket comes one with its groups' offsets, ACLs, quotas, users and configuration."""

from __future__ import annotations

import re
import shlex
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.messages.wire import ZERO_UUID
from resnap.storage.stores.urls import open_store
from resnap.tiering.cluster_state.state import merge_documents, named_state
from resnap.tiering.controller.metadata.folding import load_image
from tests.kafka.brokers import SMALL, Broker, eventually
from tests.kafka.releases import HERE, PATIENCE_S, brought
from tests.kafka.test_cluster_from_a_bucket import NEW_CLUSTER, end_of, end_transactions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.cluster_state.state import ClusterState, KnownMetadata
    from resnap.tiering.controller.metadata.image import MetadataImage
    from resnap.tiering.controller.metadata.records import AccessControlEntryRecord
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

GROUPS: Final = HERE / "Groups.java"
TOPICS: Final = {"payments": 2, "audit": 1}
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
SHARE: Final = {
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
}
REPLICATED: Final = {"offsets.topic.replication.factor": 2, "offsets.topic.num.partitions": 3}
"""Each broker has two of the three partitions, and each of the three groups below is in another one."""
FIRST_WITH_SHARE_GROUPS: Final = (4, 2)
CONSUMER_GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ACLS, CONFIGS = "kafka.admin.AclCommand", "kafka.admin.ConfigCommand"
OF_A_CLIENT: Final = "--entity-type users --entity-name a --entity-type clients --entity-name b"
SET: Final = (
    (ACLS, "--add --force --topic audit --deny-principal User:ANONYMOUS --operation Write"),
    (ACLS, "--add --force --topic audit --allow-principal User:* --operation Read --operation DescribeConfigs"),
    (ACLS, "--add --force --group bill --resource-pattern-type prefixed --allow-principal User:* --operation Read"),
    (CONFIGS, "--alter --entity-type users --entity-name alice --add-config producer_byte_rate=1048576"),
    (CONFIGS, "--alter --entity-type users --entity-default --add-config request_percentage=50"),
    (CONFIGS, f"--alter {OF_A_CLIENT} --add-config producer_byte_rate=9"),
    (CONFIGS, "--alter --entity-type users --entity-name alice --add-config SCRAM-SHA-256=[password=sesame]"),
    (CONFIGS, "--alter --entity-type topics --entity-name payments --add-config max.message.bytes=900000"),
    (CONFIGS, "--alter --entity-type brokers --entity-default --add-config log.cleaner.threads=2"),
)
"""What an operator had set."""
EARLY: Final = 4
"""How much of it before a broker stopped."""
SHOWN: Final = (
    (ACLS, "--list"),
    (CONFIGS, "--describe --entity-type users"),
    (CONFIGS, "--describe --entity-type topics --entity-name payments"),
    (CONFIGS, "--describe --entity-type brokers --entity-default"),
)


@dataclass(frozen=True)
class Tools:
    """Kafka's own tools, of 3.9.1, which has them all."""

    release: Release

    def command(self, main_class: str) -> list[str]:
        """Return the command line of a tool."""
        command = self.release.command(main_class)
        at = command.index("-cp") + 1
        command[at] = f"{brought('tools', 'kafka-tools-[0-9]*.jar')}/*:{command[at]}"
        return command

    def run(self, broker: Broker, main_class: str, arguments: str) -> list[str]:
        """Return the lines that a tool prints, in order."""
        command = [*self.command(main_class), "--bootstrap-server", broker.address, *arguments.split()]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert ran.returncode == 0, f"{arguments}\n{ran.stdout}\n{ran.stderr}"
        return sorted(filter(None, map(str.strip, ran.stdout.splitlines())))

    def shown(self, broker: Broker) -> list[list[str]]:
        """Return what the tools show of all that was set."""
        return [self.run(broker, *shown) for shown in SHOWN]

    def script(self, folder: Path) -> str:
        """Make kafka-consumer-groups.sh, and return the PATH that has it."""
        path = folder / "kafka-consumer-groups.sh"
        path.write_text(f'#!/bin/sh\nexec {shlex.join(self.command(CONSUMER_GROUPS))} "$@"\n')
        path.chmod(0o755)
        return f"{folder}:/usr/bin:/bin"


def groups(broker: Broker, *arguments: object) -> str:
    return broker.release.run(GROUPS, arguments[0], broker.address, *arguments[1:])


def offset_of(tools: Tools, broker: Broker, group: str, partition: int) -> int:
    """Return the offset that Kafka's tool shows of a group in a partition of payments."""
    lines = tools.run(broker, CONSUMER_GROUPS, f"--describe --group {group} --offsets")
    found = [re.split(r"\s+", line) for line in lines if line.startswith(group)]
    return next(int(words[3]) for words in found if words[1:3] == ["payments", str(partition)])


def joined_share_groups(broker: Broker) -> list[str]:
    """Let a share group read payments, where the release has share groups; return which there are."""
    if broker.release.line < FIRST_WITH_SHARE_GROUPS:
        return []
    broker.release.run(HERE / "ShareGroup.java", broker.address, "sharers", "payments")
    return ["sharers"]


def exported(command: Resnap, *arguments: object) -> str:
    """Export a state; return its key."""
    ran = command(*arguments, "--output", "json")
    assert ran.code == 0, ran.err
    return str(ran.document["key"])


def assert_told_alike(told: ClusterState, read: ClusterState) -> None:
    """Assert that the running cluster tells the same as the log dirs of its nodes, but for secrets."""
    assert (told.cluster_id, told.node_id, told.groups) == (read.cluster_id, None, read.groups)
    assert told.share_groups == read.share_groups
    assert {one.partition: set(one.groups) for one in told.offsets if one.groups} == {
        one.partition: set(one.groups) for one in read.offsets if one.groups
    }
    theirs, ours = told.metadata, read.metadata
    assert theirs is not None
    assert ours is not None
    assert theirs.offset >= ours.offset
    assert (theirs.topics, theirs.configs, theirs.quotas) == (ours.topics, ours.configs, ours.quotas)
    assert entries(theirs) == entries(ours) != set()
    users = tuple((one.name, one.mechanism) for one in ours.scram_credentials)
    assert (theirs.scram_credentials, theirs.scram_left_out, theirs.secrets_left_out) == ((), users, 1)


def entries(metadata: KnownMetadata | MetadataImage) -> set[AccessControlEntryRecord]:
    """Return the access control entries without their ids, which brokers do not tell."""
    return {replace(one, id=ZERO_UUID) for one in metadata.access_control_entries}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A cluster that is gone, and what is left of it."""

    store: str
    image: MetadataImage
    shown: list[list[str]]
    """What Kafka's tools showed of it."""
    told: str
    """The key of what the cluster told."""
    nodes: set[str]
    """The keys of what its nodes knew."""
    last: int
    """Where team/end is in payments-0."""
    sharers: list[str]


def live_and_die(command: Resnap, kafka: Release, tools: Tools, root: Path) -> Lost:
    """Let a cluster of three brokers live, be shipped and exported, and die; none of them knows all groups.

    The third broker is the first that stops, and is exported last: what it knows, the others have known better since.
    """
    version, store = kafka.version, (root / "store").as_uri()
    own = AUTHORIZER | SHARE | REPLICATED
    old = Broker(kafka, [root / "1" / "data"], own)
    others = [Broker(kafka, [root / str(node) / "data"], own, node=node, joins=old) for node in (2, 3)]
    cluster = [old, *others]
    with ExitStack() as running:
        for broker in cluster:
            broker.root.mkdir()
            broker.start()
            running.callback(broker.stop)
        for broker in cluster:
            broker.await_start()
        for topic, partitions in TOPICS.items():
            old.drive("create", topic, partitions, *SMALL[version])
            for partition in range(partitions):
                old.drive("append", topic, partition, 80)
        for tool, arguments in SET[:EARLY]:
            tools.run(old, tool, arguments)
        last = end_of(old, 0, "read_uncommitted")
        groups(old, "commit", "billing", "payments", 0, 4, "")
        groups(old, "commit", "billing", "payments", 1, 3, "")
        groups(old, "transact", "billing", "payments", 1, 12, "commit")
        groups(old, "transact", "billing", "payments", 0, 99, "abort")
        groups(old, "commit", "team/end", "payments", 0, last - 1, "")
        groups(old, "commit", "reports", "payments", 0, 4, "")
        sharers = joined_share_groups(old)
        others[-1].stop()
        groups(old, "commit", "billing", "payments", 0, 10, "hello")
        groups(old, "commit", "team/end", "payments", 0, last, "")
        groups(old, "commit", "reports", "payments", 0, 5, "")
        for tool, arguments in SET[EARLY:]:
            tools.run(old, tool, arguments)
        shown = tools.shown(old)
        nodes = [exported(command, "export", broker.log_dirs[0], "--credentials", "--to", store) for broker in cluster]
        told = exported(command, "export-cluster", "--bootstrap-server", old.address, "--to", store)
        for broker in cluster[:2]:
            broker.kill()
    states = [named_state(open_store(store), key) for key in nodes]
    assert [state.groups == merge_documents(states).groups for state in states] == [False] * 3
    assert_told_alike(named_state(open_store(store), told), merge_documents(states))
    for broker in cluster:
        there = [topic for topic in TOPICS if any(broker.log_dirs[0].glob(f"{topic}-*"))]
        select = [word for topic in there for word in ("--topic", topic)]
        tier = ("tier", broker.log_dirs[0], *select, "--to", store, "--as-of", "roll", "--engine", "local")
        assert not there or command(*tier).code == 0
    image = load_image(old.log_dirs[0])
    return Lost(store=store, image=image, shown=shown, told=told, nodes=set(nodes), last=last, sharers=sharers)


def check_goes_on(command: Resnap, lost: Lost, new: Broker, tools: Tools, *, is_told: bool) -> None:
    """Restore the lost cluster from its bucket, by what its nodes knew and it told, or by that alone; go on with it."""
    new.root.mkdir()
    new.format()
    data, offsets = new.log_dirs[0], new.root / "offsets"
    restore = ("restore", lost.store, "--into", data, "--new-cluster", data, "--offsets-to", offsets)
    ran = command(*restore, *(("--cluster-state", lost.told) if is_told else ()), "--output", "json")
    assert ran.code == 0, ran.err
    state = ran.document["summary"]["newCluster"]["clusterState"]
    assert set(state["objects"]) == {lost.told} | (set() if is_told else lost.nodes)
    ends = {(row["topic"], row["partition"]): row["endOffset"] for row in ran.document["partitions"]}
    end = ends["payments", 0]
    assert end < lost.last
    assert {group["group"]: group["cut"] for group in state["groups"]} == {
        "team/end": [{"topic": "payments", "partition": 0, "committedOffset": lost.last, "endOffset": end}],
        "billing": [],
        "reports": [],
    }
    assert f"team/end at payments-0 from {lost.last} to {end}" in ran.err
    assert ("the offsets of 1 share group (sharers) are not restored" in ran.err) is bool(lost.sharers)
    assert ("1 password or SCRAM credential was not exported" in ran.err) is is_told
    with new.running():
        end_transactions(new, sorted(set(re.findall(r"kafka-transactions\.sh (\S+ \S+ abort .*?) \(", ran.err))))
        without_users = [[line for line in lines if "SCRAM" not in line] for lines in lost.shown]
        assert without_users != lost.shown
        assert tools.shown(new) == (without_users if is_told else lost.shown)
        script = ["sh", str(offsets / "reset-offsets.sh"), new.address]
        path = {"PATH": tools.script(new.root)}
        done = subprocess.run(script, env=path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (offset_of(tools, new, "team/end", 0), offset_of(tools, new, "reports", 0)) == (end, 5)
        assert groups(new, "consume", "billing", "payments", 40).split() == ["0", "10", "1", "12"]
        assert groups(new, "write", "audit").split() == ["TopicAuthorizationException"]
        assert int(groups(new, "write", "payments")) >= end
        eventually(lambda: load_image(data).quotas, "the quotas are not there")
    theirs, ours = lost.image, load_image(data)
    assert ours.scram_credentials == (() if is_told else theirs.scram_credentials)
    assert entries(ours) == entries(theirs) != set()
    assert ours.quotas == theirs.quotas != {}


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.4.0", marks=pytest.mark.heavy)])
def test_consumers_go_on_and_rules_hold_in_the_cluster_that_a_bucket_gave(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    kafka, tools = release(version), Tools(release("3.9.1"))
    lost = live_and_die(command, kafka, tools, tmp_path)
    for is_told in (False, True):
        new = Broker(kafka, [tmp_path / f"new-{is_told}" / "data"], AUTHORIZER, cluster_id=NEW_CLUSTER)
        check_goes_on(command, lost, new, tools, is_told=is_told)
