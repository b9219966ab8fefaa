"""Quotas as a cluster has them, read from its metadata log again and again while it grows.

A log that cannot be read at first is an error. One that is damaged later, or in the middle of being rolled, leaves the
quotas as they were: to drop all limits, or all clients, for a bad read would be worse than either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resnap.storage.errors import ResnapError
from resnap.tiering.controller.metadata.folding import fold_files
from resnap.tiering.controller.metadata.log_files import list_metadata_log
from resnap.tiering.controller.metadata.records import ClientQuotaRecord
from resnap.tiering.quota.client_quotas import ClientQuotas, UserRates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resnap.tiering.controller.metadata.image import MetadataImage
    from resnap.tiering.controller.metadata.log_files import MetadataLogFiles


def quotas_of(image: MetadataImage) -> ClientQuotas:
    """Return the client quotas of an image."""
    return ClientQuotas({tuple(sorted(entity, key=_by_type)): dict(values) for entity, values in image.quotas.items()})


def _by_type(part: tuple[str, str | None]) -> str:
    return part[0]


class MetadataQuotas:
    """The quotas of the metadata log in ``directory``, which may also be the log dir that holds it."""

    def __init__(self, directory: Path, complain: Callable[[str], None] = lambda _: None) -> None:
        """Read it for the first time; ``complain`` hears of quotas that cannot be used, and of later damage.

        Raises:
            UsageError, MetadataLogError, FormatError, LogDirError: see ``load_image``.

        """
        self._directory = directory
        self._complain = complain
        self._seen: object = None
        self.offset = -1
        """Offset of the last record that counts."""
        self.quotas = ClientQuotas()
        self.rates = UserRates()
        self._read()

    def refresh(self) -> bool:
        """Look whether the log has grown, and return whether rates have changed."""
        before = self.rates
        try:
            self._read()
        except ResnapError as error:
            self._complain(f"{self._directory}: quotas stay as of offset {self.offset}: {error}")
        return self.rates != before

    def _read(self) -> None:
        files = list_metadata_log(self._directory)
        marks = _marks(files)
        if marks == self._seen:
            return
        image = fold_files(files).relying_on(ClientQuotaRecord)
        self._seen, self.offset = marks, image.offset
        self.quotas = quotas_of(image)
        self.rates = self.quotas.rates(self._complain)


def _marks(files: MetadataLogFiles) -> object:
    """Return what changes when a log does."""
    return tuple((segment.path, segment.size_bytes) for segment in files.segments), files.checkpoints
