"""A Dockerfile as stages of instructions, and what a linter would say of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

KNOWN: Final = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "STOPSIGNAL", "USER",
    "VOLUME", "WORKDIR",
}  # fmt: skip
"""ADD fetches and unpacks unasked, MAINTAINER is no more, and SHELL and ONBUILD are not used here."""
ONCE: Final = {"CMD", "ENTRYPOINT", "HEALTHCHECK", "STOPSIGNAL"}
"""Of several in a stage only the last counts."""


@dataclass(frozen=True)
class Stage:
    instructions: list[tuple[str, str]]

    def all(self, word: str) -> list[str]:
        return [rest for one, rest in self.instructions if one == word]

    def one(self, word: str) -> str:
        (found,) = self.all(word)
        return found

    def at(self, word: str) -> int:
        return [one for one, _ in self.instructions].index(word)

    def health_check(self) -> list[str]:
        command: list[str] = json.loads(self.one("HEALTHCHECK").partition("CMD ")[2])
        return command


@dataclass(frozen=True)
class Dockerfile:
    instructions: list[tuple[str, str]]

    @classmethod
    def read(cls, path: Path) -> Dockerfile:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
        joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
        words = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
        return cls([(word, rest.strip()) for word, _, rest in words])

    def stages(self) -> list[Stage]:
        found: list[Stage] = []
        for word, rest in self.instructions:
            if word == "FROM":
                found.append(Stage([]))
            if found:
                found[-1].instructions.append((word, rest))
        return found

    def copied(self) -> list[str]:
        """Return what is copied from the build's context."""
        copies = [rest.split() for word, rest in self.instructions if word == "COPY" and not rest.startswith("--from")]
        return [name for words in copies for name in words[:-1]]

    def problems(self) -> list[str]:
        return [*self._of_instructions(), *self._of_stages(), *self._of_commands()]

    def _of_instructions(self) -> list[str]:
        found = [f"{word} is not known" for word, _ in self.instructions if word not in KNOWN]
        before = [word for word, _ in self.instructions[: [word for word, _ in self.instructions].index("FROM")]]
        found += [f"{word} before FROM" for word in before if word != "ARG"]
        secrets = re.compile(r"(?i)password|secret|token|access_key")
        return found + [
            f"a secret in {word}" for word, rest in self.instructions if word in {"ARG", "ENV"} and secrets.search(rest)
        ]

    def _of_stages(self) -> list[str]:
        names = [rest.split()[-1] for word, rest in self.instructions if word == "FROM" and " AS " in rest]
        found = []
        for stage in self.stages():
            image = stage.one("FROM").split()[0]
            if image not in names and (":" not in image or image.endswith(":latest")):
                found.append(f"{image} has no version")
            found += [f"{word} twice" for word in ONCE if len(stage.all(word)) > 1]
            sources = [rest.partition("--from=")[2].split()[0] for rest in stage.all("COPY") if "--from=" in rest]
            found += [f"there is no stage {source}" for source in sources if source not in names]
            found += [f"{path} is not absolute" for path in stage.all("WORKDIR") if not path.startswith("/")]
        return found

    def _of_commands(self) -> list[str]:
        found = []
        for word, rest in self.instructions:
            if word in {"CMD", "ENTRYPOINT"} and not rest.startswith("["):
                found.append(f"{word} goes through a shell")
            if word == "RUN" and "sudo" in rest:
                found.append("sudo")
            steps = re.split(r"&&|;", rest) if word == "RUN" else []
            unpacking = [step for step in steps if re.search(r"\bpip\b.* (?:install|wheel) ", step)]
            found += ["pip leaves its cache in the image" for step in unpacking if "--no-cache-dir" not in step]
        return found
