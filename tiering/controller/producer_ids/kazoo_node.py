"""The ZooKeeper znode of producer id blocks, through the library kazoo (the extra ``zookeeper``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kazoo.exceptions import BadVersionError, NoNodeError

from resnap.storage.errors import DataError
from resnap.tiering.controller.producer_ids.broker_ids import PATH

if TYPE_CHECKING:
    from kazoo.client import KazooClient


class KazooBlockNode:
    """The znode, over a connected client. Errors of ZooKeeper itself pass through as kazoo raises them."""

    def __init__(self, client: KazooClient, path: str = PATH) -> None:
        self._client = client
        self._path = path

    def create(self) -> None:
        """Create the znode, empty, if it does not exist, as brokers do when they start."""
        self._client.ensure_path(self._path)

    def read(self) -> tuple[bytes | None, int]:
        """Return data and version; None and 0 if the znode does not exist."""
        try:
            data, status = self._client.get(self._path)
        except NoNodeError:
            return None, 0
        return data or None, status.version

    def write(self, data: bytes, version: int) -> bool:
        """Write if the version matches; return whether it did.

        Raises:
            DataError: the znode does not exist. It is not created: ids would begin with 0 again.

        """
        try:
            self._client.set(self._path, data, version=version)
        except BadVersionError:
            return False
        except NoNodeError:
            raise DataError(
                f"{self._path}: no such znode", hint="brokers create it; in a new cluster, `create` does"
            ) from None
        return True
