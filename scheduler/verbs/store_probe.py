"""The findings of `resnap doctor URL`: does a store do what shipping needs, and how does Resnap handle the rest?"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.contract import Result
from resnap.storage.errors import ObjectNotFoundError, ResnapError
from resnap.storage.stores.probe import (
    BODY_BYTES,
    Check,
    Condition,
    UploadChecks,
    condition,
    copy_problem,
    deletion,
    listing_problem,
    parts_problem,
    range_problem,
    replacement,
    store_clock_ms,
    throwaway,
    upload_checks,
    uploads_problem,
)
from resnap.storage.stores.protocol import CopyingStore
from resnap.storage.words import human_bytes, human_duration, second

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.scheduler.clock import Clock
    from resnap.storage.stores.protocol import ObjectStore


class Health(StrEnum):
    """How an answer is to be taken."""

    OK = "ok"
    WARN = "warn"
    """Something will not work, or not as well as it could; what does, does so correctly."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding(Result):
    """One answer."""

    health: Health
    check: str
    """What was checked, in a word or two."""
    detail: str
    remedy: str | None = None


def ok(check: str, detail: str) -> DoctorFinding:
    """Return the finding that all is well."""
    return DoctorFinding(health=Health.OK, check=check, detail=detail)


def warn(check: str, detail: str, remedy: str | None = None) -> DoctorFinding:
    """Return the finding that something could be better."""
    return DoctorFinding(health=Health.WARN, check=check, detail=detail, remedy=remedy)


def fail(check: str, detail: str, remedy: str | None = None) -> DoctorFinding:
    """Return the finding that something will not do."""
    return DoctorFinding(health=Health.FAIL, check=check, detail=detail, remedy=remedy)


def failed(check: str, error: ResnapError) -> DoctorFinding:
    """Return the finding that an error makes."""
    return fail(check, str(error), error.hint)


TOLERATED_SKEW_MS: Final = 300_000
"""S3 refuses requests whose clock is 15 minutes off; a third of that causes a warning."""
_CONDITIONS: Final = {
    Condition.KEPT: "a conditional write does not replace what is there, and of several at once one wins",
    Condition.IGNORED: "the store ignores the condition of a write",
    Condition.RACES: "of several conditional writes at once more than one wins",
    Condition.REFUSED: "the store refuses conditional writes",
}


def probe_store(store: ObjectStore, clock: Clock) -> Iterator[DoctorFinding]:
    """Yield what the store keeps of its promises; an error ends the probe, which deletes its objects all the same."""
    try:
        yield from _body(store)
        yield _ranges(store)
        yield _parts(store)
        yield from _checksums(upload_checks(store))
        if isinstance(store, CopyingStore):
            yield _copies(store)
        yield _condition(condition(store))
        yield _replacement(replacement(store))
        yield _conditional_deletion(deletion(store))
        yield _listing(store)
        yield _check_uploads(store)
        yield _clock(store_clock_ms(store), clock)
        yield _deletion(store)
    except ResnapError as error:
        yield failed("store", error)


def _body(store: ObjectStore) -> Iterator[DoctorFinding]:
    body = secrets.token_bytes(BODY_BYTES)
    with throwaway(store) as key:
        store.put(key, body)
        yield ok("store write", f"{store.url} took {human_bytes(BODY_BYTES)}")
        if store.get(key) == body:
            yield ok("store read", "what was written was read back")
        else:
            yield fail("store read", "the store returned other bytes than were written",
                       "do not ship to this store; where it is behind a proxy, try without")  # fmt: skip


def _ranges(store: ObjectStore) -> DoctorFinding:
    problem = range_problem(store)
    if problem is None:
        return ok("store ranges", "parts of an object can be read, of the version asked for")
    return warn("store ranges", problem, "ship to it, but do not read segments from it (a SOURCE must know ranges);"
                " where its checksums are wrong, --s3-response-checksum-validation when_required helps")  # fmt: skip


def _parts(store: ObjectStore) -> DoctorFinding:
    problem = parts_problem(store)
    if problem is None:
        return ok("store parts", "an upload in parts was read back whole")
    return fail("store parts", problem, "segments of more than 16 MiB cannot be shipped to this store")


def _checksums(checks: UploadChecks) -> Iterator[DoctorFinding]:
    for name, check in (("whole", checks.whole), ("in parts", checks.in_parts)):
        what = f"a body with a wrong checksum, sent {name}, was {check}"
        if check is Check.UNTRIED:
            what = f"a body sent {name}: {check}"
        yield ok("store checksum", what) if check in {Check.REFUSED, Check.UNTRIED} else warn("store checksum", what)
    if checks.count:
        yield ok("verification", "by the store's own check of our checksums, since it refuses wrong ones and keeps"
                 " nothing of them; --verify-upload read-back reads every object back all the same")  # fmt: skip
    else:
        yield ok("verification", "every object is read back whole, since the store's own check is not reliable")


def _copies(store: CopyingStore) -> DoctorFinding:
    problem, remedy = copy_problem(store), "a segment that is in this store is read, and sent to it once more"
    if problem is None:
        problem = copy_problem(store, of_others=True)
        remedy = f"only what was written with a CRC-32C is copied by the store itself; else {remedy}"
    if problem is None:
        return ok("store copy", "a segment that is in this store is copied by the store itself, as the version read")
    return warn("store copy", problem, f"nothing to do: {remedy}")


def _condition(found: Condition) -> DoctorFinding:
    if found is Condition.KEPT:
        return ok("store condition", _CONDITIONS[found])
    return warn(
        "store condition",
        _CONDITIONS[found],
        "nothing is lost by it, but two tiering jobs on one partition at once may both do all the work,"
        " and `resnap gc` needs --no-other-writers",
    )


def _replacement(found: Condition) -> DoctorFinding:
    if found is Condition.KEPT:
        return ok("store replace", "a write that is to replace one version (If-Match) replaces no other one")
    what = f"conditions on the version that is replaced (If-Match) are {found}"
    return warn("store replace", what, "only `resnap repair` uses them, and needs --no-other-writers without them")


def _conditional_deletion(found: Condition) -> DoctorFinding:
    check = "store delete condition"
    if found is Condition.KEPT:
        return ok(check, "a deletion of one version (If-Match), as `resnap gc` makes it, deletes no other one")
    what = f"conditions on the version that is deleted (If-Match) are {found}"
    return warn(check, what, "only `resnap gc` uses them; without them it compares size and time of an object, and then"
                " deletes it, so that nothing else may replace what is garbage in that moment")  # fmt: skip


def _listing(store: ObjectStore) -> DoctorFinding:
    problem = listing_problem(store)
    if problem is None:
        return ok("store list", "what is written and deleted is listed correctly at once, in order, over several pages")
    return fail("store list", problem, "choose a store whose listings are current")


def _check_uploads(store: ObjectStore) -> DoctorFinding:
    problem = uploads_problem(store)
    if problem is not None:
        return warn("store uploads", problem, "`resnap gc` cannot remove what interrupted uploads leave: let a rule of"
                    " the store do it (MinIO does after a day)")  # fmt: skip
    return ok("store uploads", "what interrupted uploads leave can be found")


def _clock(store_ms: int, clock: Clock) -> DoctorFinding:
    skew_ms = store_ms - clock.now_ms()
    if abs(skew_ms) > TOLERATED_SKEW_MS:
        return warn("store clock", f"the store's clock says {second(store_ms)}, which is"
                    f" {human_duration(abs(skew_ms) / 1000)} {'ahead of' if skew_ms > 0 else 'behind'} this machine's",
                    "set the clocks; S3 refuses requests that are 15 minutes off")  # fmt: skip
    return ok("store clock", "the clocks agree")


def _deletion(store: ObjectStore) -> DoctorFinding:
    with throwaway(store) as key:
        store.put(key, b"")
        store.delete(key)
        try:
            store.head(key)
        except ObjectNotFoundError:
            return ok("store delete", "nothing of the probe is left")
    return warn("store delete", f"{key} is still there after its deletion", "delete it by hand")
