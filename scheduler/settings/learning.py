"""Learns settings from a cluster: from its metadata log, and from its running brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from resnap.scheduler.settings.layers import path_in, value_in
from resnap.scheduler.settings.metadata import NOTHING, FromMetadata, contradiction, metadata_layer, of_another_node
from resnap.scheduler.settings.running_cluster import cluster_layer, connect
from resnap.scheduler.settings.values import split_list
from resnap.tiering.controller.metadata.cluster import find_metadata_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resnap.scheduler.settings.declaration import Layer, SettingFiles
    from resnap.tiering.cluster.shared_cluster import SharedCluster
    from resnap.tiering.controller.metadata.cluster import ClusterMetadata


class Learned(NamedTuple):
    """What a cluster adds to the settings, the running brokers' first."""

    layers: list[Layer]
    warnings: tuple[str, ...]
    metadata: ClusterMetadata | None


def learn(
    layers: list[Layer],
    read: SettingFiles,
    places: Sequence[str] | None,
    *,
    ask_cluster: bool,
    shared: SharedCluster | None,
) -> Learned:
    """Return what the cluster that ``layers`` name says; the arguments are those of ``load_settings``."""
    live, warned = _from_cluster(layers, shared) if ask_cluster else ({}, ())
    said = NOTHING if places is None else _from_metadata(layers, read.static, places)
    of_another = None if read.properties is None else of_another_node(read.properties, places or ())
    warnings = (*warned, *said.warnings, *filter(None, [of_another]))
    return Learned([live, said.layer], warnings, said.metadata)


def _from_metadata(layers: list[Layer], static: Layer, places: Sequence[str]) -> FromMetadata:
    """Return what the metadata log says that was named, or lies in the log dirs that the command works on."""
    named = path_in([*layers, static], "metadata_log")
    log_dirs = split_list(str(static["log_dirs"].value)) if "log_dirs" in static else ()
    there = tuple(places) or log_dirs
    found = named or find_metadata_log(there)
    if found is None:
        return NOTHING
    said = metadata_layer(found, there, static, must=named is not None)
    contradicted = contradiction(layers, said.layer)
    return said if contradicted is None else said._replace(warnings=(*said.warnings, contradicted))


def _from_cluster(layers: list[Layer], shared: SharedCluster | None) -> tuple[Layer, tuple[str, ...]]:
    """Return what the running cluster says, where one is named, and notes about it."""
    bootstrap_server = value_in(layers, "bootstrap_server")
    if not bootstrap_server:
        return {}, ()
    with connect(str(bootstrap_server), path_in(layers, "command_config"), shared) as cluster:
        live, warnings = cluster_layer(cluster)
    return live, (*warnings, *filter(None, [contradiction(layers, live)]))
