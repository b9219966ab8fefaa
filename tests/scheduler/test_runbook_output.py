"""The steps of the runbook print what its text shows; real brokers follow it in ``tests/kafka``."""

from __future__ import annotations

import re
import shlex
import shutil
from typing import TYPE_CHECKING

from tests.kafka.runbook import RUNBOOK, blocks
from tests.kafka.story import LOOK, MAKE, PUT_IN
from tests.test_newcomer import check_shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap


def test_the_steps_print_what_the_text_shows(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data = shutil.copytree(fixture_set("kafka-2.7.2").data, tmp_path / "data")
    for name in ("dash-ed.topic_1-0", "legacy-0"):
        shutil.rmtree(data / name)
    settings = tmp_path / "server.properties"
    settings.write_text("producer.id.expiration.ms=604800000\n")
    paths = {
        "/var/lib/kafka/data": str(data),
        "/etc/kafka/server.properties": str(settings),
        "/var/tmp/snapshots": str(tmp_path / "snapshots"),  # noqa: S108 - as the runbook has it
    }
    for section in (LOOK, MAKE, PUT_IN):
        printed = ""
        for line in blocks()[section][0]:
            words = shlex.split(line.removeprefix("sudo -u kafka "))
            if words[0] == "resnap":
                typed = [paths.get(word, word) for word in words[1:]]
                ran = command(*typed, RESNAP_AS_OF="2026-11-21T02:00:00Z", RESNAP_ENGINE="local")
                assert ran.code == 0, ran.err
                printed += ran.out
        for path, own in paths.items():
            printed = printed.replace(own, path)
        check_shown(shown_in(section), printed)


def shown_in(section: str) -> str:
    """Return what a section shows as printed: its one block without a language."""
    text = RUNBOOK.read_text(encoding="utf-8")
    part = next(one for one in re.split(r"^#+ ", text, flags=re.MULTILINE) if one.startswith(f"{section}\n"))
    found = re.findall(r"^```(\w*)\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL)
    (shown,) = (body for language, body in found if not language)
    return str(shown)
