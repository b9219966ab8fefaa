"""What ``announce`` refuses before it connects to a cluster; the rest is in ``tests/kafka/test_announce.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scheduler.conftest import Resnap


def test_without_a_cluster_announcing_is_a_usage_error(command: Resnap, tmp_path: Path) -> None:
    ran = command("announce", tmp_path.as_uri())
    assert (ran.code, ran.out) == (10, "")
    assert "error: no cluster is named\nhint: give --bootstrap-server HOST:PORT" in ran.err


def test_a_connection_that_cannot_be_made_as_it_is_meant_is_not_made(
    command: Resnap, broker_log: Path, tmp_path: Path
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=SSL\nssl.truststore.location=/etc/kafka/trust.jks\n")
    ran = command("announce", tmp_path.as_uri(), "--bootstrap-server", "127.0.0.1:1", "--command-config", properties)
    assert ran.code == 10
    assert "ssl.truststore.location: a store of type JKS cannot be read" in ran.err
    at = ("--bootstrap-server", "127.0.0.1:1", "--command-config", tmp_path / "gone")
    for asked in (("replicas",), ("check", broker_log)):
        ran = command(*asked, *at)
        assert (ran.code, f"{tmp_path / 'gone'}: cannot be read: No such file" in ran.err) == (10, True), ran.err
