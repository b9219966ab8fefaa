"""Secret keys that stay in the process that read them; other processes get the name of the key file.

Data for Spark's tasks is in memory and disk blocks that pass between processes. So a key is never part of it: each
process that needs the key reads the file itself, and compares a digest to be sure that the file is the same.
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
        path: where the file is, here and in every process that this value is sent to.
        digest: SHA-256 of its content when it was first read.

    """

    path: str
    digest: bytes
    _held: bytes | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file at ``path``, and return it with its content.

        Raises:
            OSError: it cannot be read.

        """
        held = path.read_bytes()
        return cls(str(path.absolute()), hashlib.sha256(held).digest(), held)

    def __reduce__(self) -> tuple[type[KeyFile], tuple[str, bytes]]:
        """Return what is sent to other processes: everything but the key."""
        return KeyFile, (self.path, self.digest)

    def content(self) -> bytes:
        """Return the content of the file.

        Raises:
            ConfigurationError: in another process: the file cannot be read, or has another content.

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
