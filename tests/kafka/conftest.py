"""The command in this process, for tests that run it beside real brokers."""

from tests.scheduler.conftest import command, resnap

__all__ = ["command", "resnap"]
