"""The architecture text names what exists, and nothing else: commands, flags, settings, exit codes, reasons, files."""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path
from typing import Final

import pytest
import typer

from resnap.replay.comparison import Verdict
from resnap.scheduler.cli import app, failures
from resnap.scheduler.cli.commands import all_commands
from resnap.scheduler.settings.settings import SETTING_NAMES, display_name, flag_of
from resnap.storage import errors
from resnap.storage.layouts.flat.keys import EXTENSIONS
from resnap.tiering.installing.installation import Fate
from resnap.tiering.inventory import SnapshotState
from resnap.tiering.refusal import Reason
from resnap.tiering.remote_log.announcement import StopReason

ROOT: Final = Path(__file__).parent.parent
ARCHITECTURE: Final = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NOT_BUILT: Final = "Decided, not built yet"
STOCK_BROKER_ONLY: Final = {Reason.MISSING_SNAPSHOT, Reason.UNUSABLE_SNAPSHOT}
"""Never a reason of ours for not shipping."""


def section(title: str) -> str:
    found = [part for part in re.split(r"^## ", ARCHITECTURE, flags=re.MULTILINE) if title in part.splitlines()[0]]
    assert len(found) == 1, f"the text must have one section {title!r}"
    return found[0]


def table(text: str, first_title: str) -> list[list[str]]:
    """Return the cells of the table whose first column has this title, without its head."""
    lines = iter(text.splitlines())
    head = next((line for line in lines if line.startswith(f"| {first_title} |")), None)
    assert head is not None, f"there is no table of {first_title!r}"
    next(lines)
    rows = takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def flags_in(cell: str) -> set[str]:
    return set(re.findall(r"--[a-z0-9][a-z0-9-]*", cell)) | set(re.findall(r"`(-[a-z])`", cell))


def flags_of(command: typer.core.TyperCommand) -> set[str]:
    """Return the flags of a command, but not ``--help`` nor the ``--no-`` forms."""
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    return {flag for option in options for flag in option.opts} - {"--help", "-h"}


COMMANDS: Final = dict(all_commands())
GROUPS: Final = {group: flags_in(flags) for group, flags in table(section("Faces"), "group")}


def documented() -> dict[str, set[str]]:
    """Return the flags of each command by its row, those of its groups included."""
    found = {}
    for called, _, own, groups in table(section("Faces"), "command"):
        words = re.findall(r"[a-z]+(?:-[a-z]+)*", called.split(" ", 1)[1])
        taken = ["common", *filter(None, groups.split(", "))]
        found[" ".join(words)] = flags_in(own).union(*(GROUPS[group] for group in taken))
    return found


def test_the_table_of_commands_has_every_command_and_no_other() -> None:
    assert documented().keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_row_of_a_command_names_its_flags_and_no_others(name: str) -> None:
    assert documented()[name] == flags_of(COMMANDS[name])


def test_the_flags_of_the_bare_command_are_named() -> None:
    assert flags_of(typer.main.get_command(app)) <= flags_in(section("Faces"))


@pytest.mark.parametrize("name", SETTING_NAMES)
def test_every_setting_is_named(name: str) -> None:
    assert flag_of(name) in set().union(*GROUPS.values()) or f"`{display_name(name)}`" in section("Faces")


def test_the_table_of_exit_codes_is_that_of_the_errors_and_the_command_line() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    raised = {kind.exit_code for kind in classes if issubclass(kind, errors.ResnapError)}
    returned = {value for name, value in vars(failures).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code, _ in table(section("Faces"), "exit code")} == raised | returned


def test_every_reason_for_not_shipping_is_in_its_table() -> None:
    named = {code for cell, _ in table(section("Shipping"), "reason") for code in re.findall(r"`([a-z-]+)`", cell)}
    assert named == set(Reason) - STOCK_BROKER_ONLY


def test_every_hurdle_of_an_announcement_is_in_its_table() -> None:
    named = {code for cell, _ in table(section("Replay"), "hurdle") for code in re.findall(r"`([a-z-]+)`", cell)}
    assert named == set(StopReason)


def test_every_state_of_a_boundary_is_in_its_table() -> None:
    rows = table(section("What a boundary can be"), "state")
    named = {state for cell, *_ in rows for state in re.findall(r"`([a-z-]+)`", cell)}
    assert named == set(SnapshotState) | set(Verdict)


def test_every_outcome_of_an_installation_is_in_its_table() -> None:
    named = {code for cell, _ in table(section("Shipping"), "outcome") for code in re.findall(r"`([a-z-]+)`", cell)}
    assert named == set(Fate)


def test_every_extension_of_the_flat_layout_is_named() -> None:
    listed = re.search(r"extensions\s+`([a-z\s-]+)`", section("Shipping"))
    assert listed is not None
    assert set(listed[1].split()) == EXTENSIONS


def test_files_that_the_text_names_exist() -> None:
    built = ARCHITECTURE.replace(section(NOT_BUILT), "")
    named = set(re.findall(r"`((?:storage|replay|tiering|scheduler|tests|docs)/[\w/.*-]*)`", built))
    assert named
    assert [path for path in sorted(named) if not list(ROOT.glob(path.rstrip("/")))] == []


def test_the_table_of_folders_has_every_folder_and_no_other() -> None:
    packages = ("storage", "replay", "tiering", "scheduler")
    folders = {path.parent.relative_to(ROOT).as_posix() for name in packages for path in (ROOT / name).rglob("*.py")}
    assert set(re.findall(r"^\| `([a-z_/]+)/` \|", section("The house"), flags=re.MULTILINE)) == folders | set(packages)


@pytest.mark.parametrize(
    "name",
    [
        "docs/architecture.md",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "docs/guide.md",
        "docs/operations.md",
        "docs/performance.md",
        "docs/quota.md",
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


def test_nothing_says_to_install_by_name_what_is_another_projects() -> None:
    suffixes = {".md", ".py", ".service", ".toml", ".yaml", ".html"}
    texts = [
        path for folder in ("docs", "scheduler", "tiering", "replay", "storage") for path in (ROOT / folder).rglob("*")
    ]
    for path in [*texts, *ROOT.glob("*.md"), ROOT / "Dockerfile"]:
        if path.suffix in suffixes or path.name == "Dockerfile":
            text = path.read_text(encoding="utf-8")
            said = re.findall(r"pip3? (?:\S+ )*?install(?![^\n]*--no-index)[^\n]*[ '\"=]resnap\b(?!/)|resnap\[\w", text)
            assert said == [], f"{path}: the public index has another project's package under this name"
