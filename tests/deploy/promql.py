"""Enough of PromQL to say which series and labels an expression speaks of, and to refuse what cannot be one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""\s+|(?P<text>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]+\])|(?P<word>[a-zA-Z_:$][\w:$]*)"""
    r"""|(?P<number>\d+(?:\.\d+)?)|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},])"""
)
FUNCTIONS: Final = {"changes", "histogram_quantile", "increase", "label_values", "rate", "time"}
AGGREGATIONS: Final = {"max", "min", "sum", "topk"}
OPERATORS: Final = {"and", "or", "unless"}
LISTS: Final = {"by", "ignoring", "on", "without"}


class Matcher(NamedTuple):
    label: str
    operator: str
    value: str

    def values(self) -> list[str]:
        """Return the values that it is for, as far as they can be listed."""
        return self.value.split("|") if self.operator in {"=~", "!~"} else [self.value]


@dataclass
class Expression:
    selectors: list[tuple[str, list[Matcher]]] = field(default_factory=list)
    lists: list[tuple[str, list[str]]] = field(default_factory=list)


def parse(text: str) -> Expression:
    """Return what ``text`` speaks of; ValueError if it is none of the PromQL that is known here."""
    reader = _Reader(_tokens(text))
    found = Expression()
    depth = 0
    while (token := reader.next()) is not None:
        kind, value = token
        depth += (value == "(") - (value == ")")
        if depth < 0:
            raise ValueError(f"a parenthesis too many: {text}")
        if kind == "word":
            _word(value, reader, found)
    if depth:
        raise ValueError(f"a parenthesis is missing: {text}")
    return found


def _word(word: str, reader: _Reader, found: Expression) -> None:
    following = reader.peek()
    if word in LISTS:
        found.lists.append((word, reader.names()))
    elif word in FUNCTIONS:
        if following != "(":
            raise ValueError(f"{word} is a function")
    elif word not in AGGREGATIONS | OPERATORS:
        if following == "(":
            raise ValueError(f"there is no function {word}")
        found.selectors.append((word, reader.matchers() if following == "{" else []))


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._at = tokens, 0

    def next(self) -> tuple[str, str] | None:
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else None

    def peek(self) -> str | None:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else None

    def expect(self, *wanted: str) -> str:
        token = self.next()
        if token is None or not {token[0], token[1]} & set(wanted):
            raise ValueError(f"expected {' or '.join(wanted)}, found {token}")
        return token[1]

    def names(self) -> list[str]:
        self.expect("(")
        found = [self.expect("word")]
        while self.expect(",", ")") == ",":
            found.append(self.expect("word"))
        return found

    def matchers(self) -> list[Matcher]:
        self.expect("{")
        found = []
        while True:
            label, operator = self.expect("word"), self.expect("=", "!=", "=~", "!~")
            found.append(Matcher(label, operator, self.expect("text")[1:-1]))
            if self.expect(",", "}") == "}":
                return found


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"no PromQL from here on: {text[at:]!r}")
        if match.lastgroup is not None:
            found.append((match.lastgroup, match[0]))
        at = match.end()
    return found
