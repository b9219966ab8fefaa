"""The command ``serve``, which runs the service: it starts, serves until it is asked to stop, and stops in order.

SIGTERM and SIGINT: no new runs are accepted, active ones stop at their next report, open requests are answered. A
second signal, or a timeout, ends the process at once, which does no harm: everything a run leaves at any instant is
safe. SIGHUP reads the configuration again.

systemd is notified that the service is ready, reloading, stopping or alive, with a status for people: by datagrams to
the socket in ``NOTIFY_SOCKET``; without that variable none are sent. A failed delivery is not a reason to stop: systemd
decides what to do.

The HTTP server is uvicorn, with limits on the time to send a request and on the number of connections. uvicorn limits
only the time between two requests: a connection without a complete first request may stay open for ever. A thousand of
those use up the process's file descriptors, which the active run needs, too.

Source: ``sd_notify(3)``, ``sd_watchdog_enabled(3)``; the protocol is declared stable there.
"""

import asyncio
import errno
import gc
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from resnap.scheduler.cli.failures import FAILED
from resnap.scheduler.cli.flags import ENGINE, MEMORY, READING, REPLAY, SERVE, SOURCE, STORE, UPLOAD, with_settings
from resnap.scheduler.cli.invocation import Invocation
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.service.services import Services, address_of, usable_settings
from resnap.scheduler.settings.environment import process_environment
from resnap.scheduler.settings.loading import state_directory
from resnap.scheduler.settings.settings import Settings
from resnap.scheduler.telemetry.logs import set_up
from resnap.scheduler.web.app import create_app
from resnap.storage.errors import ConfigurationError, ResnapError, UsageError
from resnap.storage.threads import end_pauses
from resnap.storage.version import resnap_version
from resnap.storage.words import some

if TYPE_CHECKING:
    from fastapi import FastAPI
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

SCANNED: Final = {"name": "scan", "run": "scan", "every": "15m"}
"""The schedule of a service that is given log dirs, and has no schedule of its own: at the start, and from then on."""
REQUEST_S: Final = 30.0
"""The longest time for a whole request, head and body; a body of the greatest length then takes 35 KB a second."""
MOST_CONNECTIONS: Final = 800
"""Open at once: all event streams that may be, and others; no more is left to callers of the files that may be open."""


class Connection(H11Protocol):
    """HTTP/1.1 to one client, which must send a request within ``REQUEST_S`` of connecting or of the last response.

    A response may take any time; an event stream stays open.
    """

    _waiting: asyncio.TimerHandle | None = None

    @property
    def waits_until_s(self) -> float | None:
        """When the connection times out, by the loop's clock; None while a response is being made."""
        return None if self._waiting is None else self._waiting.when()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base does
        """Accept a connection; at the limit, close the one that has waited longest, if any waits.

        Otherwise a client that holds connections without requests would lock out all others.
        """
        super().connection_made(transport)
        if len(self.connections) == MOST_CONNECTIONS:
            self.logger.warning(
                "%d connections are open; a further one closes the one that has waited longest", MOST_CONNECTIONS
            )
        others = {one.waits_until_s: one for one in self.connections if isinstance(one, Connection)}
        waiting = {until_s: connection for until_s, connection in others.items() if until_s is not None}
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            (waiting[min(waiting)] if waiting else self).let_go()

    def handle_events(self) -> None:
        """Handle received data; also called after a response, for data that came before it."""
        super().handle_events()
        asked: RequestResponseCycle | None = self.cycle
        if asked is None or asked.more_body or asked.response_complete:
            self._wait()
        else:
            self._wait_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the loop."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Start the timeout for a complete request; sending it byte by byte does not extend it."""
        if self._waiting is None:
            self._waiting = self.loop.call_later(REQUEST_S, self.transport.close)

    def let_go(self) -> None:
        """Close the connection at once."""
        self._wait_no_more()
        self.transport.abort()

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling and log, which the daemon does."""

    @classmethod
    def of(cls, app: "FastAPI", trusted_proxies: Sequence[str]) -> Self:
        """Return the server of ``app``; forwarded addresses are trusted from ``trusted_proxies`` only.

        By default uvicorn trusts every client on this machine, and any address could get into the audit log.
        """
        return cls(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                http=Connection,
                ws="none",
                proxy_headers=bool(trusted_proxies),
                forwarded_allow_ips=list(trusted_proxies),
                timeout_graceful_shutdown=5,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


MOST_PORT: Final = 65_535
TICK_S: Final = 5.0
CLOCK_SET_MS: Final = 30_000
"""A wall clock that goes so far away from the other one was set."""
FORGET_EVERY_S: Final = 3600.0
FILES: Final = 65_536
"""May be open at once, where the system lets the process have so many; by default it has 1,024 until it asks for more,
and connections that arrive all together are taken before any can be turned away."""
GONE_MS: Final = 60_000
"""A client that accepts no data for so long is disconnected; Linux itself retries for a quarter of an hour, and for
ever with one that is connected and does not read."""
SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread may keep the interpreter from others. A thread that answers lets go of it with each byte that is
sent, and a replay then keeps it for so long: with Python's own 5 ms, 150 streams got theirs in a second."""
SEND_TIMEOUT_S: Final = 1.0
"""systemd reads at once; if it does not, better that a message is lost than that the service waits."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")


def notify(address: str | None, *, wait_s: float = SEND_TIMEOUT_S, **variables: object) -> bool:
    """Send one datagram with these variables of ``sd_notify``; False if it was not sent.

    ``address`` is a path, or a name after ``@`` in the abstract namespace; None to send none. A line break in a value
    would begin another variable.
    """
    if not address or address[0] not in "/@":
        return False
    name = "\0" + address[1:] if address.startswith("@") else address
    lines = [f"{variable}={_CONTROL.sub(' ', str(value))}" for variable, value in variables.items()]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(wait_s)
            sender.sendto("\n".join(lines).encode(), name)
    except OSError:
        return False
    return True


class Daemon:
    """One service over one state directory."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._ended_in_time = True
        self._signals = 0
        self._reloading: asyncio.Task[None] | None = None
        variables = process_environment()
        self._notify = partial(notify, variables.get("NOTIFY_SOCKET"))
        watched_s = watchdog_interval_s(variables, os.getpid())
        self._tick_s = TICK_S if watched_s is None else min(TICK_S, watched_s)

    def run(self) -> None:
        """Serve until a signal; the process ends with 1 if the active run did not stop in time.

        Raises:
            ResnapError: the service cannot listen at the address.

        """
        _allow_files()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.freeze()
        with self._listening() as listener:
            asyncio.run(self._serve(listener))
        if not self._ended_in_time:
            # Python would wait for threads that are at work; what they leave at any instant is safe.
            self._services.observation.warn("ended without waiting any longer for the current run")
            os._exit(FAILED)

    def _listening(self) -> socket.socket:
        host, port = address_of(self._services.settings.listen)
        try:
            listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            # Accepted connections inherit it. The event loop sets it only on sockets that it makes itself. Without it,
            # the body of an answer waits until its head is acknowledged, for which the other side takes 40 ms.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)
            return listener  # noqa: TRY300
        except OSError as error:
            hint = f"name an address of this machine, such as 127.0.0.1:{port}"
            if error.errno == errno.EADDRINUSE:
                other = port + 1 if port < MOST_PORT else port - 1
                hint = f"another program listens there (`ss -ltnp` says which): name another port, such as {other}"
            raise ConfigurationError(
                f"--listen {self._services.settings.listen}: {os.strerror(error.errno or 0).lower()}", hint=hint
            ) from error

    async def _serve(self, listener: socket.socket) -> None:
        server = HttpServer.of(create_app(self._services, resnap_version()), self._services.settings.trusted_proxies)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, server, number)
        loop.add_signal_handler(signal.SIGHUP, self._begin_to_reload)
        self._services.start()
        self._services.observation.note("listening", address=f"http://{self._services.settings.listen}")
        self._notify(READY=1, STATUS=self._status())
        ticking = asyncio.create_task(self._tick())
        try:
            await server.serve(sockets=[listener])
        finally:
            ticking.cancel()
            await asyncio.wait([ticking])
            self._ended_in_time = await asyncio.to_thread(self._services.stop)

    def _end(self, server: HttpServer, number: int) -> None:
        self._signals += 1
        if self._signals > 1:
            os._exit(128 + number)  # as a shell describes it: 130 of SIGINT, 143 of SIGTERM
        self._notify(STOPPING=1, STATUS="waiting for the current run")
        self._services.is_ending = True
        self._services.worker.begin_to_stop()
        self._services.reads.close()
        end_pauses()  # of a run that waits for a store, which would not notice it otherwise
        server.should_exit = True

    def _begin_to_reload(self) -> None:
        self._reloading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        monotonic_s = self._services.clock.monotonic_s()
        self._notify(RELOADING=1, MONOTONIC_USEC=int(monotonic_s * 1_000_000))
        observation = self._services.observation
        try:
            waiting = await asyncio.to_thread(self._services.reads.run, self._services.reload)
        except ResnapError as error:
            observation.metrics.config_last_reload_success.set(False)
            observation.warn(f"the configuration was not changed: {error}")
        except Exception as error:  # noqa: BLE001 - systemd must hear that the reloading is over
            observation.metrics.config_last_reload_success.set(False)
            observation.bug(error)
        else:
            observation.metrics.config_last_reload_success.set(True)
            observation.note("the configuration was read again")
            if waiting:
                observation.warn(f"these settings take effect at the next start of the service: {', '.join(waiting)}")
        self._notify(READY=1, STATUS=self._status())

    def _status(self) -> str:
        """Return the text for ``systemctl status``."""
        worker = self._services.worker
        return f"runs at work: {worker.running}, waiting: {worker.waiting}"

    async def _tick(self) -> None:
        clock = self._services.clock
        drift_ms, forgot_s = clock.now_ms() - clock.monotonic_s() * 1000, clock.monotonic_s()
        was_kept = True
        while True:
            await asyncio.sleep(self._tick_s)
            if not self._services.is_ending:
                # If systemd reads slowly, a skipped message costs nothing, but waiting would stop the event loop.
                self._notify(wait_s=0, WATCHDOG=1, STATUS=self._status())
            now_ms = clock.now_ms() - clock.monotonic_s() * 1000
            try:
                if abs(now_ms - drift_ms) > CLOCK_SET_MS:
                    self._services.observation.warn(
                        "the machine's clock was set: the next runs of all schedules are calculated again"
                    )
                    self._services.schedules.clock_was_set()
                    drift_ms = now_ms
                await asyncio.to_thread(self._services.catch_up)
                if clock.monotonic_s() - forgot_s > FORGET_EVERY_S:
                    forgot_s = clock.monotonic_s()
                    await asyncio.to_thread(self._services.forget_old)
                was_kept = True
            except ResnapError as error:  # a full disk: the next tick tries again
                if was_kept:
                    self._services.observation.warn(f"the service's file could not be updated: {error}")
                was_kept = False
            except Exception as error:  # noqa: BLE001 - the watchdog and the upkeep must live on
                if was_kept:
                    self._services.observation.bug(error)
                was_kept = False


def _allow_files() -> None:
    """Raise the soft limit of open files to the hard limit, up to ``FILES``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, FILES)), hard))


def watchdog_interval_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Return how often to report that the service is alive: twice per systemd's timeout; None if it does not watch.

    Args:
        environment: ``WATCHDOG_USEC`` is the timeout, ``WATCHDOG_PID`` the watched process, if it is only one.
        pid: of this process.

    """
    usec, meant = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or (meant and meant != str(pid)):
        return None
    return int(usec) / 2_000_000


@with_settings(SERVE, SOURCE, REPLAY, ENGINE, READING, MEMORY, UPLOAD, STORE)
def serve(
    run: Invocation,
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="LOG_DIR", help="Log dirs to scan every 15 minutes; the default is log.dirs."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the configuration, as a start or SIGHUP would; start nothing.")
    ] = False,
) -> None:
    """Run the service: schedules, the HTTP API, and a page that says whether tiering can be turned on yet.

    Schedules are [[schedules]] tables of the configuration file. With LOG_DIR no file is needed: it is scanned at the
    start and every 15 minutes. All other settings are those of every run, unless a schedule or a request gives its own.
    """
    set_up(sys.stderr, run.settings.log_format, is_verbose=run.settings.verbose)
    flags = {**run.flags, **(_of_log_dirs(run.settings, places) if places else {})}
    configuration = Configuration(flags=flags)
    if check:
        settings = usable_settings(configuration)
        run.note(
            f"the configuration can be used: {some(len(settings.schedules), 'schedule')}, --listen {settings.listen}"
        )
        return
    services = Services(configuration, run.clock)
    run.say_first()
    Daemon(services).run()


def _of_log_dirs(settings: Settings, log_dirs: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a service for given log dirs, unless its file says otherwise."""
    for log_dir in log_dirs:
        with suppress(PermissionError):  # the scan reports missing permissions
            if not Path(log_dir).is_dir():
                raise UsageError(f"{log_dir}: no such directory", hint="give one of this broker's log.dirs")
    made: dict[str, Any] = {"log_dirs": [str(Path(log_dir).absolute()) for log_dir in log_dirs]}
    if not settings.schedules:
        made["schedules"] = [SCANNED]
    state = state_directory(settings, process_environment())
    if not settings.allow_destinations and state is not None:
        made["allow_destinations"] = [str(state / "snapshots")]
    return made
