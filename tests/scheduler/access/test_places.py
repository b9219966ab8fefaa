"""What requests may name: nothing but what the configuration allows, whatever way it is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resnap.scheduler.access.roles import PlaceForbiddenError
from resnap.scheduler.runs.configuration import admitting
from resnap.storage.errors import ConfigurationError, UsageError
from resnap.storage.stores.urls import local_path

if TYPE_CHECKING:
    from collections.abc import Callable

    Admit: TypeAlias = Callable[[str], str]


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    (tmp_path / "allowed" / "topic-0").mkdir(parents=True)
    (tmp_path / "allowed-not").mkdir()
    return tmp_path / "allowed"


@pytest.fixture
def places(allowed: Path) -> Admit:
    return admitting("allow-sources", [str(allowed), "s3://bucket/prod/kafka", "s3://whole"])


def refused(places: Admit, place: str) -> str:
    with pytest.raises((PlaceForbiddenError, UsageError)) as caught:
        places(place)
    return f"{caught.value} {caught.value.hint}"


def test_what_lies_below_is_admitted(places: Admit, allowed: Path) -> None:
    for path in (allowed, allowed / "topic-0", allowed / "not there yet"):
        assert places(str(path)) == str(path)
        assert local_path(places(path.as_uri())) == path
    for url in ("s3://bucket/prod/kafka", "s3://bucket/prod/kafka/x/y", "s3://whole", "s3://whole/x"):
        assert places(url) == url
        assert places(f"{url}/") == url


@pytest.mark.parametrize(
    "place",
    [
        "", "relative", "~", "/", "/etc/passwd", "memory://x", "http://169.254.169.254/latest/meta-data", "ftp://h/x",
        "S3://bucket/prod/kafka", "s3:///prod", "s3://", "s3://other", "s3://buckets/prod/kafka", "s3://Bucket/prod/kafka",
        "s3://bucket", "s3://bucket/prod", "s3://bucket/prod/kafka2", "s3://bucket/prod//kafka", "s3://bucket/prod/kafka/..",
        "s3://bucket/prod/kafka/../../x", "s3://bucket/./prod/kafka", "s3://bucket/prod%2Fkafka", "s3://bucket\\prod/kafka",
        "s3://bucket/prod/kafka?endpoint=http://h", "s3://bucket/prod/kafka#x", "s3://h:9000/prod/kafka", "s3://whole@h/x",
        "file://host/etc", "file:etc", "file:///etc", "s3://bucket/prod/kafka\n", "s3://bucket/prod/kafka\x00",
        "s3://bucket/" + "x" * 5000,
    ],
)  # fmt: skip
def test_all_else_is_refused(places: Admit, place: str) -> None:
    refused(places, place)


def test_what_begins_alike_is_elsewhere(places: Admit, allowed: Path) -> None:
    for place in (f"{allowed}-not", f"{allowed}/../allowed-not", f"{allowed}/..", str(allowed.parent)):
        refused(places, place)
    refused(places, f"file://{quote(str(allowed))}/%2e%2e/allowed-not")


def test_a_link_counts_for_where_it_leads(places: Admit, allowed: Path) -> None:
    (allowed / "out").symlink_to(allowed.parent / "allowed-not")
    (allowed.parent / "in").symlink_to(allowed)
    (allowed / "round").symlink_to(allowed / "round")
    refused(places, str(allowed / "out"))
    refused(places, str(allowed / "out" / "x"))
    refused(places, str(allowed / "round"))
    refused(places, str(allowed / "round" / "x"))
    assert places(str(allowed.parent / "in" / "topic-0")) == str(allowed / "topic-0")


def test_an_allowed_link_may_be_turned_elsewhere(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "now").symlink_to(tmp_path / "old")
    places = admitting("allow-sources", [str(tmp_path / "now")])
    assert places(str(tmp_path / "now")) == str(tmp_path / "old")
    (tmp_path / "now").unlink()
    (tmp_path / "now").symlink_to(tmp_path / "new")
    assert places(str(tmp_path / "now" / "x")) == str(tmp_path / "new" / "x")
    refused(places, str(tmp_path / "old"))


def test_a_refusal_says_what_is_allowed_and_not_what_is_there(places: Admit, allowed: Path) -> None:
    there, not_there = str(allowed.parent / "allowed-not"), str(allowed.parent / "nowhere")
    said = [refused(places, place).replace(place, "X") for place in (there, not_there)]
    assert said[0] == said[1]
    assert str(allowed) in said[0]
    assert "allow-sources" in said[0]


def test_credentials_are_not_repeated(places: Admit) -> None:
    for url in ("s3://key:secret@whole/x", "s3://key:sec/ret@whole/x"):
        assert "sec" not in refused(places, url).replace("service", "").removeprefix("a URL")


def test_nothing_is_allowed_unless_something_is() -> None:
    assert "set it" in refused(admitting("allow-sources", []), "/etc")


@pytest.mark.parametrize("place", ["relative", "memory://x", "s3://k:s@bucket", "/a/../b"])
def test_a_setting_that_allows_no_place_is_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match="allow-destinations: "):
        admitting("allow-destinations", [place])


@given(st.lists(st.sampled_from(["..", ".", "", "x", "out", "topic-0", "%2e%2e"]), max_size=6))
def test_no_way_of_writing_leads_out(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    root = tmp_path_factory.getbasetemp() / "ways"
    (root / "in").mkdir(parents=True, exist_ok=True)
    (root / "in" / "out").unlink(missing_ok=True)
    (root / "in" / "out").symlink_to("/etc")
    places = admitting("allow-sources", [str(root / "in")])
    for place in ("/".join([str(root / "in"), *steps]), "/".join([(root / "in").as_uri(), *steps])):
        try:
            admitted = places(place)
        except (PlaceForbiddenError, UsageError):
            continue
        path = local_path(admitted) or Path(admitted)
        assert path.resolve().is_relative_to((root / "in").resolve())
