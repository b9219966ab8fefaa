"""What the processes that a test started have said: shown where the test fails, since its assertions cut it off."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_PROCESSES: Final = 6
_MOST_CHARACTERS: Final = 6_000
_said: list[tuple[str, object, object]] = []
"""Command and exit code, standard output and standard error of each that ended in the test that runs."""


def listen_to_processes() -> None:
    """Keep what each process says to ``subprocess.run`` and ``Popen.communicate`` from now on."""
    communicate = subprocess.Popen.communicate

    def kept(self: subprocess.Popen[Any], *arguments: Any, **named: Any) -> tuple[Any, Any]:
        try:
            out, err = communicate(self, *arguments, **named)
        except subprocess.TimeoutExpired as late:
            _said.append((f"{_words(self.args)}: not over in {late.timeout} s", late.stdout, late.stderr))
            raise
        _said.append((f"{_words(self.args)}: {self.returncode}", out, err))
        return out, err

    subprocess.Popen.communicate = kept  # type: ignore[method-assign]


def forget_processes() -> None:
    """Forget what was said: another test begins."""
    _said.clear()


def said_by_processes() -> Iterator[tuple[str, str]]:
    """Yield title and text of each output that is not empty, the oldest first."""
    for title, *outputs in _said[-_MOST_PROCESSES:]:
        for name, output in zip(("stdout", "stderr"), outputs, strict=True):
            text = output.decode(errors="replace") if isinstance(output, bytes) else str(output or "")
            if text.strip():
                yield f"{name} of {title}", text[-_MOST_CHARACTERS:]


def _words(command: Any) -> str:
    words = [command] if isinstance(command, (str, bytes)) else command
    return shlex.join(map(str, words))[:200]
