"""A service's file and a stopped clock."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.access.tokens import Tokens
from resnap.scheduler.state.database import Database
from tests.clocks import FixedClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(1_700_000_000_000)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database(tmp_path / "service.db")
    yield found
    found.close()


@pytest.fixture
def tokens(database: Database, clock: FixedClock) -> Tokens:
    return Tokens(database, clock, os.urandom)
