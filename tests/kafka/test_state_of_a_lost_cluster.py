"""A cluster dies, and from its bucket comes one with its groups' offsets, ACLs, quotas, users and configuration."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pytest

from resnap.storage.messages.wire import ZERO_UUID
from resnap.tiering.cluster_state.state import read_state
from resnap.tiering.controller.metadata.folding import load_image
from tests.kafka.brokers import SMALL, Broker, eventually
from tests.kafka.releases import HERE, PATIENCE_S, brought
from tests.kafka.test_cluster_from_a_bucket import NEW_CLUSTER, end_of, end_transactions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.cluster_state.state import ClusterMetadata
    from resnap.tiering.controller.metadata.records import AccessControlEntryRecord
    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Ran, Resnap

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
FIRST_WITH_SHARE_GROUPS: Final = (4, 2)
CONSUMER_GROUPS: Final = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ACLS, CONFIGS = "kafka.admin.AclCommand", "kafka.admin.ConfigCommand"
SET: Final = (
    (ACLS, "--add --force --topic audit --deny-principal User:ANONYMOUS --operation Write"),
    (ACLS, "--add --force --topic audit --allow-principal User:* --operation Read --operation DescribeConfigs"),
    (ACLS, "--add --force --group bill --resource-pattern-type prefixed --allow-principal User:* --operation Read"),
    (CONFIGS, "--alter --entity-type users --entity-name alice --add-config producer_byte_rate=1048576"),
    (CONFIGS, "--alter --entity-type users --entity-default --add-config request_percentage=50"),
    (CONFIGS, "--alter --entity-type users --entity-name alice --add-config SCRAM-SHA-256=[password=sesame]"),
    (CONFIGS, "--alter --entity-type topics --entity-name payments --add-config max.message.bytes=900000"),
    (CONFIGS, "--alter --entity-type brokers --entity-default --add-config log.cleaner.threads=2"),
)
"""What an operator had set."""
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


def key_of(ran: Ran) -> str:
    return str(ran.document["key"])


def assert_told_alike(command: Resnap, broker: Broker, store: Path, exported: Path) -> None:
    """Assert that the running cluster tells the same as the log dirs of its node, but for secrets."""
    ran = command("export-cluster", "--bootstrap-server", broker.address, "--to", store.as_uri(), "--output", "json")
    assert ran.code == 0, ran.err
    told, read = (read_state(path.read_bytes()) for path in (store / key_of(ran), exported))
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
    assert (theirs.scram_credentials, theirs.secrets_left_out) == ((), 1)


def entries(metadata: ClusterMetadata) -> set[AccessControlEntryRecord]:
    """Return the access control entries without their ids, which brokers do not tell."""
    return {replace(one, id=ZERO_UUID) for one in metadata.access_control_entries}


@pytest.mark.parametrize("version", ["3.9.1", pytest.param("4.4.0", marks=pytest.mark.heavy)])
def test_consumers_go_on_and_rules_hold_in_the_cluster_that_a_bucket_gave(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str
) -> None:
    kafka, tools, store = release(version), Tools(release("3.9.1")), (tmp_path / "store").as_uri()
    old = Broker(kafka, [tmp_path / "old" / "data"], AUTHORIZER | SHARE)
    old.root.mkdir()
    with old.running():
        for topic, partitions in TOPICS.items():
            old.drive("create", topic, partitions, *SMALL[version])
            for partition in range(partitions):
                old.drive("append", topic, partition, 80)
        for tool, arguments in SET:
            tools.run(old, tool, arguments)
        last = end_of(old, 0, "read_uncommitted")
        groups(old, "commit", "billing", "payments", 0, 10, "hello")
        groups(old, "commit", "billing", "payments", 1, 3, "")
        groups(old, "transact", "billing", "payments", 1, 12, "commit")
        groups(old, "transact", "billing", "payments", 0, 99, "abort")
        groups(old, "commit", "team/tip", "payments", 0, last, "")
        sharers = joined_share_groups(old)
        select = [word for topic in TOPICS for word in ("--topic", topic)]
        tier = ("tier", old.log_dirs[0], *select, "--to", store, "--as-of", "roll", "--engine", "local")
        assert command(*tier).code == 0
        exported = command("export", old.log_dirs[0], "--to", store, "--credentials", "--output", "json")
        assert (exported.code, exported.document["shareGroups"]) == (0, sharers), exported.err
        assert_told_alike(command, old, tmp_path / "asked", tmp_path / "store" / key_of(exported))
        expected = tools.shown(old)
        old.kill()

    new, offsets = Broker(kafka, [tmp_path / "new" / "data"], AUTHORIZER, cluster_id=NEW_CLUSTER), tmp_path / "offsets"
    new.root.mkdir()
    new.format()
    data = new.log_dirs[0]
    ran = command(
        "restore", store, "--into", data, "--new-cluster", data, "--offsets-to", offsets, "--output", "json"
    )  # fmt: skip
    assert ran.code == 0, ran.err
    state = ran.document["summary"]["newCluster"]["clusterState"]
    ends = {(row["topic"], row["partition"]): row["endOffset"] for row in ran.document["partitions"]}
    end = ends["payments", 0]
    assert end < last
    assert {group["group"]: group["cut"] for group in state["groups"]} == {
        "team/tip": [{"topic": "payments", "partition": 0, "committedOffset": last, "endOffset": end}],
        "billing": [],
    }
    assert f"team/tip at payments-0 from {last} to {end}" in ran.err
    assert ("the offsets of 1 share group (sharers) are not restored" in ran.err) is bool(sharers)
    with new.running():
        end_transactions(new, sorted(set(re.findall(r"kafka-transactions\.sh (\S+ \S+ abort .*?) \(", ran.err))))
        assert tools.shown(new) == expected
        script = ["sh", str(offsets / "reset-offsets.sh"), new.address]
        done = subprocess.run(script, env={"PATH": tools.script(tmp_path)}, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert offset_of(tools, new, "team/tip", 0) == end
        assert groups(new, "consume", "billing", "payments", 40).split() == ["0", "10", "1", "12"]
        assert groups(new, "write", "audit").split() == ["TopicAuthorizationException"]
        assert int(groups(new, "write", "payments")) >= end
        eventually(lambda: load_image(data).scram_credentials, "the users are not there")
    theirs, ours = load_image(old.log_dirs[0]), load_image(data)
    assert ours.scram_credentials == theirs.scram_credentials != ()
    assert ours.access_control_entries == theirs.access_control_entries != ()
    assert ours.quotas == theirs.quotas != {}
