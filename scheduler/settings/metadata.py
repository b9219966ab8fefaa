"""Settings from a cluster's metadata log: a layer between the configuration file and ``server.properties``.

Brokers use what was set at run time before they use their own file, and so does this. A metadata log is looked for
where the brokers of KRaft keep it, in the log dirs that a command is pointed at; one that is found and cannot be used
is warned of, and one that was named and cannot be used is an error.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from resnap.scheduler.settings.declaration import Given, Layer
from resnap.scheduler.settings.layers import KAFKA_PROPERTIES, node_named, path_in, static_properties, value_in
from resnap.scheduler.settings.running_cluster import cluster_layer, connect
from resnap.scheduler.settings.values import split_list
from resnap.storage.errors import ResnapError, UsageError, in_file
from resnap.storage.log.log_dir import META_PROPERTIES
from resnap.storage.log.properties import read_meta_properties
from resnap.storage.stores.urls import is_store_url
from resnap.storage.whole_file import read_whole
from resnap.tiering.controller.expiration import (
    EXPIRATION,
    SETTINGS,
    TRANSACTIONAL_EXPIRATION,
    BrokerExpiration,
    Effective,
    Level,
    expiration_of,
    has_own_setting,
)
from resnap.tiering.controller.metadata.cluster import ClusterMetadata, find_metadata_log, is_there

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from resnap.scheduler.settings.declaration import SettingFiles
    from resnap.scheduler.settings.settings import SharedCluster
    from resnap.storage.log.properties import MetaProperties
    from resnap.tiering.controller.metadata.image import MetadataImage


def learn(
    layers: list[Layer],
    read: SettingFiles,
    places: Sequence[str] | None,
    *,
    ask_cluster: bool,
    shared: SharedCluster | None,
) -> tuple[list[Layer], tuple[str, ...], ClusterMetadata | None]:
    """Return what the cluster that ``layers`` name adds to the settings, the running brokers' first.

    With it come warnings and the metadata log that was read; the arguments are those of ``load_settings``.
    """
    live, warned = _from_cluster(layers, shared) if ask_cluster else ({}, ())
    logged, warnings, metadata = _NOTHING if places is None else _from_metadata(layers, read.static, places)
    of_another = None if read.properties is None else of_another_node(read.properties, places or ())
    return [live, logged], (*warned, *warnings, *filter(None, [of_another])), metadata


def _from_metadata(layers: list[Layer], static: Layer, places: Sequence[str]) -> FromMetadata:
    """Return the layer from the metadata log that was named, or that is in the log dirs of the command."""
    named = path_in([*layers, static], "metadata_log")
    log_dirs = split_list(str(static["log_dirs"].value)) if "log_dirs" in static else ()
    there = tuple(places) or log_dirs
    # A broker has its metadata log in one of its log dirs, and the command may have been given another one.
    beside = log_dirs if any(_is_in(place, log_dirs) for place in there) else ()
    found = named or find_metadata_log((*there, *beside))
    if found is None:
        return _NOTHING
    layer, warnings, metadata = metadata_layer(found, there, static, must=named is not None)
    return layer, (*warnings, *filter(None, [contradiction(layers, layer)])), metadata


def _is_in(place: str, log_dirs: Iterable[str]) -> bool:
    """Whether ``place`` is one of ``log_dirs``, or in one of them."""
    return not is_store_url(place) and any(
        Path(place).absolute().is_relative_to(Path(one).absolute()) for one in log_dirs
    )


def _from_cluster(layers: list[Layer], shared: SharedCluster | None) -> tuple[Layer, tuple[str, ...]]:
    """Return what the running cluster says, where one is named, and notes about it."""
    bootstrap_server = value_in(layers, "bootstrap_server")
    if not bootstrap_server:
        return {}, ()
    with connect(str(bootstrap_server), path_in(layers, "command_config"), shared) as cluster:
        live, warnings = cluster_layer(cluster)
    return live, (*warnings, *filter(None, [contradiction(layers, live)]))


SETTING: Final = KAFKA_PROPERTIES[EXPIRATION]


FromMetadata: TypeAlias = tuple[Layer, tuple[str, ...], ClusterMetadata | None]
"""What a metadata log adds to the settings, warnings, and the log itself."""
_NOTHING: Final[FromMetadata] = {}, (), None


def metadata_layer(directory: Path, places: Iterable[str | Path], static: Layer, *, must: bool) -> FromMetadata:
    """Return the settings that the metadata log at ``directory`` gives the brokers whose log dirs are ``places``.

    Args:
        directory: of the metadata log.
        places: log dirs, whose ``meta.properties`` say which broker's they are.
        static: what ``server.properties`` say.
        must: whether a metadata log that cannot be used is an error.

    Raises:
        ResnapError: it cannot be used, and must.

    """
    metas = _metas(places)
    try:
        _check_cluster(directory, metas)
        metadata = ClusterMetadata(directory)
        image = metadata.read_settings()
    except ResnapError as error:
        if must:
            raise
        return {}, (f"the metadata log is not used: {error}",), None
    said = {key: str(static[name].value) for key, name in KAFKA_PROPERTIES.items() if name in static}
    broker_ids = dict.fromkeys(meta.node_id for meta in metas) or {None: None}
    found = [expiration_of(image, broker_id, said) for broker_id in broker_ids]
    longest = max(found, key=lambda one: one.expiration.value_ms)
    warnings = (*_disagreements(found), *_releases(image), *_complaints(longest))
    return _layer(longest, directory), warnings, metadata


def contradiction(layers: Iterable[Layer], below: Layer) -> str | None:
    """Return a warning if the expiration in ``layers`` differs from that of the layer ``below``."""
    given = next((layer[SETTING] for layer in layers if SETTING in layer), None)
    there = below.get(SETTING)
    if given is None or there is None or str(there.value) == str(given.value):
        return None
    return f"{EXPIRATION} is {given.value} ({given.origin}), but the brokers use {there.value} ({there.origin})"


def of_another_node(properties: Path, places: Iterable[str | Path]) -> str | None:
    """Return what to say where the ``server.properties`` are of another node than a log dir at ``places``.

    A broker does not start with such a file. Its settings are taken all the same, since brokers mostly have the same.
    """
    named = node_named(static_properties(properties))
    there = sorted({str(meta.node_id) for meta in _metas(places) if meta.node_id is not None})
    if named is None or not there or there == [named]:
        return None
    return f"{properties} is of node {named}, the log dirs are of {', '.join(there)}: its settings may not apply there"


def _check_cluster(directory: Path, metas: Iterable[MetaProperties]) -> None:
    """Refuse a metadata log whose ``meta.properties`` name another cluster than the log dirs do."""
    holding = _metas([directory])
    its_own = next((meta.cluster_id for meta in holding if meta.cluster_id is not None), None)
    others = {meta.cluster_id for meta in metas if meta.cluster_id is not None} - {its_own}
    if its_own is not None and others:
        raise UsageError(
            f"{directory} is of cluster {its_own}, the log dirs are of {', '.join(sorted(map(str, others)))}",
            hint="give the metadata log of the same cluster",
        )


def _metas(places: Iterable[str | Path]) -> list[MetaProperties]:
    """Return what the ``meta.properties`` in or above ``places`` say, where they can be read."""
    found = []
    for place in places:
        if not is_store_url(str(place)):
            directory = Path(place).absolute()
            files = (candidate / META_PROPERTIES for candidate in (directory, directory.parent))
            path = next(filter(is_there, files), None)
            if path is not None:
                with suppress(OSError, ResnapError), in_file(path):  # reading the log dir reports what is wrong
                    found.append(read_meta_properties(read_whole(path)))
    return found


def _layer(longest: BrokerExpiration, directory: Path) -> Layer:
    effective = longest.expiration
    if longest.has_own_setting is False:
        why = f"brokers before 3.4 use {TRANSACTIONAL_EXPIRATION}"
        return {SETTING: Given(effective.value_ms, f"metadata log {directory}: {why}, {effective.level}")}
    if effective.level not in (Level.BROKER, Level.ALL_BROKERS):
        return {}
    return {SETTING: Given(effective.value_ms, f"metadata log {directory}: {effective.level}")}


def _disagreements(found: list[BrokerExpiration]) -> list[str]:
    values = {broker.broker_id: broker.expiration.value_ms for broker in found}
    if len(set(values.values())) == 1:
        return []
    each = ", ".join(f"broker {broker_id}: {value}" for broker_id, value in values.items())
    return [f"brokers expire producers after different times ({each}): the longest is used"]


def _releases(image: MetadataImage) -> list[str]:
    """Say which brokers are older than the others' idea of expiry."""
    own = {broker_id: has_own_setting(image, broker_id) for broker_id in image.brokers}
    older = [str(broker_id) for broker_id, has in own.items() if has is False]
    if not older or len(older) == len(own):
        return []
    return [f"brokers {', '.join(older)} are older than 3.4, and use {TRANSACTIONAL_EXPIRATION}; the others do not"]


def _complaints(one: BrokerExpiration) -> list[str]:
    known: Mapping[str, Effective] = {setting.name: one.settings[setting.name] for setting in SETTINGS}
    overruled = [
        f"{name} is {effective.value_ms} by {effective.level}, which overrules {', '.join(effective.overruled)}"
        for name, effective in known.items()
        if effective.overruled
    ]
    return overruled + [f"{name}: {problem}" for name, effective in known.items() for problem in effective.problems]
