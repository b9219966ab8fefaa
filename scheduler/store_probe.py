"""Does a store do what shipping needs? One small object is written, read, listed and deleted under a throwaway key."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from scheduler.clock import instant
from scheduler.findings import fail, failed, ok, warn
from scheduler.rendering import human_duration
from storage.errors import ObjectExistsError, ObjectNotFoundError, ResnapError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.clock import Clock
    from scheduler.findings import Finding
    from storage.remote.object_store import ObjectStore

PROBE_PREFIX: Final = ".resnap-doctor"
PROBE_BYTES: Final = 65_536
TOLERATED_SKEW_MS: Final = 300_000
"""S3 refuses requests whose clock is 15 minutes off; a third of it is worth a word."""


def probe_store(store: ObjectStore, clock: Clock) -> Iterator[Finding]:
    """Yield what the store keeps of its promises; an error ends the probe, which deletes its object all the same."""
    key = f"{PROBE_PREFIX}/{secrets.token_hex(16)}"
    body = secrets.token_bytes(PROBE_BYTES)
    try:
        store.put(key, body)
        yield ok("store write", f"{store.url} took {PROBE_BYTES} bytes")
        yield from _reading(store, key, body)
        yield from _condition(store, key, body)
        yield _listing(store, key, clock)
        yield _deletion(store, key)
    except ResnapError as error:
        yield failed("store", error)
    finally:
        with suppress(ResnapError):
            store.delete(key)


def _reading(store: ObjectStore, key: str, body: bytes) -> Iterator[Finding]:
    if store.get(key) != body:
        yield fail("store read", "the store gave other bytes back than it took",
                   "do not ship to this store; where it is behind a proxy, try without")  # fmt: skip
        return
    start, end = PROBE_BYTES // 3, PROBE_BYTES // 2
    if store.get_range(key, start, end) != body[start:end]:
        yield fail("store read", f"the store answers a range [{start}, {end}) wrongly", "do not read segments from it")
        return
    yield ok("store read", "what was written came back, whole and in part")


def _condition(store: ObjectStore, key: str, body: bytes) -> Iterator[Finding]:
    """Write the same bytes again on the condition that nothing is there, which must not succeed."""
    try:
        store.put(key, body, if_absent=True)
    except ObjectExistsError:
        yield ok("store condition", "a conditional write does not replace what is there")
    except StoreError as error:
        yield warn("store condition", f"conditional writes are refused: {error}", error.hint)
    else:
        yield warn(
            "store condition",
            "the store ignores the condition of a write",
            "nothing is lost by it, but two tiering jobs on one partition at once would both do all the work",
        )


def _listing(store: ObjectStore, key: str, clock: Clock) -> Finding:
    listed = [found for found in store.list(f"{PROBE_PREFIX}/") if found.key == key]
    if not listed:
        return fail("store list", "the object just written is not listed", "choose a store whose listings are current")
    skew_ms = listed[0].modified_ms - clock.now_ms()
    if abs(skew_ms) > TOLERATED_SKEW_MS:
        return warn("store clock", f"the store's clock says {instant(listed[0].modified_ms)}, which is"
                    f" {human_duration(abs(skew_ms) / 1000)} {'ahead of' if skew_ms > 0 else 'behind'} this machine's",
                    "set the clocks; S3 refuses requests that are 15 minutes off")  # fmt: skip
    return ok("store list", "the object is listed, and the clocks agree")


def _deletion(store: ObjectStore, key: str) -> Finding:
    store.delete(key)
    try:
        store.head(key)
    except ObjectNotFoundError:
        return ok("store delete", "nothing of the probe is left")
    return warn("store delete", f"{key} is still there after its deletion", "delete it by hand")
