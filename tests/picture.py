"""Makes ``docs/check.svg``, the picture of the README, from what `resnap check` prints: ``python -m tests.picture``."""

from __future__ import annotations

import sys
import tempfile
from contextlib import redirect_stdout
from html import escape
from io import StringIO
from pathlib import Path
from typing import Final

from resnap.scheduler.cli import run
from tests.fixture_sets import unpack

PICTURE: Final = Path(__file__).parent.parent / "docs" / "check.svg"
LOG_DIR: Final = "demo/kafka-2.7.2/data"
_WIDTH, _ROW, _LEFT = 8.43, 20, 20
_TONES: Final = {"ready": "#1a7f37", "blocked": "#cf222e"}


def printed() -> list[str]:
    """Return the lines of the table that the command prints for the log of the README, and the answer."""
    with tempfile.TemporaryDirectory() as directory, redirect_stdout(StringIO()) as out:
        data = str(unpack("kafka-2.7.2", Path(directory)).data)
        run(["check", data])
    table, _, rest = out.getvalue().replace(data, LOG_DIR).partition("\n\n")
    closing = rest[rest.index("1 of 5 topics") :].splitlines()
    return [*table.splitlines(), "", *(line for line in closing if not line.startswith("Not checked"))]


def picture(lines: list[str]) -> str:
    """Return a terminal with the command and these lines as SVG."""
    shown = [f"$ resnap check {LOG_DIR}", *lines]
    width = round(max(map(len, shown)) * _WIDTH) + 2 * _LEFT
    height = (len(shown) + 2) * _ROW + 10
    text = "\n".join(
        f'<text x="{_LEFT}" y="{50 + number * _ROW}" xml:space="preserve">{_coloured(line)}</text>'
        for number, line in enumerate(shown)
    )
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title" {font}>
<title id="title">resnap check says for each topic whether tiering can be turned on, and what blocks it</title>
<rect width="100%" height="100%" rx="8" fill="#f6f8fa" stroke="#d0d7de"/>
<g fill="#8c959f"><circle cx="22" cy="18" r="5"/><circle cx="40" cy="18" r="5"/><circle cx="58" cy="18" r="5"/></g>
<g fill="#1f2328">
{text}
</g>
</svg>
"""


def _coloured(line: str) -> str:
    shown = escape(line)
    for word, colour in _TONES.items():
        shown = shown.replace(f" {word} ", f' <tspan fill="{colour}" font-weight="bold">{word}</tspan> ')
    return shown


if __name__ == "__main__":
    PICTURE.write_text(picture(printed()), encoding="utf-8")
    sys.exit(0)
