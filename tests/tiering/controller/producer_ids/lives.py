"""Controllers in processes of their own, to be killed. Little is imported here, so that they start in milliseconds."""

from __future__ import annotations

import os
import random
import struct
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import LogDirInUseError
from resnap.tiering.controller.producer_ids.allocation import open_allocation

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

EPOCH: Final = 17
NOW: Final = 1_750_000_000_000
START: Final = struct.Struct(">q")


def give_away_for_ever(log: Path, told: Connection) -> None:
    """Give away blocks until killed; the first id of each is sent once the block is durable."""
    with open_allocation(log, leader_id=1, timestamp=NOW) as allocation:
        while True:
            block = allocation.allocate(1 + random.randrange(2), EPOCH, NOW)
            os.write(told.fileno(), START.pack(block.first))


def open_in_vain(log: Path) -> None:
    """End with the exit code of a log that another process holds."""
    try:
        with open_allocation(log, leader_id=2, timestamp=NOW):
            pass
    except LogDirInUseError as error:
        raise SystemExit(error.exit_code) from None
