from __future__ import annotations

import pytest

from resnap.storage.errors import StoreAccessError, StoreUnavailableError
from resnap.storage.stores.s3_client import LONGEST_ASKED_S, Retrying
from resnap.storage.throttle import Throttle


class Trouble:
    """Raises its errors in order, then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.attempts = 0

    def __call__(self) -> str:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def retrying(waits: list[float], **options: object) -> Retrying:
    def sleep(seconds: float) -> bool:
        waits.append(seconds)
        return True

    return Retrying(sleep=sleep, chance=lambda: 0.5, **options)  # type: ignore[arg-type]


def busy(retry_after_s: float | None = None) -> StoreUnavailableError:
    return StoreUnavailableError("busy", retry_after_s=retry_after_s)


def test_what_is_transient_is_tried_again_after_waits_that_double_up_to_a_bound() -> None:
    waits: list[float] = []
    trouble = Trouble(*(busy() for _ in range(5)))
    assert retrying(waits, attempts=6, first_wait_s=1, longest_wait_s=5).call(trouble) == "done"
    assert waits == [0.5, 1, 2, 2.5, 2.5]


def test_it_is_not_tried_for_ever() -> None:
    waits: list[float] = []
    trouble = Trouble(*(busy() for _ in range(9)))
    with pytest.raises(StoreUnavailableError):
        retrying(waits, attempts=3).call(trouble)
    assert (trouble.attempts, len(waits)) == (3, 2)


def test_what_is_not_transient_is_not_tried_again() -> None:
    trouble = Trouble(StoreAccessError("no"))
    with pytest.raises(StoreAccessError):
        retrying([]).call(trouble)
    assert trouble.attempts == 1


def test_the_time_that_the_store_asks_for_is_the_least_that_is_waited() -> None:
    waits: list[float] = []
    retrying(waits, first_wait_s=1).call(Trouble(busy(7)))
    assert waits == [7.5]


def test_a_store_that_asks_for_a_long_wait_is_reported_instead_of_waited_for() -> None:
    waits: list[float] = []
    with pytest.raises(StoreUnavailableError):
        retrying(waits).call(Trouble(busy(LONGEST_ASKED_S + 1)))
    assert waits == []


def test_bytes_pass_at_the_rate_that_was_set_and_time_not_used_is_not_saved_up() -> None:
    now_s, waits = [0.0], []

    def sleep(seconds: float) -> bool:
        waits.append(seconds)
        now_s[0] += seconds
        return True

    throttle = Throttle(bytes_per_s=100, sleep=sleep, clock_s=lambda: now_s[0])
    for _ in range(3):
        throttle.take(50)
    assert now_s == [1.5]
    now_s[0] = 100.0
    throttle.take(200)
    assert now_s == [102.0]
    assert waits == [0.5, 0.5, 0.5, 1.0, 1.0], "with a look each second at whether there still is a use for it"


def test_without_a_limit_no_request_waits() -> None:
    throttle = Throttle(sleep=lambda _: pytest.fail("waited"))
    throttle.take(1 << 40)


def test_a_wait_that_was_interrupted_does_not_continue() -> None:
    trouble = Trouble(busy(), busy())
    with pytest.raises(StoreUnavailableError, match="busy"):
        Retrying(sleep=lambda _: False).call(trouble)
    assert trouble.attempts == 1
    assert not Throttle(bytes_per_s=1, sleep=lambda _: False).take(1)
    asked = iter([True, False])
    assert not Throttle(bytes_per_s=1, sleep=lambda _: True).take(1_000_000, lambda: next(asked))
