"""Turns a request into a run: once per idempotency key, within the quota."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Depends, Header, Request, Response

from resnap.scheduler.api.auth import Operator, Serving
from resnap.scheduler.api.problem_kinds import KeyReusedError
from resnap.scheduler.api.problems import problems
from resnap.scheduler.api.request_context import context_in
from resnap.scheduler.api.responses import RunAnswer
from resnap.scheduler.output.records import plain
from resnap.scheduler.runs.run import BY_API, Run, RunRequest
from resnap.scheduler.state.database import insert_row

RUNS_PATH: Final = "/v1/runs"
TAKEN: Final[dict[int | str, dict[str, Any]]] = {
    202: {"headers": {"Location": {"description": "Address of the run.", "schema": {"type": "string"}}}},
    **problems(
        "unusable-request", "place-not-allowed", "idempotency-key-reused", "stale-plan", "queue-full", "quota-exceeded",
        "log-dir-unusable", "cancelled",
    ),
}  # fmt: skip
"""What a route may answer that makes a run."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Takes what an operator asks for as a run."""

    request: Request
    response: Response
    services: Serving
    who: Operator
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1, max_length=200, description="The same key and request give the same run; another is refused."
        ),
    ] = None

    def take(
        self,
        asked: RunRequest,
        *,
        retry_of: str | None = None,
        origin: str = BY_API,
        check: Callable[[], None] = lambda: None,
    ) -> RunAnswer:
        """Return the run that is made of a request; the same key gives the same run.

        Args:
            asked: what the run is to do.
            retry_of: the run that is done again.
            origin: of the run.
            check: called before a run is made; what it raises is the answer. A run that the key has made before is the
                answer whatever has changed since.

        Raises:
            KeyReusedError: the key came with another request before.
            QueueFullError: no more runs are taken for now.
            QuotaExceededError: the principal is to wait.

        """
        services, key, principal = self.services, self.idempotency_key, self.who.name
        charge = partial(services.admission.charge, principal, quota_items(asked))
        submit = partial(services.worker.submit, asked, origin=origin, principal=principal, retry_of=retry_of)
        if key is None:
            check()
            charge()
            return accepted_answer(self.request, self.response, submit())
        parts = [plain(asked), retry_of, *([] if origin == BY_API else [origin])]
        fingerprint = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        run = self._earlier_run(key, fingerprint)
        if run is None:
            check()
            with services.submitting:
                run = self._once(key, fingerprint, charge, submit)
        return accepted_answer(self.request, self.response, run)

    def _earlier_run(self, key: str, fingerprint: str) -> Run | None:
        """Return the run that a key has made, if it is kept; raises KeyReusedError if it came with another request."""
        query = "SELECT run_id, fingerprint FROM idempotency_keys WHERE principal = ? AND key = ?"
        known = self.services.database.row(query, (self.who.name, key))
        if known is not None and known["fingerprint"] != fingerprint:
            raise KeyReusedError(f"Idempotency-Key {key[:100]!r} came with another request before")
        return None if known is None else self.services.history.get(known["run_id"])

    def _once(self, key: str, fingerprint: str, charge: Callable[[], object], submit: Callable[[], Run]) -> Run:
        services, run = self.services, self._earlier_run(key, fingerprint)
        if run is not None:
            return run
        charge()
        with services.database.write() as connection:
            run = submit()
            values = {"principal": self.who.name, "key": key, "fingerprint": fingerprint, "run_id": run.id}
            insert_row(connection, "idempotency_keys", {**values, "created_ms": services.clock.now_ms()})
        return run


Submitting: TypeAlias = Annotated[Submission, Depends()]


def accepted_answer(request: Request, response: Response, run: Run) -> RunAnswer:
    """Return that a run was taken, and where it is."""
    context_in(request.scope).detail["run"] = run.id
    response.headers["Location"] = f"{RUNS_PATH}/{run.id}"
    return RunAnswer.model_validate(run)


def quota_items(asked: RunRequest) -> list[str]:
    """Return what a request is about, piece by piece, for the quota: partitions, or sources where it names none."""
    sources = asked.sources or ("log.dirs",)
    return [f"{source} {name}" for source in sources for name in (asked.partitions or ("",))]
