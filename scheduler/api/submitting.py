"""From a request's body to a run: once per idempotency key, within quota."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from resnap.scheduler.api.problem_kinds import KeyReusedError
from resnap.scheduler.output.records import plain
from resnap.scheduler.runs.run import BY_API
from resnap.scheduler.state.database import inserted

if TYPE_CHECKING:
    from resnap.scheduler.access.roles import Principal
    from resnap.scheduler.runs.run import Run, RunRequest
    from resnap.scheduler.service.services import Services


def submit_request(
    services: Services, asked: RunRequest, who: Principal, *, key: str | None, retry_of: str | None = None
) -> tuple[Run, bool]:
    """Return the run that is made of a request, and whether it was made now; the same key gives the same run.

    Raises:
        KeyReusedError: the key came with another request before.
        QueueFullError: no more runs are taken for now.
        QuotaExceededError: the principal is to wait.

    """
    if key is None:
        services.admission.charge(who.name, quota_items(asked))
        return _submit(services, asked, who, retry_of), True
    fingerprint = hashlib.sha256(json.dumps([plain(asked), retry_of], sort_keys=True).encode()).hexdigest()
    with services.submitting:
        known = _known(services, who.name, key)
        if known is not None:
            run_id, before = known
            if before != fingerprint:
                raise KeyReusedError(f"Idempotency-Key {key[:100]!r} came with another request before")
            run = services.history.get(run_id)
            if run is not None:
                return run, False
        services.admission.charge(who.name, quota_items(asked))
        with services.database.write() as connection:
            run = _submit(services, asked, who, retry_of)
            values = {"principal": who.name, "key": key, "fingerprint": fingerprint, "run_id": run.id}
            inserted(connection, "idempotency_keys", {**values, "created_ms": services.clock.now_ms()})
        return run, True


def quota_items(asked: RunRequest) -> list[str]:
    """Return what a request is about, piece by piece, for the quota: partitions, or sources where it names none."""
    sources = asked.sources or ("log.dirs",)
    return [f"{source} {name}" for source in sources for name in (asked.partitions or ("",))]


def _submit(services: Services, asked: RunRequest, who: Principal, retry_of: str | None) -> Run:
    return services.worker.submit(asked, origin=BY_API, principal=who.name, retry_of=retry_of)


def _known(services: Services, principal: str, key: str) -> tuple[str, str] | None:
    query = "SELECT run_id, fingerprint FROM idempotency_keys WHERE principal = ? AND key = ?"
    with services.database.read() as connection:
        row = connection.execute(query, (principal, key)).fetchone()
    return None if row is None else (row["run_id"], row["fingerprint"])
