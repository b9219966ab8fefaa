"""Secret keys: they stay in the process that has read them, and travel as the name of their file.

What goes to Spark's tasks lies in blocks of memory and disk that are handed on between processes. So a key is not part
of it: each process that needs the key reads the file itself, and makes sure by a digest that it is the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from resnap.storage.errors import ConfigurationError

_HINT = "Spark's workers read key files themselves: each needs the same file at the same path, readable by its user"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file that holds a key.

    Attributes:
        path: where it is, here and in every process that this value is sent to.
        digest: SHA-256 of what it held when it was first read.

    """

    path: str
    digest: bytes
    _held: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the file at ``path`` with what it holds.

        Raises:
            OSError: it cannot be read.

        """
        held = path.read_bytes()
        return cls(str(path.absolute()), hashlib.sha256(held).digest(), held)

    def __reduce__(self) -> tuple[type[KeyFile], tuple[str, bytes]]:
        """Return what is sent elsewhere: everything but the key."""
        return KeyFile, (self.path, self.digest)

    def content(self) -> bytes:
        """Return what the file holds.

        Raises:
            ConfigurationError: in a process that this value was sent to: the file cannot be read, or is another one.

        """
        if self._held is not None:
            return self._held
        try:
            held = Path(self.path).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{self.path}: the key cannot be read here: {error.strerror}",
                                     hint=_HINT) from error  # fmt: skip
        if hashlib.sha256(held).digest() != self.digest:
            raise ConfigurationError(f"{self.path}: another key than the one that the run began with", hint=_HINT)
        object.__setattr__(self, "_held", held)
        return held
