"""Bearer tokens: 256 random bits each, shown once when created, stored as SHA-256.

A slow hash would add nothing here: it protects secrets that people choose. Tokens are looked up by digest, so the time
of a look-up reveals nothing about a secret. A revoked token is invalid from the next request on, in every process,
because it is looked up each time.

Tokens of a file (``tokens-file``), such as a mounted Secret, are stored like all others, with ids of their own.

Browser sessions are begun with a token, read-only, and ended with the token. The browser holds a random secret, of
which only the digest is stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.scheduler.access.roles import ANONYMOUS, LOCAL, ROLES, Principal, Role
from resnap.scheduler.state.database import Database, columns_of, from_row, insert_row
from resnap.storage.errors import ConfigurationError, UsageError
from resnap.storage.whole_file import read_whole

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from datetime import timedelta
    from pathlib import Path

    from resnap.scheduler.clock import Clock

PREFIX: Final = "resnap_"
"""Begins every secret, so that it is known for one wherever it turns up."""
SESSION_S: Final = 12 * 3600
SESSIONS_PER_TOKEN: Final = 20
"""One more ends the oldest: the holder of a token cannot fill the disk with sessions."""
SECRET_BYTES: Final = 32
_LONGEST: Final = 128
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_FROM_FILE: Final = "file-"
_SECRET_OF_FILE = re.compile(PREFIX + r"[A-Za-z0-9_-]{32,96}")
_RESERVED: Final = frozenset({ANONYMOUS, LOCAL.name})


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as stored. Times are milliseconds since 1970."""

    id: str
    name: str
    role: str
    """A value of ``Role``, or a role of a later release, whose token is not valid in this one."""
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None

    def state(self, now_ms: int) -> str:
        """Return ``valid``, ``expired``, ``revoked`` or ``unknown-role``."""
        if self.revoked_ms is not None:
            return "revoked"
        if self.expires_ms is not None and self.expires_ms <= now_ms:
            return "expired"
        return "valid" if self.role in ROLES else "unknown-role"

    @property
    def principal(self) -> Principal:
        """The principal of the token, which is valid."""
        return Principal(name=self.name, role=Role(self.role))


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens, and their sessions, in the service's file; they survive a restart. Safe for threads and processes."""

    database: Database
    clock: Clock
    random_bytes: Callable[[int], bytes]

    def create(self, name: str, role: Role, *, lifetime: timedelta | None = None) -> tuple[Token, str]:
        """Create a token, and return it with its secret, which cannot be shown again.

        Raises:
            UsageError: the name is invalid or taken, or the lifetime is zero.

        """
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise UsageError(
                f"{name!r} cannot be the name of a token: expected up to 64 of A-Z a-z 0-9 . _ @ -, but not"
                f" {' or '.join(sorted(_RESERVED))}",
                hint="name it after who uses it, such as ci or alice@example.org",
            )
        now_ms = self.clock.now_ms()
        expires_ms = None if lifetime is None else now_ms + int(lifetime.total_seconds() * 1000)
        if expires_ms is not None and expires_ms <= now_ms:
            raise UsageError("--expires: expected a duration longer than 0", hint="give one such as 30d")
        secret = PREFIX + self._secret()
        token = Token(id=self.random_bytes(8).hex(), name=name, role=role, created_ms=now_ms, expires_ms=expires_ms,
                      revoked_ms=None)  # fmt: skip
        with self.database.write() as connection:
            if _token_named(connection, name) is not None:
                raise UsageError(f"the token {name!r} already exists",
                                 hint=f"`resnap token revoke {name}` first, or give another name")  # fmt: skip
            insert_row(connection, "tokens", {**columns_of(token), "digest": _digest(secret)})
        return token, secret

    def revoke(self, name: str) -> Token:
        """Revoke a token, and end all its sessions; its name may be used again.

        Raises:
            UsageError: there is no unrevoked token of this name.

        """
        with self.database.write() as connection:
            found = _token_named(connection, name)
            if found is None:
                was = any(token.name == name for token in self.all())
                what = f"the token {name!r} is revoked already" if was else f"there is no token {name!r}"
                raise UsageError(what, hint="`resnap token list` shows all tokens")
            connection.execute("UPDATE tokens SET revoked_ms = ? WHERE id = ?", (self.clock.now_ms(), found.id))
            connection.execute("DELETE FROM sessions WHERE token_id = ?", (found.id,))
        return found

    def adopt(self, file: Path) -> None:
        """Make the tokens of a file valid, a line each (``NAME ROLE SECRET``), and revoke those it no longer has.

        Raises:
            ConfigurationError: it cannot be read, a line is not a token, or a name is that of another token; nothing
                was changed.

        """
        wanted = tokens_in(file)
        with self.database.write() as connection:  # all of it, or nothing
            for token in self.all():
                if token.id.startswith(_FROM_FILE) and token.revoked_ms is None:
                    role, secret = wanted.get(token.name, (None, ""))
                    if token.role == role and self.find(secret) == token:
                        del wanted[token.name]
                    else:
                        self.revoke(token.name)
            for name, (role, secret) in wanted.items():
                token = Token(id=_FROM_FILE + self.random_bytes(8).hex(), name=name, role=role,
                              created_ms=self.clock.now_ms(), expires_ms=None, revoked_ms=None)  # fmt: skip
                connection.execute("DELETE FROM tokens WHERE digest = ? AND id LIKE 'file-%'", (_digest(secret),))
                known = connection.execute("SELECT name FROM tokens WHERE digest = ?", (_digest(secret),)).fetchone()
                if known or _token_named(connection, name) is not None:
                    raise ConfigurationError(
                        f"{file}: the token {name!r}, or its secret, was created by `resnap token create`",
                        hint="give it another name and a secret of its own, or revoke the other one",
                    )
                insert_row(connection, "tokens", {**columns_of(token), "digest": _digest(secret)})

    def all(self) -> list[Token]:
        """Return every token there ever was, by name, then by time."""
        return [from_row(Token, row) for row in self.database.rows("SELECT * FROM tokens ORDER BY name, created_ms")]

    def find(self, secret: str) -> Token | None:
        """Return the token of ``secret``, if it is valid now."""
        if not secret.startswith(PREFIX) or len(secret) > _LONGEST or not secret.isascii():
            return None
        wanted = _digest(secret)
        row = self.database.row("SELECT * FROM tokens WHERE digest = ?", (wanted,))
        if row is None or not hmac.compare_digest(row["digest"], wanted):
            return None
        token = from_row(Token, row)
        return token if token.state(self.clock.now_ms()) == "valid" else None

    def begin_session(self, token: Token) -> str:
        """Return the secret of a new session for the principal of ``token``."""
        secret, now_ms = self._secret(), self.clock.now_ms()
        oldest = "SELECT digest FROM sessions WHERE token_id = ? ORDER BY expires_ms DESC LIMIT -1 OFFSET ?"
        with self.database.write() as connection:
            connection.execute("DELETE FROM sessions WHERE expires_ms <= ?", (now_ms,))
            begun = {"digest": _digest(secret), "token_id": token.id, "expires_ms": now_ms + SESSION_S * 1000}
            insert_row(connection, "sessions", begun)
            connection.execute(
                f"DELETE FROM sessions WHERE digest IN ({oldest})",  # noqa: S608 - our own words
                (token.id, SESSIONS_PER_TOKEN),
            )
        return secret

    def principal_of_session(self, secret: str) -> Principal | None:
        """Return the principal of the session, if it and its token are valid now."""
        if len(secret) > _LONGEST:
            return None
        now_ms = self.clock.now_ms()
        query = """SELECT tokens.name, tokens.role FROM sessions JOIN tokens ON tokens.id = sessions.token_id
                   WHERE sessions.digest = ? AND sessions.expires_ms > ? AND tokens.revoked_ms IS NULL
                   AND (tokens.expires_ms IS NULL OR tokens.expires_ms > ?)"""
        row = self.database.row(query, (_digest(secret), now_ms, now_ms))
        return Principal(name=row["name"], role=Role(row["role"])) if row and row["role"] in ROLES else None

    def end_session(self, secret: str) -> None:
        """End a session, if it exists."""
        with self.database.write() as connection:
            connection.execute("DELETE FROM sessions WHERE digest = ?", (_digest(secret),))

    def _secret(self) -> str:
        return base64.urlsafe_b64encode(self.random_bytes(SECRET_BYTES)).rstrip(b"=").decode()


def tokens_in(file: Path) -> dict[str, tuple[Role, str]]:
    """Return the role and secret of each token in a file, by name.

    Raises:
        ConfigurationError: it cannot be read, or a line is not a token.

    """
    try:
        lines = read_whole(file).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the tokens of {file} cannot be read: {error}", hint="check tokens-file") from error
    found: dict[str, tuple[Role, str]] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        match words:
            case [name, ("viewer" | "operator" | "admin") as role, secret] if (
                _NAME.fullmatch(name)
                and name not in _RESERVED
                and name not in found
                and _SECRET_OF_FILE.fullmatch(secret)
            ):
                found[name] = Role(role), secret
            case _:  # never with the line itself, which may hold a secret
                raise ConfigurationError(
                    f"{file}, line {number}: expected a name of its own, viewer, operator or admin, and a secret of"
                    f" {PREFIX} and 32 to 96 more of A-Z a-z 0-9 _ -",
                    hint=f'a secret is made by: echo "{PREFIX}$(openssl rand -hex 32)"',
                )
    return found


def _digest(secret: str) -> str:
    """Return the stored digest of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _token_named(connection: sqlite3.Connection, name: str) -> Token | None:
    query = "SELECT * FROM tokens WHERE name = ? AND revoked_ms IS NULL"
    row = connection.execute(query, (name,)).fetchone()
    return None if row is None else from_row(Token, row)
