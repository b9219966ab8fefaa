"""The composition root: builds what jobs work with from settings; ``replaying`` does for those that replay."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from resnap.replay.producer_state import Expiry
from resnap.replay.scan.splits import Reading
from resnap.replay.spark.settings import processors
from resnap.replay.window import AsOf, ReplayRules
from resnap.scheduler.settings.declaration import declared_in
from resnap.scheduler.settings.replay import BrokerSettings, ClusterSettings, ReplaySettings
from resnap.scheduler.settings.running_cluster import connect
from resnap.scheduler.settings.settings import given_flags
from resnap.scheduler.settings.store import StoreSettings
from resnap.storage.encryption import KeyRing, RsaKey, rsa_key
from resnap.storage.errors import ConfigurationError, UsageError
from resnap.storage.key_file import KeyFile
from resnap.storage.sources.files import Sources
from resnap.storage.stores.urls import is_store_url, without_slash
from resnap.storage.words import instant
from resnap.tiering.controller.metadata.cluster import find_metadata_log
from resnap.tiering.selection import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from resnap.scheduler.clock import Clock
    from resnap.scheduler.settings.settings import Settings
    from resnap.tiering.cluster.client import Cluster
    from resnap.tiering.judging.planning import SavedPlan


_RULES: Final = (
    "config",
    "high_watermark",
    *(
        setting.name
        for group in (BrokerSettings, ClusterSettings, ReplaySettings)
        for setting in declared_in(group)
        if setting.name != "verify_crc"
    ),
)
"""Settings that decide what is read of a log, and what snapshots are made of it."""
_STORES: Final = tuple(setting.name for setting in declared_in(StoreSettings))


def sources_of(settings: Settings) -> Sources:
    """Return what opens files, also of stores, and encrypted ones.

    Raises:
        ConfigurationError: a key file cannot be read, or holds no private RSA key.

    """
    return Sources(
        s3=settings.s3(),
        ranges_in_flight=settings.ranges_in_flight,
        range_bytes=settings.range_size,
        keys=key_ring(settings.encryption_private_key),
    )


def reading_of(settings: Settings) -> Reading:
    """Return the options for reading segments."""
    return Reading(
        sources=sources_of(settings),
        header_read_bytes=settings.header_read_size,
        split_bytes=settings.split_size,
        producers_per_task=settings.producers_per_task,
        threads=settings.threads or processors(),
    )


def rules_of(settings: Settings, clock: Clock) -> ReplayRules:
    """Return the replay rules of the settings; T is fixed here, once.

    Raises:
        UsageError: T is in the future.

    """
    interval_ms = settings.producer_id_expiration_check_interval_ms
    fixed_ms = settings.as_of_ms
    if fixed_ms is not None and fixed_ms > clock.now_ms():
        raise UsageError(
            f"--as-of {instant(fixed_ms)} is in the future: producers that are alive would count as expired",
            hint="give a time in the past; without --as-of it is now",
        )
    history_ms = settings.history_expiration_ms
    return ReplayRules(
        as_of=AsOf(now_ms=clock.now_ms() if fixed_ms is None else fixed_ms, roll=settings.as_of == "roll"),
        expiry=Expiry(settings.expiration_ms, interval_ms),
        history=None if history_ms is None else Expiry(history_ms, interval_ms),
        transaction_max_timeout_ms=settings.transaction_max_timeout_ms,
        max_reach_back_ms=settings.max_reach_back_ms,
        full=settings.full,
        verify_crc=settings.verify_crc,
    )


def metadata_log_of(settings: Settings, place: Path | None) -> Path:
    """Return the directory of the cluster's metadata log: ``place``, or from the settings or ``log.dirs``.

    Raises:
        UsageError: nothing says.

    """
    found = place or settings.metadata_log or find_metadata_log(settings.log_dirs)
    if found is None:
        hint = "give --metadata-log DIR: __cluster_metadata-0 of a controller or broker, or the log dir that holds it"
        raise UsageError("there is no metadata log to read", hint=hint)
    return found


def cluster_of(settings: Settings) -> AbstractContextManager[Cluster]:
    """Yield a connection to the running cluster: that of the command, or else one that ends with the context.

    Raises:
        ConfigurationError: no cluster is configured, or its connection settings are invalid.
        ClusterError: it does not answer.

    """
    if settings.bootstrap_server is None:
        raise ConfigurationError("no cluster is named", hint="give --bootstrap-server HOST:PORT")
    return connect(settings.bootstrap_server, settings.command_config, settings.shared_cluster)


def remote_of(settings: Settings) -> str | None:
    """Return the URL of the remote storage that is read with log dirs, including the folders of the key prefix."""
    if settings.remote is None:
        return None
    url = settings.remote if is_store_url(settings.remote) else Path(settings.remote).absolute().as_uri()
    folder = settings.key_prefix.rpartition("/")[0]
    return without_slash(f"{without_slash(url)}/{folder}")


def rule_flags_of(settings: Settings) -> Iterator[str]:
    """Yield the flags that were given, and decide what is judged as usable."""
    return given_flags(settings, _RULES)


def scope_of(
    settings: Settings, sources: Sequence[str] | None, saved: SavedPlan | None = None, *, reads: str = "log dirs"
) -> Scope:
    """Return the scope from a saved plan, the SOURCE arguments, or else ``log.dirs``, and the settings.

    What ``reads`` the running cluster, or what its arguments name, has no sources, nor has one of a store but in a run.

    Raises:
        UsageError: none of them names a source.

    """
    scope = Scope(sources=(), topics=settings.topics, exclude_topics=settings.exclude_topics)
    if reads == "cluster":
        connect = partial(cluster_of, settings)
        return replace(scope, partitions=settings.partitions, remote=remote_of(settings), connect=connect)
    if reads == "other" or (reads == "store" and not sources):
        return scope
    places = saved.sources if saved is not None else tuple(sources or map(str, settings.log_dirs))
    if not places:
        hint = "give a log dir or a partition's directory, or --server-properties FILE with log.dirs in it"
        raise UsageError("no LOG_DIR to work on", hint=hint)
    return replace(
        scope,
        sources=places,
        partitions=settings.partitions,
        connect=None if settings.bootstrap_server is None else partial(cluster_of, settings),
        high_watermark=settings.high_watermark,
        metadata_log=settings.metadata_log,
        read_ahead=settings.metadata,
        remote=remote_of(settings) if saved is None else saved.remote,
        rule_flags=tuple(rule_flags_of(settings)),
        store_flags=tuple(given_flags(settings, _STORES)),
    )


def key_ring(files: Mapping[str, str]) -> KeyRing:
    """Return the private keys in ``files``, by the names of their pairs.

    Raises:
        ConfigurationError: a file cannot be read, or holds no private RSA key.

    """
    return KeyRing(tuple(_key(name, file, private=True) for name, file in files.items()))


def public_key(files: Mapping[str, str]) -> RsaKey | None:
    """Return the one public key in ``files``; None without any.

    Raises:
        ConfigurationError: there are several, a file cannot be read, or holds no RSA key.

    """
    if len(files) > 1:
        raise ConfigurationError(f"--encryption-public-key: expected one, found {len(files)}: {', '.join(files)}")
    return next((_key(name, file, private=False) for name, file in files.items()), None)


def _key(name: str, file: str, *, private: bool) -> RsaKey:
    flag = f"--encryption-{'private' if private else 'public'}-key"
    if ":" in name:
        raise ConfigurationError(f"{flag} {name}: expected the name of a key pair, which has no colon")
    try:
        key = RsaKey(name, KeyFile.read(Path(file)))
    except OSError as error:
        raise ConfigurationError(f"{flag} {name}={file}: cannot be read: {error.strerror}") from error
    rsa_key(key, private=private)
    return key
