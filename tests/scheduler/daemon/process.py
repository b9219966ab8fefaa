"""The real ``resnap serve`` as a process of its own, controlled by signals and requests alone."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, Final

import httpx

from resnap.scheduler.state.database import DATABASE_FILE

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator

PATIENCE_S: Final = 120
"""For what takes a second on a machine that does nothing else."""
PROJECT: Final = Path(__file__).parents[3]
CONFIGURATION: Final = """
engine = "local"
listen = "127.0.0.1:0"
log.dirs = "{log_dir}"
state-dir = "{state}"
allow-destinations = ["{directory}/out"]
allow-sources = ["{directory}/more"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A service at work."""

    popen: subprocess.Popen[str]
    notices: socket.socket
    log: Path
    """A file: a pipe without a reader is full after an hour, and a process that logs then waits for ever."""
    directory: Path

    def notice(self) -> str:
        """Return the next notice that systemd would get."""
        return self.notices.recv(4096).decode()

    def wait_for_notice(self, word: str) -> None:
        """Wait until systemd is notified of ``word``."""
        while word not in self.notice():
            pass

    def client(self) -> httpx.Client:
        """Return a client with a connection for each request: one that is kept is closed at any time."""
        limits, address = httpx.Limits(max_keepalive_connections=0), f"http://127.0.0.1:{_port_of(self.popen.pid)}"
        return httpx.Client(base_url=address, timeout=PATIENCE_S, limits=limits)

    def send_signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Return the exit code and what was logged, once it has ended."""
        return self.popen.wait(PATIENCE_S), self.log.read_text(encoding="utf-8")


@contextmanager
def serving(directory: Path, *, variables: dict[str, str] | None = None) -> Iterator[Process]:
    """Run the service with the ``resnap.toml`` of ``directory``; it is ready when the context begins."""
    # Elsewhere, since the path of a socket may have 107 bytes.
    with TemporaryDirectory() as place, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        address = Path(place, "notify")
        notices.bind(str(address))
        notices.settimeout(PATIENCE_S)
        log = Path(place, "log")
        with log.open("w", encoding="utf-8") as told:
            popen = started(directory, told=told, NOTIFY_SOCKET=str(address), **(variables or {}))
        try:
            process = Process(popen=popen, notices=notices, log=log, directory=directory)
            process.wait_for_notice("READY=1")
            yield process
        except BaseException as error:
            error.add_note(f"the service said: {log.read_text(encoding='utf-8')[-6_000:]}")
            raise
        finally:
            popen.kill()
            popen.wait()


def started(
    directory: Path, *arguments: str, told: IO[str] | int = subprocess.PIPE, **variables: str
) -> subprocess.Popen[str]:
    own = {"PATH": os.environ["PATH"], "HOME": str(directory), "PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        [sys.executable, "-m", "resnap", "serve", *arguments], cwd=directory, env=own | variables,
        stdout=subprocess.DEVNULL, stderr=told, text=True,
    )  # fmt: skip


def configure(directory: Path, log_dir: Path, more: str = "", *, state: Path | None = None) -> None:
    """Write the configuration of a service over ``log_dir``; ``more`` may begin tables."""
    own = CONFIGURATION.format(directory=directory, log_dir=log_dir, state=state or directory / "state")
    (directory / "resnap.toml").write_text(own + more)


def states(directory: Path) -> dict[str, str]:
    """Return the state of every run, as the file has it, even while another process has it open."""
    with closing(sqlite3.connect(f"file:{directory}/state/{DATABASE_FILE}?mode=ro", uri=True, timeout=10)) as found:
        return dict(found.execute("SELECT id, state FROM runs"))


def eventually(look: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """Return what ``look`` gives once it is as wanted."""
    ends_s = time.monotonic() + PATIENCE_S
    while not wanted(seen := look()):
        assert time.monotonic() < ends_s, seen
        time.sleep(0.1)
    return seen


def _port_of(process: int) -> int:
    """Return the port at which a process listens, as the kernel has it."""
    sockets = set[str]()
    for link in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile: the service is at work
            sockets.add(str(link.readlink()))
    for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            return int(fields[1].rpartition(":")[2], 16)
    raise AssertionError("it does not listen")
