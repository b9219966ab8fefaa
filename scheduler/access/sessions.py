"""Browser sessions: begun with a token, read-only, and ended with the token.

The browser holds a random secret, of which only the digest is stored.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from resnap.scheduler.access.roles import ROLES, Principal, Role
from resnap.scheduler.access.tokens import SECRET_BYTES, digest
from resnap.scheduler.state.database import Database, inserted

if TYPE_CHECKING:
    from collections.abc import Callable

    from resnap.scheduler.access.tokens import Token
    from resnap.scheduler.clock import Clock

SESSION_S: Final = 12 * 3600
SESSIONS_PER_TOKEN: Final = 20
"""One more ends the oldest: the holder of a token cannot fill the disk with sessions."""
_LONGEST: Final = 128


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions in the service's file, so they survive a restart."""

    database: Database
    clock: Clock
    random_bytes: Callable[[int], bytes]

    def begin(self, token: Token) -> str:
        """Return the secret of a new session for the principal of ``token``."""
        secret = base64.urlsafe_b64encode(self.random_bytes(SECRET_BYTES)).rstrip(b"=").decode()
        now_ms = self.clock.now_ms()
        oldest = "SELECT digest FROM sessions WHERE token_id = ? ORDER BY expires_ms DESC LIMIT -1 OFFSET ?"
        with self.database.write() as connection:
            connection.execute("DELETE FROM sessions WHERE expires_ms <= ?", (now_ms,))
            begun = {"digest": digest(secret), "token_id": token.id, "expires_ms": now_ms + SESSION_S * 1000}
            inserted(connection, "sessions", begun)
            connection.execute(
                f"DELETE FROM sessions WHERE digest IN ({oldest})",  # noqa: S608 - our own words
                (token.id, SESSIONS_PER_TOKEN),
            )
        return secret

    def find(self, secret: str) -> Principal | None:
        """Return the principal of the session, if it and its token are valid now."""
        if len(secret) > _LONGEST:
            return None
        now_ms = self.clock.now_ms()
        query = """SELECT tokens.name, tokens.role FROM sessions JOIN tokens ON tokens.id = sessions.token_id
                   WHERE sessions.digest = ? AND sessions.expires_ms > ? AND tokens.revoked_ms IS NULL
                   AND (tokens.expires_ms IS NULL OR tokens.expires_ms > ?)"""
        with self.database.read() as connection:
            row = connection.execute(query, (digest(secret), now_ms, now_ms)).fetchone()
        is_valid = row is not None and row["role"] in ROLES
        return Principal(name=row["name"], role=Role(row["role"])) if is_valid else None

    def end(self, secret: str) -> None:
        """End a session, if it exists."""
        with self.database.write() as connection:
            connection.execute("DELETE FROM sessions WHERE digest = ?", (digest(secret),))
