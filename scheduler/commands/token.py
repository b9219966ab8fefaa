"""The commands that create, list and revoke the service's tokens; they work beside a running service, audited."""

import os
import pwd
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Annotated, Literal

import typer

from resnap.scheduler.access.audit_log import AuditLog
from resnap.scheduler.access.roles import Role
from resnap.scheduler.access.tokens import Token, Tokens
from resnap.scheduler.cli.flags import STATE, with_settings
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.output.rendering import Answer, Column, Row
from resnap.scheduler.settings.loading import state_directory_of
from resnap.scheduler.settings.values import parse_duration
from resnap.scheduler.state.database import DATABASE_FILE, Database
from resnap.storage.errors import UsageError
from resnap.storage.words import instant

Name = Annotated[str, typer.Argument(metavar="NAME", help="Who uses the token, such as ci or alice@example.org.")]


@with_settings(STATE)
def create_token(
    run: Invocation,
    name: Name,
    *,
    role: Annotated[
        Literal["viewer", "operator", "admin"], typer.Option("--role", help="What the user of the token may do.")
    ],
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="DURATION", help="How long the token is valid, such as 30d; the default is no limit."
        ),
    ] = None,
) -> None:
    """Make a token, and show it this once: what is kept is a digest, from which it cannot be found."""
    lifetime = None if expires is None else _lifetime(expires)
    with _tokens(run) as (tokens, audit), tokens.database.write():
        made, secret = tokens.create(name, Role(role), lifetime=lifetime)
        _note(audit, "token create", made)
    run.note("keep it where only its user can read it: it is not shown again")
    row = _row(made, run.clock.now_ms())
    run.answer(Answer(head={"token": secret, **row}))


@with_settings(STATE)
def list_tokens(run: Invocation) -> None:
    """Show every token there ever was: whose, in which role, and whether it is valid."""
    with _tokens(run) as (tokens, _):
        found = tokens.all()
    now_ms = run.clock.now_ms()
    columns = [Column(key=key, title=key.upper()) for key in ("name", "role", "state", "created", "expires", "revoked")]
    run.answer(Answer(kind="token", rows=[_row(token, now_ms) for token in found], columns=columns))


@with_settings(STATE)
def revoke_token(run: Invocation, name: Name) -> None:
    """End a token, and the sessions of browsers that began with it, from their next request on."""
    with _tokens(run) as (tokens, audit), tokens.database.write():
        ended = tokens.revoke(name)
        _note(audit, "token revoke", ended)
    run.answer(Answer(head={"name": ended.name, "role": str(ended.role), "state": "revoked"}))


@contextmanager
def _tokens(run: Invocation) -> Iterator[tuple[Tokens, AuditLog]]:
    """Yield the tokens and the audit log of the service with this state directory."""
    with closing(Database(state_directory_of(run.settings) / DATABASE_FILE)) as database:
        yield Tokens(database, run.clock, secrets.token_bytes), AuditLog(database, run.clock)


def _note(audit: AuditLog, action: str, token: Token) -> None:
    """Record in the audit log who did it, by the shell user's name."""
    detail = {"role": str(token.role), "expiresMs": token.expires_ms}
    audit.append(
        principal=f"user:{_user()}",
        role=Role.ADMIN.value,
        action=action,
        resource=token.name,
        outcome="ok",
        detail=detail,
    )


def _user() -> str:
    """Return the name of the process's user; its number where it has no name, as in a container."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _lifetime(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--expires: {error}") from error


def _row(token: Token, now_ms: int) -> Row:
    ends = {"created": token.created_ms, "expires": token.expires_ms, "revoked": token.revoked_ms}
    return {
        "name": token.name,
        "role": str(token.role),
        "state": token.state(now_ms),
        **{name: None if at_ms is None else instant(at_ms) for name, at_ms in ends.items()},
    }
