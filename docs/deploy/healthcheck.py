"""The health check of the image: ends with 0 if the process answers /livez where it listens, or is not the service.

`healthcheck.py [PROCESS]`; the process of a container is 1. Where `resnap serve` listens is seen in /proc, so that
every `--listen` will do. A command that is not `serve` has nothing to answer, and is healthy as long as it runs.
"""

import sys
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socket import AF_INET, AF_INET6, inet_ntop
from struct import pack

LISTENS = "0A"


def main(process: str) -> int:
    """Return 0 if the process is healthy, else 1."""
    proc = Path("/proc") / process
    if b"serve" not in (proc / "cmdline").read_bytes().split(b"\0"):
        return 0
    return 0 if any(lives(*address) for address in listening(proc)) else 1


def listening(proc: Path) -> list[tuple[str, int]]:
    """Return the addresses at which a process accepts connections."""
    own = {link.readlink().name for link in (proc / "fd").iterdir() if link.is_symlink()}
    found = []
    for family, name in ((AF_INET, "tcp"), (AF_INET6, "tcp6")):
        table = proc / "net" / name
        for line in table.read_text().splitlines()[1:] if table.exists() else []:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in own:
                address, port = fields[1].split(":")
                words = [address[at : at + 8] for at in range(0, len(address), 8)]
                host = inet_ntop(family, b"".join(pack("=I", int(word, 16)) for word in words))
                found.append(({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port, 16)))  # noqa: S104
    return found


def lives(host: str, port: int) -> bool:
    """Return whether the service answers at an address that it is alive."""
    connection = HTTPConnection(host, port, timeout=4)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


sys.exit(main(*(sys.argv[1:] or ["1"])))
