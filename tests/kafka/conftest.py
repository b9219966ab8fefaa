"""What tests beside real brokers ask for: releases of Kafka, and the command in this process."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.kafka.brokers import with_archive
from tests.kafka.releases import Release, find_release
from tests.scheduler.conftest import command, resnap

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["command", "resnap"]


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Release]:
    """Give the release of a version, such as ``3.9.1``: its brokers, its tools, and a way to run one Java file."""
    classes = tmp_path_factory.mktemp("classes")

    def found(version: str) -> Release:
        plain = find_release(version, classes)
        return with_archive(plain, tmp_path_factory.mktemp("archive")) if plain.line >= (3, 3) else plain

    return cache(found)
