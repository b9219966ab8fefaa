"""The question that the page answers first, for any mixture of partitions."""

from __future__ import annotations

import pytest

from resnap.scheduler.output.rendering import some
from resnap.scheduler.web.answer import answer_of
from resnap.scheduler.web.words import READINESS, ago, moment
from resnap.tiering.readiness import Readiness
from tests.cases import each

NOW_MS = 1_700_000_000_000


def counts(**given: int) -> dict[Readiness, int]:
    return {one: given.get(one.value, 0) for one in Readiness}


@each(
    ("given", "word"),
    [
        ({}, "Not known yet"),
        ({"excluded": 3}, "Nothing to tier"),
        ({"ready": 5, "excluded": 1}, "Yes"),
        ({"ready": 5, "shipped": 2}, "Yes"),
        ({"shipped": 2}, "Shipped"),
        ({"ready": 5, "prepared": 1}, "Almost"),
        ({"ready": 500, "prepared": 1, "blocked": 1}, "Not yet"),
        ({"ready": 500, "unfit": 1}, "Not yet"),
    ],
)
def test_one_partition_that_would_stop_a_broker_makes_it_no(given: dict[str, int], word: str) -> None:
    assert answer_of(counts(**given)).word == word


@pytest.mark.parametrize("given", [{"ready": 5}, {"shipped": 2}, {"ready": 5, "prepared": 1}])
def test_nothing_good_is_said_where_a_source_could_not_be_read_whole(given: dict[str, int]) -> None:
    answer = answer_of(counts(**given), 1)
    assert answer.word == "Not known yet"
    assert answer.sentence.startswith("1 source could not be read, or not whole.")


def test_what_stops_a_broker_is_said_whatever_else_could_not_be_read() -> None:
    assert answer_of(counts(ready=5, blocked=1), 1).word == "Not yet"


def test_the_answer_says_how_many_and_what_is_left_to_do() -> None:
    answer = answer_of(counts(ready=1000, blocked=478, unfit=1, prepared=2, excluded=9))
    assert answer.sentence == "A broker would stop at 481 of 1,481 partitions."
    assert [step.split(":")[0] for step in answer.steps][:2] == [
        "see first why a replay is refused for 1 partition", "replay 478 partitions",
    ]  # fmt: skip
    assert answer.steps[2].startswith("install the snapshots that are made for 2 partitions")


def test_every_readiness_has_a_sign_of_its_own_or_means_as_good() -> None:
    assert READINESS.keys() == set(Readiness)
    assert len({(word.sign, word.text) for word in READINESS.values()}) == len(Readiness)
    assert {one for one, word in READINESS.items() if word.sign == "✓"} == {Readiness.READY, Readiness.SHIPPED}


@each(
    ("seconds", "said"),
    [(0, "just now"), (59, "just now"), (61, "1 min ago"), (7199, "119 min ago"), (7200, "2 h ago"),
     (172_800, "2 d ago"), (-5, "in less than a minute"), (-3600, "in 60 min")],
)  # fmt: skip
def test_times_are_rendered_by_how_long_ago_they_were(seconds: int, said: str) -> None:
    assert ago(NOW_MS - seconds * 1000, NOW_MS) == said


def test_times_are_rendered_in_full_to_the_second() -> None:
    assert moment(NOW_MS + 123) == "2023-11-14 22:13:20 UTC"
    assert [some(1, "segment"), some(1478, "segment")] == ["1 segment", "1,478 segments"]
