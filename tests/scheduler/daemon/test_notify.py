"""Datagrams to systemd, received by a real socket."""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.commands.serve import notify, watchdog_interval_s

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)  # a socket's path may have 108 characters
    return f"{tmp_path}/n" if request.param == "path" else f"@resnap-test-{uuid.uuid4()}"


@pytest.fixture
def systemd(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address.replace("@", "\0", 1))
        receiver.settimeout(10)
        yield receiver


def test_each_message_is_one_datagram_of_assignments(address: str, systemd: socket.socket) -> None:
    sent = [
        notify(address, READY=1, STATUS="3 schedules"),
        notify(address, RELOADING=1, MONOTONIC_USEC=12345678),
        notify(address, WATCHDOG=1, STATUS="1 run at work"),
        notify(address, STOPPING=1, STATUS="told to"),
    ]
    assert sent == [True] * 4
    assert [systemd.recv(4096) for _ in sent] == [
        b"READY=1\nSTATUS=3 schedules",
        b"RELOADING=1\nMONOTONIC_USEC=12345678",
        b"WATCHDOG=1\nSTATUS=1 run at work",
        b"STOPPING=1\nSTATUS=told to",
    ]


def test_a_status_cannot_hold_another_assignment(address: str, systemd: socket.socket) -> None:
    notify(address, WATCHDOG=1, STATUS="payments\nREADY=1\0x")
    assert systemd.recv(4096) == b"WATCHDOG=1\nSTATUS=payments READY=1 x"


@pytest.mark.parametrize("nowhere", [None, "", "vsock:2:1234", "relative/path"])
def test_without_a_socket_of_systemd_nothing_is_sent(nowhere: str | None) -> None:
    assert notify(nowhere, READY=1) is False


def test_a_socket_that_has_gone_is_not_an_error(tmp_path: Path) -> None:
    assert notify(str(tmp_path / "gone"), READY=1) is False
    assert notify("/" + "x" * 200, READY=1) is False


def test_a_receiver_that_does_not_read_does_not_hold_the_service_up(address: str, systemd: socket.socket) -> None:
    answers = [True]
    while answers[-1] and len(answers) < 10_000:
        answers.append(notify(address, wait_s=0, WATCHDOG=1))
    assert answers[-1] is False
    assert systemd.recv(4096).startswith(b"WATCHDOG=1")


@pytest.mark.parametrize(
    ("variables", "interval_s"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_notified_twice_in_the_time_it_waits(
    variables: dict[str, str], interval_s: float | None
) -> None:
    assert watchdog_interval_s(variables, os.getpid()) == interval_s
