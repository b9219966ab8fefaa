"""The runbook names what exists: what its commands do is seen in ``tests/kafka``, where real brokers are."""

from __future__ import annotations

import re
import shlex

from resnap.scheduler.cli.commands import load_command
from resnap.scheduler.registry import COMMANDS
from tests.cases import each
from tests.kafka.runbook import FOLLOWED, blocks

RESNAP = sorted({
    line.removeprefix("sudo -u kafka ")
    for section in blocks().values() for block in section for line in block
    if re.match(r"(sudo -u kafka )?resnap ", line)
})  # fmt: skip


def test_every_block_of_commands_is_one_that_the_stories_follow() -> None:
    assert {section: len(found) for section, found in blocks().items()} == FOLLOWED


@each("line", RESNAP)
def test_a_command_of_the_runbook_is_one_of_ours(line: str) -> None:
    words = shlex.split(line)
    command = load_command(next(called for called in COMMANDS if words[1:][: len(called.split())] == called.split()))
    assert {word for word in words if word.startswith("--")} <= {flag for one in command.params for flag in one.opts}
