"""A bound on what all writers of one store hold and send at once, whichever object it is of."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Slots:
    """How many bodies, or parts of them, all writers of one store may hold and send at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = threading.BoundedSemaphore(most)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Take a slot for as long as the context lasts; waits for one."""
        with self._free:
            yield

    def fill(self, parts: Iterator[bytes]) -> bytes | None:
        """Take a slot and return the next part for it, which ``release`` gives back; None, and no slot, at the end."""
        self._free.acquire()
        part = None
        try:
            part = next(parts, None)
        finally:
            if part is None:
                self._free.release()
        return part

    def release(self, _sent: object = None) -> None:
        """Give a slot back."""
        self._free.release()
