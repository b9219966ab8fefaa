"""Which faults of Kafka's a release has, and that each is described for operators."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.scheduler.job.large_states import LargeStates
from resnap.scheduler.settings.settings import Settings
from resnap.storage.kafka_release import Release, parse_release, refined
from resnap.tiering import broker_releases
from resnap.tiering.controller.metadata.image import release_of_level
from resnap.tiering.judging.known_faults import (
    COMMIT_MARKER_MISSED,
    KNOWN_FAULTS,
    LOCAL_LOG_COUNTED_TWICE,
    NEWEST_PATCH,
    SNAPSHOT_TOO_LARGE,
    STATE_LOST_BY_DISK_MOVE,
    Certainty,
    Facts,
    met_fault,
    met_faults,
)
from tests.cases import each

if TYPE_CHECKING:
    import pytest

PAGE: Final = (Path(__file__).parent.parent.parent / "docs" / "kafka-faults.md").read_text(encoding="utf-8")
BY_NAME: Final = {fault.name: fault for fault in KNOWN_FAULTS}
TOO_MANY: Final = Facts(entries=1_000_001)


def release(text: str) -> Release:
    found = parse_release(text)
    assert found is not None
    return found


@each(
    "version, local_log_twice, too_large",
    [
        ("3.5.1", "no", "no"),
        ("3.8", "yes", "no"),
        ("3.6.0", "yes", "no"),
        ("3.9.2", "yes", "no"),
        ("3.9.3", "maybe", "maybe"),
        ("4.2.1", "yes", "no"),
        ("4.2.2", "yes", "yes"),
        ("4.2.x", "yes", "maybe"),
        ("4.2.3", "maybe", "maybe"),
        ("4.3.1", "yes", "no"),
        ("4.3.2", "maybe", "maybe"),
        ("4.3", "yes", "maybe"),
        ("3.9", "yes", "maybe"),
        ("4.4.0", "no", "yes"),
        ("4.4", "no", "yes"),
        ("4.4.1", "no", "maybe"),
        ("4.5.0", "no", "maybe"),
        ("3.9.1-ccs", "yes", "no"),
        ("4.4.0.redhat-00003", "no", "yes"),
        ("7.9.1-ccs", "yes", "maybe"),
        ("8.1.0-ccs", "yes", "maybe"),
        ("3.9.x", "yes", "maybe"),
        ("3.9.1-aiven.5", "yes", "no"),
        ("3.9.1-debian-12-r1", "yes", "no"),
        ("v4.2.2", "yes", "yes"),
    ],
)
def test_a_release_has_what_was_seen_in_it(version: str, local_log_twice: str, too_large: str) -> None:
    assert BY_NAME[LOCAL_LOG_COUNTED_TWICE].is_in(release(version)) == local_log_twice
    assert BY_NAME[SNAPSHOT_TOO_LARGE].is_in(release(version)) == too_large


@each(
    "version",
    [
        *("", "x", "garbage"),
        *("3.6.0.1", "3.7.x.kraft", "2.8.2.tiered", "3.6.0-amzn-1", "3.8.x-msk", "7.9.1-ce", "7.10.0-ccs", "9.0.0-ccs"),
        *("4.5.0-SNAPSHOT", "4.4.0-rc1", "9.9.9", "3.10.0", "0.45.0-kafka-3.9.0", "3.4.1.7.3.1.0-123"),
        *("3.9.1;rm", "3.9.1 -ccs", "3.9.1-", "3.9.1-ccs x"),
    ],
)
def test_nothing_is_said_of_a_version_whose_base_is_not_certain(version: str) -> None:
    assert parse_release(version) is None


@each("level, line", [(20, (3, 8)), (21, (3, 9)), (25, (4, 0)), (27, (4, 1)), (33, (4, 4)), (99, None), (None, None)])
def test_a_level_of_metadata_version_shows_the_line(level: int | None, line: tuple[int, int] | None) -> None:
    found = release_of_level(level)
    assert (None if found is None else (*found.line, found.patch)) == (None if line is None else (*line, None))


def test_a_given_version_says_the_patch_release_of_its_own_line_alone() -> None:
    lines = [Release(4, 2), Release(4, 1)]
    assert refined(lines, release("4.2.1")) == (release("4.2.1"), Release(4, 1))
    assert refined([], release("4.2.1")) == (release("4.2.1"),)
    assert refined(lines, None) == refined([*lines, None], None) == tuple(lines)


def test_a_given_version_counts_where_a_broker_is_not_known_or_of_another_line() -> None:
    assert refined([None, Release(4, 1)], release("4.2.2")) == (release("4.2.2"), Release(4, 1))
    assert refined([Release(4, 1)], release("4.4.0")) == (Release(4, 1), release("4.4.0"))


@each(
    "facts, is_met",
    [
        (Facts(), False),
        (Facts(retention_bytes=-1, log_bytes=((100, 100),)), False),
        (Facts(retention_bytes=270_000), True),
        (Facts(retention_bytes=270_000, log_bytes=((100, 100), (183_733, 183_733))), True),
        (Facts(retention_bytes=367_466, log_bytes=((100, 100), (183_733, 183_733))), False),
        (Facts(retention_bytes=100_000, log_bytes=((95_000, 5_001),)), True),
        (Facts(retention_bytes=100_000, log_bytes=((95_000, 5_000),)), False),
    ],
)
def test_a_size_limit_is_safe_above_both_parts(facts: Facts, is_met: bool) -> None:
    assert (met_fault(LOCAL_LOG_COUNTED_TWICE, [release("3.9.1")], facts) is not None) is is_met
    assert met_fault(LOCAL_LOG_COUNTED_TWICE, [release("4.4.0")], facts) is None


def test_a_fault_is_met_by_what_meets_it_and_by_a_release_that_has_it() -> None:
    at_limit, above = Facts(entries=1_000_000), TOO_MANY
    assert met_fault(SNAPSHOT_TOO_LARGE, [release("4.4.0")], at_limit) is None
    assert met_fault(SNAPSHOT_TOO_LARGE, [release("4.3.1")], above) is None
    met = met_fault(SNAPSHOT_TOO_LARGE, [release("4.3.1"), release("4.4.0")], above)
    assert met is not None
    assert met.is_certain
    assert met.releases == (release("4.4.0"),)
    assert met.detail.startswith("4.4.0 has this fault of Kafka's: ")
    assert "1,000,001 producers" in met.detail
    perhaps = met_fault(SNAPSHOT_TOO_LARGE, [release("4.2.x")], above)
    assert perhaps is not None
    assert not perhaps.is_certain
    assert "4.2.2" in perhaps.detail


def test_the_fault_of_moves_names_what_shows_it_before_and_after() -> None:
    met = met_fault(STATE_LOST_BY_DISK_MOVE, [release("4.4.0")], Facts(log_dirs=2))
    assert met is not None
    assert "--before-move" in met.hint
    assert "replicas --remote" in met.hint


def test_a_fault_that_any_tiered_topic_may_meet_needs_no_fact() -> None:
    assert {one.fault.name for one in met_faults([release("4.4.0")], Facts())} == {
        fault.name for fault in KNOWN_FAULTS if fault.meets is None and fault.is_in(release("4.4.0")) != Certainty.NO
    }
    assert STATE_LOST_BY_DISK_MOVE in {one.fault.name for one in met_faults([release("4.4.0")], Facts(log_dirs=2))}


def test_every_fault_is_on_the_page_with_its_releases_and_sources() -> None:
    sections = {part.splitlines()[0].casefold(): re.sub(r"\s+", " ", part) for part in PAGE.split("\n## ")}
    for fault in KNOWN_FAULTS:
        section = sections[fault.title.casefold()]
        parts = ("**Symptom**: ", "**Log line**: ", "**With stock tools**: ", "**See it**")
        for text in (f"Code `{fault.name}`. Releases: ", fault.releases_text, *fault.sources, *parts):
            assert text in section, f"{fault.name}: {text}"


def test_a_broker_whose_release_is_not_known_may_delete_a_snapshot_whatever_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def said(*lines: Release | None) -> str:
        monkeypatch.setattr(broker_releases, "_of_metadata_log", lambda _: list(lines))
        return LargeStates(Settings(), str).judged("it", 1_000_001)

    assert "brokers of 4.2.2 and 4.4.0 delete" in said(Release(3, 8))
    assert "it would be deleted by a broker that loads it" in said(Release(3, 8), None)


@each("version", ["3.9.3", "4.2.3", "4.4.1", "4.5.0"])
def test_a_fault_that_the_newest_examined_release_has_or_is_expected_to_have_may_be_in_later_ones(version: str) -> None:
    later = release(version)
    line = later.line if later.line in NEWEST_PATCH else max(NEWEST_PATCH)
    newest = Release(*line, NEWEST_PATCH[line])
    answers = {fault.name: (fault.is_in(newest), fault.is_in(later)) for fault in KNOWN_FAULTS}
    assert {now for then, now in answers.values() if then != Certainty.NO} == {Certainty.MAYBE}
    assert Certainty.YES not in {now for _, now in answers.values()}
    assert answers[COMMIT_MARKER_MISSED] == (Certainty.MAYBE, Certainty.MAYBE)


def test_a_fault_that_is_expected_alone_is_said_so_in_a_sentence() -> None:
    met = met_fault(COMMIT_MARKER_MISSED, [release("4.4.0")], Facts())
    assert met is not None
    assert (
        "4.4.0 may have this fault of Kafka's (releases: not examined, but expected: 3.9.0 and later): " in met.detail
    )


def test_no_two_faults_have_one_name() -> None:
    assert len(BY_NAME) == len(KNOWN_FAULTS)
