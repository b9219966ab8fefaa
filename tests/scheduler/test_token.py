"""The commands of tokens, as an administrator types them, beside a service that runs."""

from __future__ import annotations

import getpass
import os
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.access.audit_log import AuditLog
from resnap.scheduler.access.roles import Role
from resnap.scheduler.access.tokens import Tokens
from resnap.scheduler.clock import Clock
from resnap.scheduler.state.database import DATABASE_FILE, Database
from tests.scheduler.files import BALLAST, fill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.scheduler.conftest import Resnap

JSON = ("--output", "json")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Database]:
    """The file of a service that runs: open all the time."""
    found = Database(tmp_path / "state" / DATABASE_FILE)
    yield found
    found.close()


@pytest.fixture
def state(service: Database) -> tuple[str, ...]:
    return ("--state-dir", str(service.path.parent))


def test_a_token_is_made_shown_once_listed_and_revoked(
    command: Resnap, service: Database, state: tuple[str, ...]
) -> None:
    tokens = Tokens(service, Clock(), os.urandom)
    made = command("token", "create", "ci", "--role", "operator", "--expires", "30d", *state, *JSON)
    secret = made.document["token"]
    found = tokens.find(secret)
    assert found is not None
    assert (found.name, found.role) == ("ci", Role.OPERATOR)
    assert found.expires_ms == found.created_ms + 30 * 86_400_000
    listed = command("token", "list", *state, *JSON)
    assert [(row["name"], row["role"], row["state"]) for row in listed.document["tokens"]] == [
        ("ci", "operator", "valid")
    ]
    assert secret not in listed.out + command("token", "list", *state).out
    assert command("token", "revoke", "ci", *state).code == 0
    assert tokens.find(secret) is None
    assert command("token", "list", *state, *JSON).document["tokens"][0]["state"] == "revoked"


def test_who_made_and_revoked_a_token_is_in_the_audit(
    command: Resnap, service: Database, state: tuple[str, ...]
) -> None:
    secret = command("token", "create", "ci", "--role", "viewer", *state, *JSON).document["token"]
    command("token", "revoke", "ci", *state)
    entries = AuditLog(service, Clock()).page()
    assert [(entry.principal, entry.action, entry.resource, entry.outcome) for entry in entries] == [
        (f"user:{getpass.getuser()}", "token revoke", "ci", "ok"),
        (f"user:{getpass.getuser()}", "token create", "ci", "ok"),
    ]
    assert secret not in repr(entries)


def test_what_was_not_done_is_not_in_the_audit(command: Resnap, service: Database, state: tuple[str, ...]) -> None:
    assert command("token", "create", "ci", "--role", "viewer", *state).code == 0
    for wrong, said in (
        (("create", "ci", "--role", "viewer"), "already"),
        (("create", "a b", "--role", "viewer"), "cannot be the name"),
        (("create", "x", "--role", "viewer", "--expires", "soon"), "--expires: expected a duration"),
        (("create", "x", "--role", "root"), "role"),
        (("revoke", "nobody"), "no token 'nobody'"),
    ):
        ran = command("token", *wrong, *state)
        assert (ran.code, said in ran.err) == (2, True), ran.err
    assert len(AuditLog(service, Clock()).page()) == 1


def test_without_a_place_for_its_file_there_are_no_tokens(command: Resnap) -> None:
    ran = command("token", "list", "--state-dir", "none")
    assert (ran.code, "--state-dir" in ran.err) == (10, True)


@pytest.mark.parametrize("leaving", [0, 4096, 16_384, 65_536])
def test_a_token_that_finds_no_room_leaves_no_file(command: Resnap, tiny_disk: Path, leaving: int) -> None:
    state = tiny_disk / "state"
    state.mkdir()
    fill(tiny_disk, leaving=leaving)
    ran = command("token", "create", "ci", "--role", "viewer", "--state-dir", state)
    assert (ran.code, "hint: check free space" in ran.err, list(state.iterdir())) == (1, True, []), ran.err
    (tiny_disk / BALLAST).unlink()
    assert command("token", "create", "ci", "--role", "viewer", "--state-dir", state).code == 0
