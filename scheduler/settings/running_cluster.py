"""Settings of the running cluster's brokers: a layer between the configuration file and a metadata log.

A broker answers with what is in force on it, so nothing that is in files can know better. Where brokers differ the
longest time counts: a snapshot may be loaded by any of them, and too long costs reading alone.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from resnap.scheduler.settings.declaration import Given, Layer
from resnap.scheduler.settings.layers import KAFKA_PROPERTIES
from resnap.storage.disk import reading
from resnap.storage.errors import ConfigurationError, in_file
from resnap.storage.log.properties import read_properties
from resnap.tiering.cluster.broker_settings import DescribedBroker, describe_brokers
from resnap.tiering.cluster.client import Cluster
from resnap.tiering.cluster.connecting import SETUP_TIMEOUT_S, check_stores, client_settings, setup_timeout_s
from resnap.tiering.controller.expiration import CHECK_INTERVAL, EXPIRATION, TRANSACTIONAL_EXPIRATION

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from resnap.scheduler.settings.settings import SharedCluster

TRANSACTION_TIMEOUT: Final = "transaction.max.timeout.ms"
_NAMES: Final = (EXPIRATION, CHECK_INTERVAL, TRANSACTIONAL_EXPIRATION, TRANSACTION_TIMEOUT)


def connect(
    bootstrap_server: str, command_config: Path | None, shared: SharedCluster | None = None
) -> AbstractContextManager[Cluster]:
    """Give a connection to the running cluster: the shared one, or else one that ends with the context.

    Raises:
        ConfigurationError: what it is to be reached by cannot be used.
        ClusterError: it does not answer.

    """
    made = partial(_connect, bootstrap_server, command_config)
    return made() if shared is None else shared.get(made)


def _connect(bootstrap_server: str, command_config: Path | None) -> Cluster:
    properties: dict[str, str] = {}
    if command_config is not None:
        _check_readable(command_config)
        with reading(command_config), in_file(command_config):
            properties = read_properties(command_config.read_bytes())
    known = client_settings(properties)
    check_stores(known)
    setup_s = setup_timeout_s(properties)
    return Cluster(bootstrap_server, known, setup_timeout_s=SETUP_TIMEOUT_S if setup_s is None else setup_s)


def cluster_layer(cluster: Cluster) -> tuple[Layer, tuple[str, ...]]:
    """Return the settings that the running brokers use, and notes about them.

    Raises:
        ClusterError: the cluster does not answer; no broker that says nothing is one.

    """
    brokers = describe_brokers(cluster, _NAMES)
    layer = Layer()
    warnings = [broker.error for broker in brokers if broker.error is not None]
    for name in _NAMES:
        said = [value for value in (_effective_value(broker, name) for broker in brokers) if value is not None]
        if said:
            layer[KAFKA_PROPERTIES[name]] = max(said, key=lambda given: int(str(given.value)))
            warnings += _difference(name, said)
    return layer, tuple(warnings)


def _effective_value(broker: DescribedBroker, name: str) -> Given | None:
    """Return what a broker uses; for expiration one before 3.4 uses that of transactional ids."""
    origin = f"broker {broker.broker_id} of the running cluster"
    if name == EXPIRATION and name not in broker.values and TRANSACTIONAL_EXPIRATION in broker.values:
        name = TRANSACTIONAL_EXPIRATION
        origin += f": brokers before 3.4 use {name}, {broker.levels[name]}"
    elif name in broker.values:
        origin += f": {broker.levels[name]}"
    value = broker.values.get(name, "")
    return Given(int(value), origin) if value.isdecimal() else None


def _difference(name: str, said: list[Given]) -> Iterator[str]:
    if len({given.value for given in said}) > 1:
        each = ", ".join(f"{given.value} on {given.origin.partition(' of ')[0]}" for given in said)
        yield f"brokers differ in {name} ({each}): the longest is used"


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}", hint="check --command-config") from error
