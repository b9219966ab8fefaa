"""Completion in three shells: the installed script, run by the shell itself, and what the program returns to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.cases import mostly_slow

ROOT: Final = Path(__file__).parent.parent.parent.parent
SHELLS: Final = ("bash", "zsh", "fish")
ASKS: Final = {
    "bash": "COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); _resnap_completion resnap;"
    ' printf "%s\\n" "${{COMPREPLY[@]}}"',
    # What zsh's own completion would be given: `_arguments` and `compdef` work within an editor only.
    "zsh": "words=({words}); CURRENT=${{#words}}; _resnap_completion",
    "fish": "complete --do-complete '{words}'",
}
BEFORE: Final = {
    "bash": "",
    "zsh": 'compdef() {{ : }}; _arguments() {{ print -r -- "$@" }}; _describe() {{ print -r -- "$@" }}\n',
    "fish": "",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH on which the command is found by its name, as after an installation."""
    program = tmp_path / "bin" / "resnap"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m resnap "$@"\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}


def answer(environment: dict[str, str], **variables: str) -> str:
    done = subprocess.run(["resnap"], env={**environment, **variables}, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(("typed", "is_something"), [("resnap sc", True), ("resnap zz", False)])
def test_the_exit_code_says_to_fish_whether_there_is_a_completion(
    environment: dict[str, str], typed: str, is_something: bool
) -> None:
    asking = {"_RESNAP_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "is-args"}
    told = subprocess.run(["resnap"], env={**environment, **asking, "_TYPER_COMPLETE_ARGS": typed}, check=False)
    assert (told.returncode == 0) is is_something


def asked(shell: str, words: str, environment: dict[str, str]) -> str:
    """Return what the program answers where a shell's script asks it."""
    count = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    typed = {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return answer(environment, _RESNAP_COMPLETE=f"complete_{shell}", **count, **typed)


@pytest.mark.parametrize("shell", mostly_slow(SHELLS, "bash"))
def test_commands_and_flags_are_completed_in_each_shell(shell: str, environment: dict[str, str]) -> None:
    commands = asked(shell, "resnap sc", environment)
    assert "scan" in commands
    assert "tier" not in commands
    assert "--exit-code" in asked(shell, "resnap scan --exit", environment)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_completes_in_it(shell: str, environment: dict[str, str], tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not on this machine")
    script = tmp_path / "completion"
    script.write_text(BEFORE[shell].format() + answer(environment, _RESNAP_COMPLETE=f"source_{shell}"))
    for words, expected, unexpected in (("resnap sc", "scan", "tier"), ("resnap controller im", "image", "audit")):
        done = subprocess.run(
            [program, "-c", f"source {script}; {ASKS[shell].format(words=words)}"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.stderr == ""
        assert expected in done.stdout
        assert unexpected not in done.stdout
