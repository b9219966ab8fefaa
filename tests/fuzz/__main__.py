"""Fuzz one parser, guided by what of the code it reaches: ``python -m tests.fuzz NAME CORPUS [libFuzzer's options]``.

Needs atheris, which is not a dependency of the project: ``pip install atheris`` where it has a wheel. CORPUS is a
directory that gets good examples to begin with, and keeps what was found; ``-runs=1000000`` ends it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

from tests.fixture_sets import unpack

with atheris.instrument_imports(include=["storage", "tiering", "scheduler"]):
    from tests.fuzz.examples import examples
    from tests.fuzz.parsers import PARSERS, try_one


def main() -> None:
    """Run until something else than the library's errors comes out, or all runs are done."""
    if len(sys.argv) < 3 or sys.argv[1] not in PARSERS or sys.argv[2].startswith("-"):
        sys.exit(f"usage: python -m tests.fuzz {'|'.join(PARSERS)} CORPUS [-runs=N]")
    name, corpus = sys.argv.pop(1), Path(sys.argv[1])
    corpus.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        for number, body in enumerate(examples(name, unpack("kafka-2.7.2-then-3.9.1", Path(scratch)).data)):
            (corpus / f"example-{number}").write_bytes(body)
    atheris.Setup(sys.argv, lambda data: try_one(name, data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
