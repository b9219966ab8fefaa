"""The cache of compiled machine code: where it is stored, and how numba finds it there.

Compiling takes seconds, loading milliseconds, so compiled code is cached on disk: in ``NUMBA_CACHE_DIR``, else in
``__pycache__`` beside the source, else in this user's directory below the system's temporary one. The last is for
read-only installations and code that runs from a zip, as on Spark's executors. If nothing can be written, each process
compiles the code again, and works the same.

numba tracks the source of one function, not of those it calls, and its file names would let two processes with
different sources, processors or numba releases mix their files: one writes the index, the other the code it points to.
So everything that machine code depends on goes into a digest, and each digest has a directory of its own.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, Final

import llvmlite.binding  # type: ignore[import-untyped]
import numba
from numba.core import caching, config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCES: Final = (
    "resnap.replay.kernel.code_cache",
    "resnap.replay.kernel.compiling",
    "resnap.replay.kernel.machine",
    "resnap.replay.kernel.checksum",
    "resnap.replay.kernel.fold",
    "resnap.replay.kernel.hop",
    "resnap.replay.kernel.combine",
    "resnap.replay.kernel.records",
    "resnap.replay.kernel.summary",
    "resnap.storage.log.record",
    "resnap.storage.log.producer_snapshot",
    "resnap.storage.log.record_batch",
)
"""Modules whose code or constants end up in machine code."""


@cache
def cache_directory() -> Path | None:
    """Return the directory of the machine code of these sources; None if nothing can be written."""
    for base in _candidates():
        directory = base / f"resnap-{_digest()}"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError:
            continue
        return directory
    return None


def is_empty() -> bool:
    """Whether these sources have no cached machine code yet; making it takes seconds."""
    directory = cache_directory()
    try:
        return directory is None or not any(path.suffix == ".nbc" for path in directory.iterdir())
    except OSError:  # what cannot be listed is not loaded, either
        return True


def _candidates() -> Iterator[Path]:
    chosen = getattr(config, "CACHE_DIR", "")
    if chosen:
        yield Path(chosen)
        return
    yield Path(__file__).parent / "__pycache__"
    with suppress(FileNotFoundError):  # there is no temporary directory at all
        shared = Path(_system_temporary_directory()) / f"resnap-kernel-{os.geteuid()}"
        if is_ours(shared):
            yield shared


def _system_temporary_directory() -> str:
    """Return the system's temporary directory, even in a task: Spark sets ``tempfile`` to one of the application."""
    chosen, tempfile.tempdir = tempfile.tempdir, None
    try:
        return tempfile.gettempdir()
    finally:
        tempfile.tempdir = chosen


def is_ours(directory: Path) -> bool:
    """Make ``directory``, and return whether no other user can write there: code in it is executed."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError:
        return False
    others = stat.S_IWGRP | stat.S_IWOTH
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others


def _digest() -> str:
    processor = (config.CPU_NAME, config.CPU_FEATURES, llvmlite.binding.get_host_cpu_name(),  # type: ignore[attr-defined]
                 sorted(llvmlite.binding.get_host_cpu_features().items()))  # fmt: skip
    digest = hashlib.sha256(repr((numba.__version__, sys.implementation.cache_tag, processor)).encode())
    for name in SOURCES:
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            digest.update(spec.loader.get_data(str(spec.origin)))  # type: ignore[attr-defined] # of files and of zips
    return digest.hexdigest()[:16]


class _Locator(caching._CacheLocator):  # noqa: SLF001
    """Points numba to the chosen directory."""

    def __init__(self, function: Callable[..., Any], directory: Path) -> None:
        self._name = function.__name__
        self._directory = directory

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator | None:  # noqa: ARG003 - numba's
        directory = cache_directory()
        return None if directory is None else cls(py_func, directory)

    def get_cache_path(self) -> str:
        return str(self._directory)

    def get_source_stamp(self) -> str:
        return self._directory.name

    def get_disambiguator(self) -> str:
        return self._name


class _Files(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 - numba's


class CodeCache(caching.Cache):
    """A cache that never causes a failure: unreadable code is compiled again, and a failed write is ignored."""

    _impl_class: Any = _Files

    def load_overload(self, sig: Any, target_context: Any) -> Any:  # noqa: ANN401 - numba's own types
        """Return the cached code; None if there is none that can be used."""
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - whatever a file that was cut short makes of unpickling
            return None

    def save_overload(self, sig: Any, data: Any) -> None:  # noqa: ANN401 - numba's own types
        """Cache the code, if that is possible."""
        with suppress(OSError):
            try:
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]
            except (EOFError, ValueError, UnpicklingError):  # the index was cut short
                self.flush()  # type: ignore[no-untyped-call]
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]
