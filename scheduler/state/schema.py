"""The tables of the service's file. A released migration is never changed: a new one is added below it.

Times are milliseconds since 1970; what has a form of its own in the API (requests, rows, errors) is kept as JSON.
"""

from __future__ import annotations

from typing import Final

_FIRST: Final = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY,             -- sorts by time of creation
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    request TEXT NOT NULL,
    origin TEXT NOT NULL,            -- schedule:<name> or api
    principal TEXT NOT NULL,
    retry_of TEXT REFERENCES runs (id) ON DELETE SET NULL,
    created_ms INTEGER NOT NULL,
    started_ms INTEGER,
    finished_ms INTEGER,
    event_count INTEGER NOT NULL DEFAULT 0,
    progress TEXT,
    totals TEXT,
    error TEXT
);
CREATE INDEX runs_by_state ON runs (state, id);
CREATE INDEX runs_by_kind ON runs (kind, id);
CREATE INDEX runs_by_origin ON runs (origin, id);

CREATE TABLE run_partitions (
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    state TEXT NOT NULL,
    row TEXT NOT NULL,
    PRIMARY KEY (run_id, topic, partition)
) WITHOUT ROWID;

CREATE TABLE run_events (
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;

CREATE TABLE idempotency_keys (
    principal TEXT NOT NULL,
    key TEXT NOT NULL,
    fingerprint TEXT NOT NULL,       -- SHA-256 of method, path and body
    run_id TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (principal, key)
) WITHOUT ROWID;

CREATE TABLE plans (
    id TEXT PRIMARY KEY,
    request TEXT NOT NULL,
    plan TEXT NOT NULL,              -- as `resnap plan --save` writes it
    rows TEXT NOT NULL,
    totals TEXT NOT NULL,
    principal TEXT NOT NULL,
    created_ms INTEGER NOT NULL
);

CREATE TABLE schedules (
    name TEXT PRIMARY KEY,
    paused_ms INTEGER,               -- since when it is paused; null while it is not
    paused_by TEXT
);

CREATE TABLE partitions (            -- what the last scan of each source showed
    source TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    readiness TEXT NOT NULL,
    reason TEXT,                     -- of the first segment that blocks it
    missing INTEGER NOT NULL,
    row TEXT NOT NULL,
    scanned_ms INTEGER NOT NULL,
    PRIMARY KEY (source, topic, partition)
) WITHOUT ROWID;
CREATE INDEX partitions_by_name ON partitions (topic, partition, source);
CREATE INDEX partitions_by_readiness ON partitions (readiness, topic, partition, source);

CREATE TABLE mendings (              -- what runs have made of a partition since it was last looked at anew
    source TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    how TEXT NOT NULL,               -- regenerated or shipped
    destination TEXT NOT NULL,
    offsets TEXT NOT NULL,           -- boundaries for which there are snapshots now
    run_id TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (source, topic, partition, how)
) WITHOUT ROWID;

CREATE TABLE sources (
    source TEXT PRIMARY KEY,
    scanned_ms INTEGER NOT NULL,     -- of the last scan that succeeded
    tried_ms INTEGER NOT NULL,
    error TEXT                       -- of the last scan, if it failed
);

CREATE TABLE probe (times INTEGER NOT NULL);
INSERT INTO probe VALUES (0);

CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    role TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,     -- SHA-256 of a secret of 256 random bits
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER
);
CREATE UNIQUE INDEX tokens_in_use ON tokens (name) WHERE revoked_ms IS NULL;

CREATE TABLE sessions (              -- of browsers
    digest TEXT PRIMARY KEY,         -- SHA-256 of a secret of 256 random bits
    token_id TEXT NOT NULL REFERENCES tokens (id) ON DELETE CASCADE,
    expires_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX sessions_by_token ON sessions (token_id, expires_ms);

CREATE TABLE audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    principal TEXT NOT NULL,
    role TEXT NOT NULL,
    action TEXT NOT NULL,            -- such as POST /v1/replays, or token create
    resource TEXT NOT NULL,
    outcome TEXT NOT NULL,           -- an HTTP status, or ok
    detail TEXT NOT NULL
);
CREATE INDEX audit_by_principal ON audit (principal, seq);
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE (ABORT, 'the audit is only appended to'); END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE (ABORT, 'the audit is only appended to'); END;
"""

_SIZES: Final = """
ALTER TABLE partitions ADD COLUMN tierable_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE partitions ADD COLUMN blocked_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE partitions ADD COLUMN shipped_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE partitions ADD COLUMN freeable_bytes INTEGER NOT NULL DEFAULT 0;
"""

_DAYS: Final = """
CREATE TABLE scan_days (             -- what the last scan of each day has counted
    day INTEGER NOT NULL,            -- days since 1970, UTC
    source TEXT NOT NULL,
    missing INTEGER NOT NULL,
    blocked_bytes INTEGER NOT NULL,
    PRIMARY KEY (day, source)
) WITHOUT ROWID;
"""

_PLACES: Final = """
ALTER TABLE mendings ADD COLUMN is_there INTEGER NOT NULL DEFAULT 1; -- whether a scan has found anything at the place
"""

_VERDICTS: Final = """
DROP INDEX partitions_by_readiness;
ALTER TABLE partitions RENAME COLUMN readiness TO verdict;
ALTER TABLE partitions ADD COLUMN unblocked_by TEXT; -- of those that are blocked
UPDATE partitions SET unblocked_by = CASE verdict WHEN 'blocked' THEN 'rebuild' WHEN 'prepared' THEN 'install'
    WHEN 'shipped' THEN 'announce' WHEN 'unfit' THEN 'other' END;
UPDATE partitions SET verdict = CASE WHEN unblocked_by IS NOT NULL THEN 'blocked' WHEN verdict = 'excluded' THEN 'never'
    ELSE verdict END;
UPDATE partitions SET missing = 0 WHERE verdict = 'never';
CREATE INDEX partitions_by_verdict ON partitions (verdict, topic, partition, source);
"""

_REFERENCES: Final = """
CREATE INDEX runs_by_retried ON runs (retry_of); -- to delete a run without reading all others
CREATE INDEX idempotency_keys_by_run ON idempotency_keys (run_id);
"""

MIGRATIONS: Final = (_FIRST, _SIZES, _DAYS, _PLACES, _VERDICTS, _REFERENCES)
