"""systemd notifications of the service: ready, reloading, stopping, alive, and its status.

Each message is a datagram to the socket in ``NOTIFY_SOCKET``; without that variable none is sent. A failed delivery is
not a reason to stop: systemd decides what to do.

Source: ``sd_notify(3)``, ``sd_watchdog_enabled(3)``; the protocol is declared stable there.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

SEND_TIMEOUT_S: Final = 1.0
"""systemd reads at once; if it does not, better that a message is lost than that the service waits."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True, slots=True)
class Notifier:
    """Sends messages to ``address``: a path, or a name after ``@`` in the abstract namespace; None to send none."""

    address: str | None

    def ready(self, status: str) -> bool:
        """Report that the service is up; also at the end of a reload."""
        return self._send("READY=1", _status(status))

    def reloading(self, monotonic_s: float) -> bool:
        """Report that the configuration is being read again, since ``monotonic_s`` of ``CLOCK_MONOTONIC``."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={int(monotonic_s * 1_000_000)}")

    def stopping(self, status: str) -> bool:
        """Report that the service is stopping."""
        return self._send("STOPPING=1", _status(status))

    def alive(self, status: str) -> bool:
        """Report to the watchdog that the service is not stuck, with the text for ``systemctl status``."""
        # If systemd reads slowly, a skipped message costs nothing, but waiting would stop the event loop.
        return self._send("WATCHDOG=1", _status(status), timeout_s=0)

    def _send(self, *assignments: str, timeout_s: float = SEND_TIMEOUT_S) -> bool:
        """Send one datagram; False if there is no address."""
        if not self.address or self.address[0] not in "/@":
            return False
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(timeout_s)
                sender.sendto("\n".join(assignments).encode(), name)
        except OSError:
            return False
        return True


def notifier_of(environment: Mapping[str, str]) -> Notifier:
    """Return the notifier for the systemd that started this process, if one did."""
    return Notifier(environment.get("NOTIFY_SOCKET"))


def watchdog_interval_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Return how often to call ``alive``: twice per systemd's timeout; None if it does not watch.

    Args:
        environment: ``WATCHDOG_USEC`` is the timeout, ``WATCHDOG_PID`` the watched process, if it is only one.
        pid: of this process.

    """
    usec, meant = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or (meant and meant != str(pid)):
        return None
    return int(usec) / 2_000_000


def _status(text: str) -> str:
    """Return the assignment of a status; a line break in it would begin another one."""
    return f"STATUS={_CONTROL.sub(' ', text)}"
