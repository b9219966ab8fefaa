"""Fuzz one parser, guided by what of the code it reaches: ``python -m tests.fuzz NAME [libFuzzer's options]``.

Needs atheris, which is no dependency of the project: ``pip install atheris`` where it has a wheel. A directory among
the options is the corpus, which keeps what was found; ``-runs=1000000`` ends it.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["storage", "tiering"]):
    from tests.fuzz.parsers import PARSERS, try_one


def main() -> None:
    """Run until something else than the library's errors comes out, or all runs are done."""
    if len(sys.argv) < 2 or sys.argv[1] not in PARSERS:
        sys.exit(f"usage: python -m tests.fuzz {'|'.join(PARSERS)} [CORPUS] [-runs=N]")
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, lambda data: try_one(name, data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
