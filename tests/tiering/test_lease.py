from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from resnap.storage.errors import LockedError, StoreUnavailableError
from resnap.storage.processes import Process, at_work_on, this_process
from resnap.storage.stores.memory import MemoryObjectStore
from resnap.tiering.shipping.lease import LEASE_MS, LEASE_PREFIX, Holder, Lease, LeaseLostError, lease_on
from tests.tiering.stores import ActingStore, PassingStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resnap.storage.crc32c import Buffer
    from resnap.storage.stores.protocol import ObjectStore

PLACE = "cluster/payments/0"
ELSEWHERE = Process(machine="another", number=7, started_ticks=7)


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryObjectStore:
    return MemoryObjectStore(f"lease-{uuid4()}", clock_ms=clock)


def a_lease(store: ObjectStore, who: str = "broker-1", process: Process = ELSEWHERE) -> Lease:
    return Lease(store=store, name=PLACE, holder=Holder(run=str(uuid4()), who=who, since_ms=0, process=process))


def leases(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list(LEASE_PREFIX)]


def test_the_loser_learns_who_holds_the_lease_and_since_when(store: MemoryObjectStore) -> None:
    a_lease(store, "broker-1, process 4711").acquire()
    with pytest.raises(LockedError, match="broker-1, process 4711, since 1970-01-01T00:00:00Z") as raised:
        a_lease(store).acquire()
    assert raised.value.exit_code == 11
    assert "300 s" in str(raised.value.hint)


def test_a_lease_that_was_released_is_free_and_leaves_nothing(store: MemoryObjectStore) -> None:
    for _ in range(3):
        with lease_on(store, PLACE, verb="me", now_ms=0) as tenure:
            assert leases(store) == [], "it is taken when it is needed"
            tenure.hold()
            tenure.hold()
            assert len(leases(store)) == 1
        assert list(store.list()) == []


def test_other_places_are_free(store: MemoryObjectStore) -> None:
    with lease_on(store, PLACE, verb="me", now_ms=0) as one, lease_on(store, f"{PLACE}1", verb="me", now_ms=0) as other:
        one.hold()
        other.hold()
        assert len(leases(store)) == 2


def test_a_lease_from_the_future_blocks_no_longer_than_it_lasts_and_then_there_is_a_warning(
    store: MemoryObjectStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The store's clock was ahead, and was set right; a holder that is alive renews it by the right clock."""
    a_lease(store, "broker-1, process 4711").acquire()
    clock.now_ms -= LEASE_MS - 1
    with pytest.raises(LockedError):
        a_lease(store).acquire()
    assert not caplog.messages
    clock.now_ms -= 365 * 24 * 3_600_000
    a_lease(store, "broker-2").acquire()
    assert ["broker-1, process 4711" in one and "31536299 s in the future" in one for one in caplog.messages] == [True]


def test_a_lease_is_taken_over_once_its_time_is_up_by_the_clock_of_the_store(
    store: MemoryObjectStore, clock: Clock
) -> None:
    first = a_lease(store)
    first.acquire()
    clock.now_ms += LEASE_MS - 1
    with pytest.raises(LockedError):
        a_lease(store).acquire()
    clock.now_ms += 1
    second = a_lease(store, "broker-2")
    second.acquire()
    assert len(leases(store)) == 1, "what was taken over is gone"
    first.check()
    first.renew()
    with pytest.raises(LeaseLostError, match="broker-2"):
        first.check()
    second.renew()
    second.check()


def test_a_lease_that_is_renewed_is_kept(store: MemoryObjectStore, clock: Clock) -> None:
    lease = a_lease(store)
    lease.acquire()
    for _ in range(5):
        clock.now_ms += LEASE_MS - 1
        lease.renew()
        with pytest.raises(LockedError):
            a_lease(store).acquire()


def test_the_lease_of_a_dead_process_of_this_machine_is_taken_over_at_once(store: MemoryObjectStore) -> None:
    code = "from resnap.storage.processes import this_process as p; print(p().number, p().started_ticks)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    dead = Process(machine=this_process().machine, number=int(said[0]), started_ticks=int(said[1]))
    assert dead.is_dead
    assert not this_process().is_dead
    a_lease(store, process=dead).acquire()
    a_lease(store, process=this_process()).acquire()
    with pytest.raises(LockedError):
        a_lease(store).acquire()


@contextmanager
def a_process(code: str) -> Iterator[tuple[subprocess.Popen[str], Process]]:
    """Run ``code``, which prints when it is so far, and yield its process, which nobody waits for until the end."""
    says = "from resnap.storage.processes import this_process as p; print(p().started_ticks, flush=True)"
    with subprocess.Popen([sys.executable, "-c", f"{says}; {code}"], stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None
        ticks = int(popen.stdout.readline())
        try:
            yield popen, Process(machine=this_process().machine, number=popen.pid, started_ticks=ticks)
        finally:
            popen.kill()


def test_a_killed_process_that_nobody_has_waited_for_is_dead() -> None:
    with a_process("import time; time.sleep(300)") as (popen, process):
        assert not process.is_dead
        popen.kill()
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)  # as a zombie it stays
        assert process.is_dead


EXIT_OF_A_THREAD: Final = {"x86_64": 60, "aarch64": 93}


@pytest.mark.skipif(platform.machine() not in EXIT_OF_A_THREAD, reason="the number of the system call is not known")
def test_a_process_lives_while_a_thread_of_it_is_at_work_though_its_first_one_has_ended() -> None:
    end_first = f"ctypes.CDLL(None).syscall({EXIT_OF_A_THREAD[platform.machine()]}, 0)"
    work = "threading.Thread(target=time.sleep, args=(300,)).start()"
    with a_process(f"import ctypes, threading, time; {work}; {end_first}") as (popen, process):
        deadline = time.monotonic() + 60
        while (state := Path(f"/proc/{popen.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "Z":
            assert time.monotonic() < deadline, state
            time.sleep(0.01)
        assert not process.is_dead


def test_of_many_who_take_over_at_once_one_succeeds(store: MemoryObjectStore, clock: Clock) -> None:
    a_lease(store).acquire()
    clock.now_ms += LEASE_MS
    together = threading.Barrier(8)

    def take(_: int) -> bool:
        together.wait()
        try:
            a_lease(store).acquire()
        except LockedError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(take, range(8))).count(True) == 1


def test_a_lease_whose_answer_was_lost_is_ours(store: MemoryObjectStore) -> None:
    class AskedTwice(PassingStore):
        """As a client does whose first answer was lost."""

        def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
            self.inner.put(key, body, if_absent=if_absent)
            self.inner.put(key, body, if_absent=if_absent)

    a_lease(AskedTwice(store)).acquire()
    assert len(leases(store)) == 1


def lease_body(**changes: object) -> bytes:
    process = {"machine": "another", "number": 7, "started_ticks": 7}
    return json.dumps({"run": "r", "who": "w", "since_ms": 1, "process": process} | changes).encode()


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"not json", b"[]", b"[" * 5_000, b'{"run": 1}', lease_body(process=1), lease_body(who=None)),
        *(lease_body(since_ms=since_ms) for since_ms in ("1", 1.5, -1, 10**30)),
        *(lease_body(process={"machine": machine, "number": 7, "started_ticks": "7"}) for machine in ("another", 7)),
    ],
)
def test_a_lease_that_cannot_be_read_is_held_until_its_time_is_up(
    store: MemoryObjectStore, clock: Clock, body: bytes
) -> None:
    store.put(f"{LEASE_PREFIX}/{PLACE}/0000000001", body)
    with pytest.raises(LockedError):
        a_lease(store).acquire()
    clock.now_ms += LEASE_MS
    a_lease(store).acquire()


def test_a_store_in_trouble_ends_no_run_by_its_lease(store: MemoryObjectStore) -> None:
    tried = threading.Event()

    class Failing(PassingStore):
        def list(self, prefix: str = "") -> object:  # type: ignore[override]
            if leases(self.inner):
                tried.set()
                raise StoreUnavailableError("busy")
            return self.inner.list(prefix)

    lease = a_lease(store)
    lease.acquire()
    lease.store = Failing(store)
    with pytest.raises(StoreUnavailableError):
        lease.renew()
    assert tried.is_set()
    lease.check()


@pytest.mark.parametrize("from_others", [False, True])
def test_an_interrupt_while_the_lease_is_taken_lets_go_of_it(store: MemoryObjectStore, from_others: bool) -> None:
    """What another run holds meanwhile stays as it is."""

    def interrupt(_inner: ObjectStore, _key: str) -> None:
        raise KeyboardInterrupt

    if from_others:
        a_lease(store).acquire()
        before = leases(store)
    interrupted = ActingStore(store, interrupt)
    with pytest.raises(KeyboardInterrupt), lease_on(interrupted, PLACE, verb="me", now_ms=0) as tenure:
        tenure.hold()
    assert leases(store) == (before if from_others else [])


@pytest.mark.parametrize("down_from", ["the creation on", "the release on"])
def test_a_release_that_a_store_missed_while_down_keeps_no_later_run_of_the_process_out(
    store: MemoryObjectStore, down_from: str
) -> None:
    class Down(PassingStore):
        is_down = False

        def put(self, key: str, body: Buffer, *, if_absent: bool = False) -> None:
            super().put(key, body, if_absent=if_absent)
            self.is_down = down_from == "the creation on"

        def get(self, key: str) -> bytes:
            if self.is_down:
                raise StoreUnavailableError("down")
            return super().get(key)

        def delete(self, key: str, *, etag: str | None = None) -> None:  # noqa: ARG002
            raise StoreUnavailableError(f"{key}: down")

    with suppress(StoreUnavailableError), lease_on(Down(store), PLACE, verb="1", now_ms=0) as first:
        first.hold()
    assert len(leases(store)) == 1
    with lease_on(store, PLACE, verb="2", now_ms=0) as second:
        second.hold()
        with pytest.raises(LockedError, match=r"there: .*, process [0-9]+ \(2\), since"):
            a_lease(store).acquire()
    assert leases(store) == []


def test_a_log_dir_has_one_run_at_a_time_and_the_loser_learns_which(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from resnap.storage.processes import at_work_on\n"
        "with at_work_on(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    before = tmp_path.stat()
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=rf"process {other.pid}, started at 2"), at_work_on(tmp_path):
            pytest.fail("taken twice")
        other.communicate()
    with ExitStack() as held:
        held.enter_context(at_work_on(tmp_path))
        held.enter_context(at_work_on(tmp_path.parent))
    assert list(tmp_path.iterdir()) == []
    assert tmp_path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_another_users_lock_on_a_directory_keeps_no_run_out() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        locked, wrote = os.pipe()
        other = os.fork()
        if not other:
            os.setuid(65534)
            fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)
            os.write(wrote, b"1")
            signal.pause()
        try:
            assert os.read(locked, 1) == b"1"
            with at_work_on(directory):
                pass
        finally:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)
            os.close(locked)
            os.close(wrote)


def test_where_no_thread_can_keep_the_lease_it_is_let_go_of(
    store: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with lease_on(store, PLACE, verb="me", now_ms=0) as tenure, pytest.raises(RuntimeError, match="new thread"):
        tenure.hold()
    assert leases(store) == []


@pytest.mark.parametrize("renews", [False, True])
def test_a_holder_knows_by_its_own_clock_that_its_lease_has_run_out(
    store: MemoryObjectStore, clock: Clock, renews: bool
) -> None:
    """Stopped or suspended, a holder sees no other: a lease that ran out is never taken back by a late renewal."""
    own = Clock()
    lease = a_lease(store)
    lease.clock_ms = own
    lease.acquire()
    own.now_ms += LEASE_MS * 9 // 10 - 1
    lease.check()
    own.now_ms += 1
    clock.now_ms += LEASE_MS
    other = a_lease(store, "broker-2")
    other.acquire()
    other.release()
    if renews:
        lease.renew()
    with pytest.raises(LeaseLostError, match="could not renew its lease for 270 s"):
        lease.check()
    third = a_lease(store, "broker-3")
    third.acquire()
    lease.release()
    assert len(leases(store)) == 1, "it is another's by now, under the same name"


def test_a_renewal_counts_from_when_it_was_begun(store: MemoryObjectStore) -> None:
    own = Clock()
    slow = ActingStore(store, lambda _store, _key: setattr(own, "now_ms", own.now_ms + LEASE_MS // 2))
    lease = a_lease(slow)
    lease.clock_ms = own
    lease.acquire()
    lease.renew()
    lease.check()
    own.now_ms += LEASE_MS * 4 // 10
    with pytest.raises(LeaseLostError):
        lease.check()


def test_a_live_process_that_proc_hides_is_not_taken_for_dead(
    store: MemoryObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``hidepid=2`` and ``ProtectProc=invisible`` do with processes of other users."""
    code = (
        "from resnap.storage.processes import this_process as p; "
        "print(p().number, p().started_ticks, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        said = other.stdout.readline().split()
        holder = Process(machine=this_process().machine, number=int(said[0]), started_ticks=int(said[1]))
        for name in ("sys", "self"):
            (tmp_path / name).symlink_to(f"/proc/{name}" if name == "sys" else f"/proc/{os.getpid()}")
        monkeypatch.setattr("resnap.storage.processes._PROC", tmp_path)
        a_lease(store, process=holder).acquire()
        assert not holder.is_dead
        with pytest.raises(LockedError):
            a_lease(store).acquire()
        other.communicate(b"\n")
    assert holder.is_dead
    a_lease(store).acquire()


@pytest.mark.parametrize("number", [0, -1, 1 << 80])
def test_an_unused_process_id_is_not_a_living_process(number: int) -> None:
    assert Process(machine=this_process().machine, number=number, started_ticks=7).is_dead
