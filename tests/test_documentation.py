"""The texts name what exists, and nothing else, and the reference is what the declarations make."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Final

import pytest

from resnap.replay.comparison import SnapshotVerdict
from resnap.scheduler.cli import failures
from resnap.scheduler.cli.commands import load_command
from resnap.scheduler.cli.failures import EXIT_CODES
from resnap.scheduler.registry import COMMANDS
from resnap.scheduler.settings.settings import DECLARED
from resnap.scheduler.verbs import announce
from resnap.storage import errors
from resnap.tiering.installing.installation import Outcome
from resnap.tiering.judging.inventory import SnapshotState
from resnap.tiering.judging.known_faults import (
    KNOWN_FAULTS,
    LOCAL_LOG_COUNTED_TWICE,
    SNAPSHOT_TOO_LARGE,
    known_fault,
)
from resnap.tiering.judging.refusal import Reason
from resnap.tiering.remote_log.announcement import StopReason
from tests.cases import each
from tests.picture import PICTURE, picture, printed
from tests.reference import (
    FAULTS,
    MADE,
    MANUAL,
    PAGE,
    VERSIONS,
    anchor,
    manual,
    meanings_in,
    reference,
    with_faults,
)

if TYPE_CHECKING:
    from enum import StrEnum

ROOT: Final = Path(__file__).parent.parent
MOST_LINES: Final = 150
ARCHITECTURE: Final = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = [part for part in re.split(r"^## ", ARCHITECTURE, flags=re.MULTILINE) if title in part.splitlines()[0]]
    assert len(found) == 1, f"the text must have one section {title!r}"
    return found[0]


def test_the_reference_is_what_the_declarations_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "make it again: python -m tests.reference"
    assert MANUAL.read_text(encoding="utf-8") == manual(), "make it again: python -m tests.reference"
    for page in (FAULTS, VERSIONS):
        assert MADE in page.read_text(encoding="utf-8")
        assert page.read_text(encoding="utf-8") == with_faults(page), "make it again: python -m tests.reference"


def test_what_is_written_by_hand_names_faults_of_kafka_as_the_code_does() -> None:
    """Links go to the section of a fault, beside its report, and codes are those of the code."""
    sections = {anchor(one): one for one in KNOWN_FAULTS}
    texts = [path.read_text(encoding="utf-8") for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]]
    links = [link for text in texts for link in re.findall(r"\[([^\]]+)\]\(kafka-faults\.md(#[^)]+)\)", text)]
    assert {label for label, section in links if section in sections} >= {"KAFKA-20732"}
    for label, section in links:
        fault = sections[section]
        if re.fullmatch(r"`[a-z-]+`|KAFKA-\d+", label):
            assert label in {f"`{fault.name}`", *fault.sources}, label
    codes = re.findall(r"kafka-faults\.md\)[^`|\n]{0,4}`([a-z-]+)`", "".join(texts))
    assert codes
    assert set(codes) <= {one.name for one in KNOWN_FAULTS}
    [of] = [one.releases for one in KNOWN_FAULTS if one.name == SNAPSHOT_TOO_LARGE]
    brokers = f"rokers of {' and '.join(map(str, of))} delete a snapshot"
    assert brokers in (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rules = (ROOT / "docs" / "deploy" / "prometheus-rules.yml").read_text(encoding="utf-8")
    assert brokers in rules
    assert f"({SNAPSHOT_TOO_LARGE})" in rules
    newest = str(known_fault(LOCAL_LOG_COUNTED_TWICE).releases[-1].last)
    by_hand = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("runbook.md", "guarantees.md")]
    for text in (*by_hand, str(announce.AnnounceRequest.__doc__)):
        assert f"up to {newest.rpartition('.')[0]}" in " ".join(text.split())


@pytest.mark.skipif(which("groff") is None, reason="there is no groff")
def test_the_manual_page_is_set_without_a_warning_and_shows_its_examples_as_they_are_typed() -> None:
    ran = subprocess.run(["groff", "-man", "-Tascii", "-ww", MANUAL], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    text = re.sub(r"\x1b\[[0-9;]*m", "", re.sub(".\b", "", ran.stdout))
    for row in COMMANDS.values():
        assert row.example in text


def test_the_picture_shows_what_the_command_prints() -> None:
    assert PICTURE.read_text(encoding="utf-8") == picture(printed()), "make it again: python -m tests.picture"


def test_the_readme_is_short_and_its_first_command_leaves_resnap_on_the_path() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    first, second, *_ = re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert 'export PATH="$PWD/.venv/bin:$PATH"' in first
    assert "pytest" in second


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_selects_topics_can_exclude_some(name: str) -> None:
    flags = {flag for one in load_command(name).params for flag in one.opts}
    assert ("--exclude-topic" in flags) == ("--topic" in flags)


def test_every_command_and_setting_is_in_the_reference() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"### resnap {name}\n" not in text] == []
    assert [name for name in DECLARED if f"`{DECLARED[name].key}`" not in text] == []


def test_every_exit_code_of_the_errors_and_the_command_line_has_a_meaning() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    raised = {kind.exit_code for kind in classes if issubclass(kind, errors.ResnapError)}
    returned = {value for name, value in vars(failures).items() if name.isupper() and isinstance(value, int)}
    assert EXIT_CODES.keys() == raised | returned


@pytest.mark.parametrize("kind", [SnapshotState, SnapshotVerdict, Reason, StopReason, Outcome])
def test_every_code_of_an_answer_has_a_meaning(kind: type[StrEnum]) -> None:
    assert [name for name, meaning in meanings_in(kind).items() if not meaning] == []


@pytest.mark.parametrize("page", ["architecture.md", "kafka-versions.md"])
def test_files_that_a_text_names_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:storage|replay|tiering|scheduler|tests|docs)/[\w/.*-]*)`", text))
    assert named
    assert [path for path in sorted(named) if not list(ROOT.glob(path.rstrip("/")))] == []


def test_the_table_of_folders_has_every_folder_and_no_other() -> None:
    packages = ("storage", "replay", "tiering", "scheduler")
    folders = {path.parent.relative_to(ROOT).as_posix() for name in packages for path in (ROOT / name).rglob("*.py")}
    assert set(re.findall(r"^\| `([a-z_/]+)/` \|", section("Packages"), flags=re.MULTILINE)) == folders | set(packages)


@each(
    "name",
    [
        "docs/architecture.md",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/guide.md",
        "docs/operations.md",
        "docs/performance.md",
        "docs/reference.md",
        "docs/controller.md",
        "docs/kafka-faults.md",
        "docs/kafka-versions.md",
        "docs/quota.md",
        "docs/python.md",
        "docs/api.md",
        "docs/SECURITY.md",
        "docs/runbook.md",
        "docs/stores.md",
    ],
)
def test_links_between_the_texts_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    for target in targets:
        path, _, anchor = target.partition("#")
        leads_to = (ROOT / name).parent / path if path else ROOT / name
        assert leads_to.exists(), target
        assert not anchor or anchor in anchors_of(leads_to.read_text(encoding="utf-8")), target


def anchors_of(text: str) -> set[str]:
    """Return what the headings of a Markdown text can be linked as."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_nothing_says_to_install_by_name_what_is_not_published_or_another_projects() -> None:
    suffixes = {".md", ".py", ".service", ".toml", ".yaml", ".html"}
    texts = [
        path for folder in ("docs", "scheduler", "tiering", "replay", "storage") for path in (ROOT / folder).rglob("*")
    ]
    for path in [*texts, *ROOT.glob("*.md"), ROOT / "Dockerfile"]:
        if path.suffix in suffixes or path.name == "Dockerfile":
            text = path.read_text(encoding="utf-8")
            by_name = r"[^\n]*[ '\"=](?:kafka-)?resnap\b(?!/)|resnap\[\w"
            said = re.findall(rf"pip3? (?:\S+ )*?install(?![^\n]*--no-index){by_name}", text)
            assert said == [], f"{path}: the public index has another project's package under this name"
