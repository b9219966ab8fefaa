"""Machine code is kept where it may be, made where it is not, and done without where it cannot be made."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnap.replay.kernel import code_cache
from resnap.replay.kernel.code_cache import is_empty, is_ours
from tests.builders import a_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parent.parent.parent
FOLD = """
from resnap.replay.kernel import fold
from resnap.replay.kernel.code_cache import cache_directory
from resnap.replay.scan.producer_fold import ProducerFold
assert len(ProducerFold(1)) == 0
print(cache_directory(), sum(fold.enter_rows.stats.cache_hits.values()))
"""
IN_A_TASK = "import tempfile; tempfile.tempdir = '/dev/null'\n"
"""What a task on an executor does first: it takes a directory of its application for the files that it makes."""
SCAN = """
import sys
from resnap.replay.rebuild import scan_part
from resnap.replay.scan import split_scan
from resnap.replay.scan.header_scan import SegmentRange
from resnap.replay.scan.splits import Reading
from resnap.replay.scan.splits import Split
assert "numba" not in sys.modules or sys.modules["numba"] is None
whole = SegmentRange(locator=sys.argv[1], base_offset=0, next_base_offset=None)
found = scan_part(Split(segment_index=0, part=0, range=whole, size_bytes=0), 1_100, Reading())
print(found.error, len(found.pieces[0].rows), "resnap.replay.kernel.hop" in sys.modules, split_scan.why_no_kernel())
"""


def run(program: str, *arguments: str, path: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA")}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True, cwd=os.sep,
        env={**kept, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
    ).stdout.strip()  # fmt: skip


def a_zip(folder: Path, *, more: str = "") -> Path:
    """Make a zip of what a scan needs, with a few more bytes in one of the sources."""
    archive = folder / "shipped.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(ROOT / "resnap" / "__init__.py", "resnap/__init__.py")
        for package in ("replay", "storage"):
            for module in (ROOT / package).rglob("*.py"):
                source = module.read_text() + (more if module.name == "checksum.py" else "")
                file.writestr(f"resnap/{module.relative_to(ROOT).as_posix()}", source)
    return archive


def test_what_one_process_compiled_the_next_one_loads_from_the_directory_set_for_numba(tmp_path: Path) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, again = (run(FOLD, environment=environment) for _ in range(2))
    assert Path(first.split()[0]).parent == tmp_path
    assert [first.split()[1], again.split()[1]] == ["0", "1"]


@pytest.mark.slow
def test_out_of_a_zip_without_a_home_code_is_kept_below_the_temporary_directory(tmp_path: Path) -> None:
    environment = {"HOME": "/nonexistent", "TMPDIR": str(tmp_path)}
    archive = a_zip(tmp_path)
    first, again = (run(program, path=archive, environment=environment) for program in (FOLD, IN_A_TASK + FOLD))
    assert Path(first.split()[0]).parent == tmp_path / f"resnap-kernel-{os.geteuid()}"
    assert [first.split()[1], again.split()[1]] == ["0", "1"]


@pytest.mark.slow
def test_where_nothing_can_be_written_each_process_compiles_for_itself() -> None:
    environment = {"NUMBA_CACHE_DIR": "/dev/null/nowhere"}
    assert [run(FOLD, environment=environment) for _ in range(2)] == ["None 0", "None 0"]


@pytest.mark.slow
def test_code_that_was_cut_short_is_compiled_again(tmp_path: Path) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    run(FOLD, environment=environment)
    for kept in (*tmp_path.rglob("*.nbc"), *tmp_path.rglob("*.nbi")):
        kept.write_bytes(kept.read_bytes()[:100])
    assert run(FOLD, environment=environment).endswith(" 0")
    assert run(FOLD, environment=environment).endswith(" 1")


@pytest.mark.slow
def test_processes_that_compile_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
    running = [
        subprocess.Popen([sys.executable, "-c", FOLD], env=environment, stdout=subprocess.DEVNULL) for _ in range(3)
    ]
    assert [one.wait() for one in running] == [0, 0, 0]
    assert run(FOLD, environment={"NUMBA_CACHE_DIR": str(tmp_path)}).endswith(" 1")


@pytest.mark.slow
def test_other_sources_have_another_place(tmp_path: Path) -> None:
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    places = [run(FOLD, path=a_zip(tmp_path, more=more), environment=environment).split()[0] for more in ("", "\n")]
    assert places[0] != places[1]


def test_other_processors_and_releases_have_another_place(tmp_path: Path) -> None:
    program = "from resnap.replay.kernel.code_cache import cache_directory\nprint(cache_directory())"
    other_release = f"import numba\nnumba.__version__ = '0.1'\n{program}"
    generic, lesser = {"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse4.2"}
    ran = [(program, {}), (other_release, {}), (program, generic), (program, lesser)]
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert len({run(code, environment={**environment, **more}) for code, more in ran}) == len(ran)


def test_a_directory_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    made, open_to_all, link = tmp_path / "made", tmp_path / "open", tmp_path / "link"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(made)
    assert is_ours(made)
    assert is_ours(made)
    assert made.stat().st_mode & 0o777 == 0o700
    assert not is_ours(open_to_all)
    assert not is_ours(link)
    assert not is_ours(tmp_path / "missing" / "below")


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(a_batch() + a_batch(offset=1, producer_id=9))
    return path


def test_numba_is_loaded_by_the_first_scan_and_not_before(segment: Path) -> None:
    assert run(SCAN, str(segment)) == "None 2 True None"


def test_without_numba_the_plain_path_does_all_and_says_why(segment: Path) -> None:
    blocked = 'import sys; sys.modules["numba"] = None\n' + SCAN
    found = run(blocked, str(segment))
    assert found.startswith("None 2 False ModuleNotFoundError: ")
    assert "numba" in found


@pytest.mark.slow
def test_without_numba_python_runs_the_same_fold_and_it_equals_the_specification() -> None:
    program = (
        "import sys; sys.modules['numba'] = None\n"
        "import pytest\n"
        "sys.exit(pytest.main(['-q', '-n0', '-pno:cacheprovider', 'tests/replay/test_partial_state.py',\n"
        "    'tests/replay/test_boundary_state.py', 'tests/replay/test_record_rows.py',\n"
        "    '-k', 'any_parts or beyond_doubt or as_python_does']))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 passed" in ran.stdout


def test_the_command_line_starts_without_numba() -> None:
    assert run("import sys, resnap.scheduler.cli; print('numba' in sys.modules)") == "False"


def test_machine_code_that_cannot_be_listed_is_yet_to_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        code_cache, "cache_directory", lambda: tmp_path / ("a" * 256)
    )  # an error for every user, also for root
    assert is_empty()
