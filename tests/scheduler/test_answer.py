"""The question that the page answers first, for any mixture of partitions."""

from __future__ import annotations

from resnap.scheduler.output.answer import answer_of
from resnap.scheduler.web.words import UNBLOCKED_BY, VERDICTS, ago, moment
from resnap.storage.words import some
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import UnblockedBy
from tests.cases import each

NOW_MS = 1_700_000_000_000


def topics(**names: str) -> dict[Verdict, list[str]]:
    return {verdict: names.get(verdict.value, "").split() for verdict in Verdict}


@each(
    ("given", "word"),
    [
        ({}, "Nothing to tier"),
        ({"never": "a b"}, "Nothing to tier"),
        ({"ready": "a b", "never": "c"}, "Yes"),
        ({"ready": "a b c", "blocked": "d", "never": "e"}, "3 of 5 topics"),
        ({"ready": "a", "unknown": "b"}, "1 of 2 topics"),
        ({"blocked": "a", "never": "b"}, "Not yet"),
        ({"unknown": "a"}, "Not known yet"),
    ],
)
def test_the_answer_is_by_topic_and_becomes_yes_whatever_kafka_never_tiers(given: dict[str, str], word: str) -> None:
    assert answer_of(topics(**given)).word == word


def test_the_answer_names_the_topics() -> None:
    answer = answer_of(topics(ready="a b c", blocked="d", never="e"))
    assert [*map(str, answer.sentences[:2])] == ["3 of 5 topics can be turned on now: a, b, c.", "1 blocked: d."]
    assert [str(one).split(" (")[0] for one in answer.sentences[2:]] == ["1 never"]
    many = answer_of({**topics(), Verdict.READY: [f"t{number}" for number in range(1_000)]})
    assert [*map(str, many.sentences)] == [
        "1,000 of 1,000 topics can be turned on now: t0, t1, t2, t3, t4, t5, t6, t7, t8, t9 and 990 more."
    ]


def test_nothing_good_is_said_where_a_source_could_not_be_read_whole() -> None:
    answer = answer_of(topics(ready="a", blocked="b"), unread=1)
    assert answer.word == "Not known yet"
    assert str(answer.sentences[0]).startswith("1 source could not be read, or not whole")
    assert "b" in str(answer.sentences[-1])


def test_where_nothing_was_scanned_nothing_is_known() -> None:
    assert answer_of(topics(), is_seen=False).word == answer_of(topics(), silent=1).word == "Not known yet"


def test_each_verdict_has_a_word_and_a_sign_of_its_own() -> None:
    assert {one: word.text for one, word in VERDICTS.items()} == {verdict: verdict.value for verdict in Verdict}
    assert len({word.sign for word in VERDICTS.values()}) == len(Verdict)
    assert UNBLOCKED_BY.keys() == set(UnblockedBy)


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
