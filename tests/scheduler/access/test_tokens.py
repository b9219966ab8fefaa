"""Tokens and sessions: shown once, kept as digests, gone when they are revoked or have expired."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.access.roles import Role
from resnap.scheduler.access.tokens import PREFIX, SECRET_BYTES, SESSION_S, SESSIONS_PER_TOKEN, Tokens
from resnap.scheduler.settings.values import redact
from resnap.scheduler.state.database import Database
from resnap.storage.errors import ConfigurationError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.clocks import FixedClock


def test_a_secret_is_256_random_bits_and_is_known_for_one(tokens: Tokens) -> None:
    asked: list[int] = []
    made = Tokens(tokens.database, tokens.clock, lambda size: (asked.append(size), bytes(size))[1])
    _, secret = made.create("ci", Role.VIEWER)
    assert asked[0] * 8 == 256
    assert secret == PREFIX + "A" * 43
    assert secret not in redact(f"curl -H {secret!r}")


def test_a_token_stands_for_its_name_and_role(tokens: Tokens) -> None:
    token, secret = tokens.create("alice@example.org", Role.OPERATOR)
    assert tokens.find(secret) == token
    assert (token.principal.name, token.principal.role) == ("alice@example.org", Role.OPERATOR)


@pytest.mark.parametrize("wrong", ["", "resnap_", "resnap_" + "A" * 43, "resnap_ü", "resnap_" + "A" * 100_000])
def test_no_other_secret_is_a_token(tokens: Tokens, wrong: str) -> None:
    _, secret = tokens.create("ci", Role.ADMIN)
    for guess in (wrong, secret[:-1], f"{secret}A", secret.removeprefix(PREFIX), secret.upper()):
        assert tokens.find(guess) is None


def test_no_secret_is_kept(tokens: Tokens, tmp_path: Path) -> None:
    token, secret = tokens.create("ci", Role.ADMIN)
    session = tokens.begin_session(token)
    tokens.database.close()
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for hidden in (secret, secret.removeprefix(PREFIX), session):
        assert hidden.encode() not in kept


def test_a_token_that_was_revoked_elsewhere_is_gone_at_once(tokens: Tokens) -> None:
    token, secret = tokens.create("ci", Role.ADMIN)
    session = tokens.begin_session(token)
    beside = Database(tokens.database.path)
    Tokens(beside, tokens.clock, os.urandom).revoke("ci")
    beside.close()
    assert tokens.find(secret) is None
    assert tokens.principal_of_session(session) is None


def test_a_token_ends_when_it_expires_and_its_sessions_with_it(tokens: Tokens, clock: FixedClock) -> None:
    token, secret = tokens.create("ci", Role.ADMIN, lifetime=timedelta(minutes=1))
    session = tokens.begin_session(token)
    clock.advance(59_999)
    assert tokens.find(secret) == token
    assert tokens.principal_of_session(session) == token.principal
    clock.advance(1)
    assert tokens.find(secret) is None
    assert tokens.principal_of_session(session) is None
    assert [one.state(clock.now_ms()) for one in tokens.all()] == ["expired"]


def test_a_token_with_a_role_of_a_later_release_is_not_valid_and_can_be_revoked(
    tokens: Tokens, clock: FixedClock
) -> None:
    token, secret = tokens.create("ci", Role.ADMIN)
    session = tokens.begin_session(token)
    with tokens.database.write() as connection:
        connection.execute("UPDATE tokens SET role = 'auditor'")
    assert (tokens.find(secret), tokens.principal_of_session(session)) == (None, None)
    assert [one.state(clock.now_ms()) for one in tokens.all()] == ["unknown-role"]
    assert tokens.revoke("ci").role == "auditor"
    assert [one.state(clock.now_ms()) for one in tokens.all()] == ["revoked"]


def test_a_name_may_be_given_again_once_it_is_free(tokens: Tokens, clock: FixedClock) -> None:
    _, first = tokens.create("ci", Role.VIEWER)
    with pytest.raises(UsageError, match="already"):
        tokens.create("ci", Role.VIEWER)
    tokens.revoke("ci")
    token, second = tokens.create("ci", Role.ADMIN)
    assert (tokens.find(first), tokens.find(second)) == (None, token)
    assert [one.state(clock.now_ms()) for one in tokens.all()] == ["revoked", "valid"]


@pytest.mark.parametrize("name", ["", "a b", "user:me", "local", "anonymous", "-x", "x" * 65, "a\n", "../x", "é"])
def test_a_name_that_could_be_taken_for_something_else_is_refused(tokens: Tokens, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        tokens.create(name, Role.VIEWER)


def test_a_token_that_is_revoked_already_is_not_called_missing(tokens: Tokens) -> None:
    tokens.create("ci", Role.OPERATOR)
    tokens.revoke("ci")
    with pytest.raises(UsageError, match="the token 'ci' is revoked already"):
        tokens.revoke("ci")


def test_what_is_not_there_cannot_be_revoked(tokens: Tokens) -> None:
    with pytest.raises(UsageError, match="no token 'ci'"):
        tokens.revoke("ci")


def test_a_lifetime_of_nothing_is_refused(tokens: Tokens) -> None:
    with pytest.raises(UsageError, match="--expires"):
        tokens.create("ci", Role.VIEWER, lifetime=timedelta(0))


def test_a_session_ends_by_itself_or_on_request(tokens: Tokens, clock: FixedClock) -> None:
    token, _ = tokens.create("ci", Role.VIEWER)
    first, second = tokens.begin_session(token), tokens.begin_session(token)
    tokens.end_session(first)
    assert (tokens.principal_of_session(first), tokens.principal_of_session(second)) == (None, token.principal)
    clock.advance(SESSION_S * 1000)
    assert tokens.principal_of_session(second) is None
    assert tokens.principal_of_session("x" * 100_000) is None


def test_one_session_too_many_ends_the_oldest(tokens: Tokens, clock: FixedClock) -> None:
    token, _ = tokens.create("ci", Role.VIEWER)
    begun = []
    for _ in range(SESSIONS_PER_TOKEN + 2):
        begun.append(tokens.begin_session(token))
        clock.advance(1)
    assert [tokens.principal_of_session(secret) is None for secret in begun] == [True] * 2 + [
        False
    ] * SESSIONS_PER_TOKEN


def test_each_role_may_all_that_the_one_before_it_may() -> None:
    assert [[one.covers(other) for other in Role] for one in Role] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_secrets_are_as_long_as_is_said() -> None:
    assert SECRET_BYTES == 32


def test_the_tokens_of_a_file_are_valid_as_long_as_they_are_in_it(tokens: Tokens, tmp_path: Path) -> None:
    file, secrets = tmp_path / "tokens", [PREFIX + letter * 40 for letter in "abc"]
    by_hand, _ = tokens.create("alice", Role.ADMIN)
    file.write_text(f"# of the fleet\nci viewer {secrets[0]}\n\ndeploy operator {secrets[1]}\n")
    for _ in range(2):  # read again, nothing changes
        tokens.adopt(file)
        found = [tokens.find(secret) for secret in secrets]
        assert [token and (token.name, token.role) for token in found] == [
            ("ci", Role.VIEWER), ("deploy", Role.OPERATOR), None,
        ]  # fmt: skip
    assert len(tokens.all()) == 3
    file.write_text(f"ci operator {secrets[0]}\nother viewer {secrets[2]}\n")
    tokens.adopt(file)
    found = [tokens.find(secret) for secret in secrets]
    assert [token and (token.name, token.role) for token in found] == [
        ("ci", Role.OPERATOR),
        None,
        ("other", Role.VIEWER),
    ]
    assert by_hand in tokens.all()
    before = tokens.all()
    file.write_text(f"new viewer {PREFIX + 'd' * 40}\nalice viewer {secrets[0]}\n")
    with pytest.raises(ConfigurationError, match="'alice', or its secret, was created by"):
        tokens.adopt(file)
    assert tokens.all() == before


@pytest.mark.parametrize(
    "line",
    ["ci viewer", "ci root SECRET", "ci viewer short", "local viewer SECRET", "a viewer SECRET\na viewer SECRET", "\0"],
)
def test_a_line_that_is_not_a_token_is_named_by_its_number_without_its_secret(
    tokens: Tokens, tmp_path: Path, line: str
) -> None:
    file, secret = tmp_path / "tokens", PREFIX + "s" * 40
    file.write_text(line.replace("SECRET", secret))
    with pytest.raises(ConfigurationError, match=r"tokens, line [12]: expected a name") as caught:
        tokens.adopt(file)
    assert secret not in str(caught.value)
    assert tokens.all() == []
    file.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        tokens.adopt(file)
