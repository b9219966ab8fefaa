"""Replicas that start from remote storage lose producer state: it is found, and what clients notice of it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kafka.lost_state import IDEMPOTENT, TOPIC, lost_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.kafka.releases import Release
    from tests.scheduler.conftest import Resnap

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("version", "more"),
    [
        ("3.9.1", {}),
        ("4.4.0", {}),
        pytest.param("4.4.0", {"follower.fetch.last.tiered.offset.enable": "true"}, marks=pytest.mark.heavy),
    ],
)
def test_a_new_replica_from_remote_storage_is_found_before_clients_notice_it(
    command: Resnap, release: Callable[[str], Release], tmp_path: Path, version: str, more: dict[str, object]
) -> None:
    with lost_state(release(version), tmp_path, more=more) as lost:
        asked = ("replicas", "--bootstrap-server", lost.leader.address, "--topic", TOPIC)
        found = command(*asked, "--output", "json")
        assert found.code == 4, (found.out, found.err)
        (replica,) = found.document["replicas"]
        assert (replica["brokerId"], replica["leader"], replica["state"]) == (2, 1, "lost")
        by_id = {one["known"]["producerId"]: one for one in replica["producers"]}
        assert by_id[IDEMPOTENT]["losses"] == ["producer"]
        assert by_id[IDEMPOTENT]["found"] is None
        assert by_id.keys() >= {IDEMPOTENT}
        assert found.error["type"] == "LostProducerStateError"

        before = lost.read()
        assert lost.sent_again(lost.leader) == lost.batch_offset
        assert lost.read() == before
        lost.lead(lost.follower)
        records, _ = lost.read()
        assert records == before[0] + 1, "the aborted record is served as committed"
        assert lost.sent_again(lost.follower) > lost.batch_offset, "the batch is appended a second time"
