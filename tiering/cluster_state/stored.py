"""States of clusters in a store: one object for each moment and node, which is never overwritten.

    .resnap/cluster/<cluster id>/<moment>-<node id>.json
    .resnap/cluster/<cluster id>/<moment>-cluster.json

The second is what the running cluster itself has told. The moment is in UTC, so that keys are in the order of time.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from resnap.storage.errors import ObjectNotFoundError, UsageError, in_file
from resnap.storage.stores.protocol import key_part
from resnap.tiering.cluster_state.state import read_state

if TYPE_CHECKING:
    from collections.abc import Collection

    from resnap.storage.stores.protocol import ObjectStore
    from resnap.tiering.cluster_state.state import ClusterState

FOLDER: Final = ".resnap/cluster/"
ASKED: Final = "cluster"
"""In the place of a node, if the running cluster was asked."""
_KEY: Final = re.compile(
    rf"{re.escape(FOLDER)}(?P<cluster>[^/]+)/(?P<moment>\d{{8}}T\d{{9}}Z)-(?P<node>\d+|{ASKED})\.json"
)


def state_key(state: ClusterState) -> str:
    """Return the key of ``state``."""
    at = datetime.fromtimestamp(state.taken_ms // 1000, UTC)
    moment = f"{at:%Y%m%dT%H%M%S}{state.taken_ms % 1000:03d}Z"
    return f"{FOLDER}{key_part(state.cluster_id)}/{moment}-{ASKED if state.node_id is None else state.node_id}.json"


def keep_state(store: ObjectStore, key: str, document: bytes) -> None:
    """Write the document of a state to its key.

    Raises:
        ObjectExistsError: there is one of this moment and node.
        StoreError: the store failed.

    """
    store.put(key, document, if_absent=True)


def delete_older(store: ObjectStore, newest: str, keep: int) -> int:
    """Delete the states of the node of ``newest`` but the last ``keep``, and return how many.

    Raises:
        StoreError: the store failed.

    """
    folder, _, name = newest.rpartition("/")
    node = name.rpartition("-")[2]
    keys = [info.key for info in store.list(f"{folder}/") if _KEY.fullmatch(info.key) and info.key.endswith(f"-{node}")]
    older = sorted(keys)[:-keep]
    for key in older:
        store.delete(key)
    return len(older)


def newest_states(store: ObjectStore, cluster_ids: Collection[str]) -> list[tuple[str, ClusterState]]:
    """Return the keys and content of the last state of each node of one of ``cluster_ids``; of any, if none is given.

    Raises:
        UsageError: there are some of several clusters.
        FormatError: one is damaged.
        StoreError: the store failed.

    """
    parts = {key_part(cluster_id) for cluster_id in cluster_ids}
    matches = [match for info in store.list(FOLDER) if (match := _KEY.fullmatch(info.key)) is not None]
    found = [match for match in matches if not parts or match["cluster"] in parts]
    clusters = sorted({match["cluster"] for match in found})
    if len(clusters) > 1:
        raise UsageError(
            f"{store.url} has states of the clusters {', '.join(clusters)}",
            hint=f"name one with --cluster-state, such as {found[-1][0]}",
        )
    newest = {match["node"]: match[0] for match in found}  # in the order of their moments
    return [(key, _read(store, key)) for key in newest.values()]


def named_state(store: ObjectStore, key: str) -> ClusterState:
    """Return the state under ``key``.

    Raises:
        UsageError: it is not the key of a state, or there is none.
        FormatError: it is damaged.
        StoreError: the store failed.

    """
    with suppress(ObjectNotFoundError):
        if _KEY.fullmatch(key):
            return _read(store, key)
    raise UsageError(
        f"--cluster-state {key}: {store.url} has no such state of a cluster",
        hint=f"give a key as `resnap export` prints it: {FOLDER}CLUSTER-ID/MOMENT-NODE-ID.json",
    )


def _read(store: ObjectStore, key: str) -> ClusterState:
    with in_file(f"{store.url}/{key}"):
        return read_state(store.get(key))
