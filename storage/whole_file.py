"""Small files of our own, each written whole or not at all: plans, memories, states.

Files of a broker's log dir are changed by ``disk`` instead, which also keeps their owner and mode.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, parts: tuple[bytes, ...]) -> None:
    """Write ``parts`` one after the other to ``path``, durably: all of them, or nothing.

    Raises:
        OSError: the file cannot be written; ``path`` is as it was.

    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
