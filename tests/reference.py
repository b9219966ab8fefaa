"""Makes ``docs/reference.md`` and ``docs/resnap.1`` from what the code declares: ``python -m tests.reference``.

So are the tables of Kafka's faults in ``docs/kafka-faults.md`` and ``docs/kafka-versions.md``, between two comments.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from resnap.replay.comparison import SnapshotVerdict
from resnap.scheduler.cli.commands import argument_text, load_command
from resnap.scheduler.cli.failures import EXIT_CODES
from resnap.scheduler.registry import COMMANDS, KINDS
from resnap.scheduler.settings.settings import DECLARED
from resnap.storage.kafka_release import Release
from resnap.tiering.installing.installation import Outcome
from resnap.tiering.judging import readiness
from resnap.tiering.judging.inventory import SnapshotState
from resnap.tiering.judging.known_faults import KNOWN_FAULTS, NEWEST_PATCH, Certainty, KnownFault
from resnap.tiering.judging.refusal import HINTS, Reason, SettingReason, UnblockedBy
from resnap.tiering.remote_log.announcement import StopAt, StopReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from enum import StrEnum

    from resnap.scheduler.settings.declaration import Declared

PAGE: Final = Path(__file__).parent.parent / "docs" / "reference.md"
MANUAL: Final = PAGE.with_name("resnap.1")
FAULTS: Final = PAGE.with_name("kafka-faults.md")
VERSIONS: Final = PAGE.with_name("kafka-versions.md")
MADE: Final = "<!-- made by `python -m tests.reference` -->\n\n"
MADE_END: Final = "<!-- until here -->\n"
HEAD: Final = """# Reference

Made from the declarations in the code by `python -m tests.reference`; a test compares. Do not edit it.
"""


def reference() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *commands(), *settings(), *exit_codes(), *codes(), *runs()])


def manual() -> str:
    """Return the manual page: what the commands are for, and the exit codes."""
    lines = [
        '.\\" Made from the declarations in the code by `python -m tests.reference`; a test compares. Do not edit it.',
        '.TH RESNAP 1 "" Resnap "User Commands"',
        ".SH NAME",
        "resnap \\- rebuild missing Kafka producer snapshots, and ship segments with them to tiered storage",
        ".SH SYNOPSIS",
        ".B resnap\n.I COMMAND\n[argument or flag ...]",
        ".SH DESCRIPTION",
        ".B resnap\n.I COMMAND\n.B \\-\\-help\nlists the arguments and flags of a command.",
        ".SH COMMANDS",
        *(
            f".TP\n.B {_roff(name)}\n{_roff(row.summary)}\n.nf\n.I {_roff(row.example)}\n.fi"
            for name, row in COMMANDS.items()
        ),
        ".SH EXIT STATUS",
        *(f".TP\n.B {code}\n{_roff(means)}" for code, means in EXIT_CODES.items()),
        ".SH SEE ALSO",
        "docs/reference.md, the settings: resnap config show",
    ]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Return text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{text}" if text.startswith(".") else text


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table, and an empty one."""
    heads = list(titles)
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def commands() -> Iterator[str]:
    """Yield what each command does, and what it is given; the flags of settings by name alone."""
    yield "## Commands\n"
    yield from table(("command", "does"), ((f"[`resnap {name}`](#resnap-{name.replace(' ', '-')})", row.summary)
                                           for name, row in COMMANDS.items()))  # fmt: skip
    for name, row in COMMANDS.items():
        command = load_command(name)
        yield f"### resnap {name}\n"
        yield f"{row.summary}\n"
        yield f"```sh\n{row.example}\n```\n"
        context = typer.Context(command, info_name=name)
        others = [one for one in command.params if one.name not in DECLARED]
        found = [(argument_text(one, context), one.get_help_record(context)) for one in others]
        records = [(name or record[0], record[1]) for name, record in found if record]
        if records:
            yield from table(("argument or flag", ""), ((f"`{given}`", says) for given, says in records))
        offered = [DECLARED[one.name] for one in command.params if one.name in DECLARED]
        offered.sort(key=lambda one: list(DECLARED).index(one.name))
        for title, some in groupby(offered, lambda one: one.group.title):
            yield f"- [{title}](#{title.lower().replace(' ', '-')}){which(title, list(some))}"
        yield ""


def which(title: str, offered: list[Declared]) -> str:
    """Return which settings of a group a command offers; nothing if it offers all."""
    all_there_are = [one for one in DECLARED.values() if one.group.title == title and one.flag]
    return "" if offered == all_there_are else f": {', '.join(f'`{one.flag}`' for one in offered)}"


def settings() -> Iterator[str]:
    """Yield each setting with its names in all places."""
    yield "## Settings\n"
    yield (
        "The first of these that gives a setting decides: the flag, the environment, the configuration file"
        " (`--config`, else\n`resnap.toml` in the working directory), the cluster's metadata log, the broker's"
        " `server.properties`, the default.\nA switch has a `--no-` form. In the file a setting may also be spelled"
        " with dots or underscores, and in tables. Settings\nwith a star may be set by a schedule or a request for"
        " its own runs. A running service keeps the value of those with a\ndagger until it is restarted.\n"
    )
    for title, some in groupby(DECLARED.values(), lambda one: one.group.title):
        yield f"### {title}\n"
        yield from table(("flag", "environment", "file", "default", ""), map(setting_row, some))


def setting_row(one: Declared) -> list[str]:
    """Return the cells of a setting."""
    flag = " ".join(filter(None, (one.flag, one.metavar))) if one.flag else ""
    variable = one.flag.removeprefix("--").replace("-", "_") or one.name
    keys = one.kafka or (one.key,)
    marks = " \\*" * one.setting.for_runs + " †" * one.at_start
    return [
        (f"`{flag}`" if flag else "") + marks,
        "" if one.name in {"schedules", "fleet"} else f"`RESNAP_{variable.upper()}`",
        ", ".join(f"`{key}`" for key in keys),
        f"`{one.default}`" if one.default else "",
        one.setting.description,
    ]


def exit_codes() -> Iterator[str]:
    """Yield the exit codes."""
    yield "## Exit codes\n"
    yield from table(("code", "means"), ((str(code), means) for code, means in EXIT_CODES.items()))


def codes() -> Iterator[str]:
    """Yield the codes that answers contain, with what they mean and what to do."""
    yield "## Codes in answers\n"
    kinds: tuple[tuple[str, type[StrEnum], dict[Any, str]], ...] = (
        ("State of a snapshot, by the directory", SnapshotState, {}),
        ("State of a snapshot, by a replay", SnapshotVerdict, {}),
        ("Why a segment is not shipped", Reason, dict(HINTS)),
        ("Whether tiering can be turned on for a partition, or a topic", readiness.Verdict, {}),
        ("What unblocks a partition", UnblockedBy, {}),
        ("Which setting keeps a broker from tiering", SettingReason, dict(HINTS)),
        ("Why a segment is not announced", StopReason, {one: StopAt(one, 0, "").hint for one in StopReason}),
        ("What became of a staged snapshot", Outcome, {}),
    )
    for title, kind, hints in kinds:
        yield f"### {title}\n"
        meanings = meanings_in(kind)
        if hints:
            yield from table(("code", "means", "what to do"),
                             ((f"`{one.value}`", meanings[one.name], hints.get(one, "")) for one in kind))  # fmt: skip
        else:
            yield from table(("code", "means"), ((f"`{one.value}`", meanings[one.name]) for one in kind))


def runs() -> Iterator[str]:
    """Yield the kinds of runs that schedules and the API know."""
    yield "## Runs of the service\n"
    yield from table(("kind", "does"), ((f"`{kind}`", COMMANDS[words].summary) for kind, words in KINDS.items()))
    yield "Metrics are listed in [operations.md](operations.md), requests of the API in [api.md](api.md)."


def with_faults(page: Path) -> str:
    """Return what ``page`` is to be: its part on Kafka's known faults is made."""
    before, _, rest = page.read_text(encoding="utf-8").partition(MADE)
    _, end, after = rest.partition(MADE_END)
    made = faults() if page == FAULTS else faults_by_release()
    return "".join([before, MADE, "\n".join(made), "\n", end, after])


def faults() -> Iterator[str]:
    """Yield the releases that were examined, and each fault with those that have it."""
    examined = [f"{major}.{minor}.{patch}" for (major, minor), patch in NEWEST_PATCH.items()]
    yield f"Releases that were examined last: {', '.join(examined[:-1])} and {examined[-1]}.\n"
    yield from table(
        ("fault", "code", "releases", "known as"),
        ((fault_link(one), f"`{one.name}`", one.releases_text, ", ".join(one.sources) or "-") for one in KNOWN_FAULTS),
    )


def faults_by_release() -> Iterator[str]:
    """Yield which faults the newest patch release of each line has."""
    releases = [Release(*line, patch) for line, patch in NEWEST_PATCH.items()]
    words = {Certainty.YES: "yes", Certainty.MAYBE: "expected", Certainty.NO: ""}
    yield from table(
        ("fault", *map(str, releases)),
        (
            (f"[`{fault.name}`]({FAULTS.name}{anchor(fault)})", *(words[fault.is_in(release)] for release in releases))
            for fault in KNOWN_FAULTS
        ),
    )


def anchor(fault: KnownFault) -> str:
    """Return the link to the section of a fault within its page."""
    return "#" + re.sub(r"[^\w -]", "", fault.title.casefold()).replace(" ", "-")


def fault_link(fault: KnownFault) -> str:
    """Return the title of a fault, as the link to its section."""
    return f"[{fault.title[:1].upper()}{fault.title[1:]}]({anchor(fault)})"


def meanings_in(kind: type[StrEnum]) -> dict[str, str]:
    """Return the text below each member of an enumeration; empty where there is none."""
    [body] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found = dict.fromkeys(kind.__members__, "")
    for above, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(above, ast.Assign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            [name] = above.targets
            assert isinstance(name, ast.Name)
            found[name.id] = " ".join(str(below.value.value).replace("``", "`").split())
    return found


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    MANUAL.write_text(manual(), encoding="utf-8")
    for one in (FAULTS, VERSIONS):
        one.write_text(with_faults(one), encoding="utf-8")
    sys.exit(0)
