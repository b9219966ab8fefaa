"""From the SOURCE arguments of a command to the partitions it works on."""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from resnap.replay.explain import log_end
from resnap.replay.watching import Progress
from resnap.storage.disk import is_there
from resnap.storage.errors import LogDirError, ResnapError, UsageError
from resnap.storage.log.log_dir import META_PROPERTIES, NoLogDirError, PartitionProblem
from resnap.storage.log.names import parse_partition_dir_name
from resnap.storage.sources.files import PLAIN
from resnap.storage.sources.log_dirs import Joining, open_source, open_tiered, with_remote
from resnap.storage.stores.urls import is_store_url
from resnap.storage.words import first_of
from resnap.tiering.cluster.facts import with_facts
from resnap.tiering.controller.metadata.cluster import (
    CLEANUP_POLICY,
    RETENTION_BYTES,
    RETENTION_MS,
    ClusterMetadata,
    find_metadata_log,
    with_strays,
    with_topic_ids,
)
from resnap.tiering.judging.broker_start import broker_starts
from resnap.tiering.judging.inventory import NEVER_TIERED, take_inventory
from resnap.tiering.remote_log.records import METADATA_TOPIC
from resnap.tiering.remote_log.stored import known_by, known_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from resnap.storage.log.log_dir import Incomplete, LogDir
    from resnap.storage.log.names import TopicPartition
    from resnap.storage.log.partition_dir import PartitionDir, Place
    from resnap.storage.sources.files import Sources
    from resnap.tiering.cluster.client import Connect
    from resnap.tiering.cluster.facts import ClusterFacts, PartitionFacts, TopicFacts
    from resnap.tiering.judging.broker_start import BrokerStart
    from resnap.tiering.judging.inventory import PartitionInventory
    from resnap.tiering.remote_log.stored import KnownSegments


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a command was pointed at."""

    sources: tuple[str, ...]
    topics: tuple[str, ...] = ()
    """Globs; all topics if there are none."""
    topic_flag: str = "--topic"
    """The flag that gave them."""
    exclude_topics: tuple[str, ...] = ()
    """Globs of topics that are not in scope."""
    partitions: tuple[str, ...] = ()
    """Directories' names, such as ``payments-0``; all partitions if there are none."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """Which topic is meant by a name that several have in a store; as keys have the id."""
    counts: Callable[[str], bool] = lambda _: True
    """Whether an object of a store is read, by its key."""
    high_watermark: int | None = None
    """High watermark of the one partition in scope, instead of the one in the checkpoint."""
    metadata_log: Path | None = None
    """Metadata log of the cluster; if it is not named, it is looked for in the sources."""
    read_ahead: ClusterMetadata | None = None
    """The metadata log that the settings of the run were read from."""
    remote: str | None = None
    """URL of the remote storage whose segments are read with those of the log dirs as one log."""
    joining: Joining | None = None
    """What is there, where it has been listed already."""
    beside: tuple[str, ...] = ()
    """The broker's other log dirs, where the sources are not all of them."""
    connect: Connect | None = None
    """Connects to the running cluster; None where none is named."""
    looking: Callable[[], AbstractContextManager[Sequence[Progress]]] = lambda: nullcontext([Progress()])
    """Gives what to report to while the sources are listed, and their small files read."""
    rule_flags: tuple[str, ...] = ()
    """Flags of this command by which others read the same partitions with the same result."""
    store_flags: tuple[str, ...] = ()
    """Flags of this command by which others reach the same stores."""

    @property
    def typed(self) -> str:
        """The sources as they are typed in a shell, with the flags that select the same partitions and rules."""
        topics = [word for topic in self.topics for word in ("--topic", topic)]
        topics += [word for topic in self.exclude_topics for word in ("--exclude-topic", topic)]
        partitions = [word for partition in self.partitions for word in ("--partition", partition)]
        remote = [] if self.remote is None else ["--remote", self.remote]
        return shlex.join([*self.sources, *topics, *partitions, *remote, *self.rule_flags, *self.store_flags])

    def install_command(self, staged: str, *flags: str) -> str:
        """Return the command that installs what is in ``staged``; into ``LOG_DIR`` if not one is given."""
        log_dir = "LOG_DIR"
        if len(self.sources) == 1 and not is_store_url(self.sources[0]):
            path = Path(self.sources[0])
            log_dir = shlex.quote(str(path.parent if parse_partition_dir_name(path.name) else path))
        reached_by = map(shlex.quote, self.store_flags if is_store_url(staged) else ())
        return " ".join(["resnap install", shlex.quote(staged), log_dir, *flags, *reached_by])

    def wants(self, topic: str) -> bool:
        """Whether ``topic`` is selected."""
        return matches(topic, self.topics) and not self.excludes(topic)

    def excludes(self, topic: str) -> bool:
        """Whether ``topic`` is excluded by name."""
        return any(fnmatchcase(topic, glob) for glob in self.exclude_topics)

    def wants_partition(self, partition: TopicPartition) -> bool:
        """Whether ``partition`` is selected."""
        return self.wants(partition.topic) and (not self.partitions or str(partition) in self.partitions)

    def unmatched(self, found: Collection[TopicPartition]) -> tuple[list[str], list[str]]:
        """Return the topics, and the partitions, that were asked for by name, and that ``found`` has nothing of."""
        topics, names = {partition.topic for partition in found}, set(map(str, found))
        globs = [glob for glob in self.topics if not any(fnmatchcase(topic, glob) for topic in topics)]
        return globs, [partition for partition in self.partitions if partition not in names]

    def live(self) -> ClusterFacts | None:
        """Ask the running cluster, where one is named, how its topics are now.

        Raises:
            ClusterError, ConfigurationError: it does not say, or cannot be reached as was meant.

        """
        if self.connect is None:
            return None
        with self.connect() as cluster:
            return cluster.facts(self.wants)

    def with_refused(self, facts: ClusterFacts, topics: Collection[str]) -> ClusterFacts:
        """Return ``facts`` with those of ``topics`` that the user may not describe, less what is never tiered.

        Raises:
            ClusterError, ConfigurationError: the cluster does not say, or cannot be reached as was meant.

        """
        refused = dict(facts.refused)
        if self.connect is not None and (missing := set(topics) - facts.topics.keys() - NEVER_TIERED):
            with self.connect() as cluster:
                refused |= cluster.hidden(missing)
        return replace(facts, refused={topic: why for topic, why in refused.items() if topic not in NEVER_TIERED})

    def metadata(self, source: str) -> ClusterMetadata:
        """Return the metadata log that describes ``source``."""
        directory = self.metadata_log or find_metadata_log([source])
        read = self.read_ahead
        return read if read is not None and read.directory == directory else ClusterMetadata(directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedPartition:
    """One partition, and the log dir it is in."""

    inventory: PartitionInventory
    log_dir: LogDir
    live: TopicFacts | None = None
    """What the running cluster says of the topic, where it was asked."""
    remote_end: Callable[[], int | None] = lambda: None
    """Reads in the log dirs' part of ``__remote_log_metadata`` which offset is the first that is not tiered."""
    retention_ms: int | None = None
    """``retention.ms`` of the topic, -1 for no limit; None where neither the cluster nor a metadata log has it."""
    retention_bytes: int | None = None
    """``retention.bytes``, likewise."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Its topic and number."""
        return self.inventory.partition.topic_partition

    @property
    def live_facts(self) -> PartitionFacts | None:
        """What the running cluster says of it; None where it was not asked, or has none."""
        return None if self.live is None else self.live.partitions.get(self.topic_partition.partition)


def segments_in(partitions: Iterable[SelectedPartition]) -> int:
    """Return the number of their segments."""
    return sum(len(partition.inventory.partition.segments) for partition in partitions)


def with_progress(partitions: Sequence[SelectedPartition], progress: Progress | None) -> Iterator[SelectedPartition]:
    """Yield each partition, and report its segments as done when the next one is asked for."""
    progress = progress or Progress()
    progress.expect(segments_in(partitions), 0)
    for selected in partitions:
        yield selected
        progress.advance(segments_in([selected]), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Everything in scope."""

    partitions: tuple[SelectedPartition, ...]
    """The partitions by topic, then number."""
    problems: tuple[PartitionProblem, ...]
    incomplete: tuple[Incomplete, ...]
    """Segments in stores that lack an object, and are in no partition."""
    log_dirs: tuple[LogDir, ...]
    """The log dirs that can be read, also where nothing in them is in scope."""
    silent: Mapping[int, str] = field(default_factory=dict)
    """Leaders in the running cluster that do not answer, and why."""

    def starts(self, sources: Sources) -> dict[Place, BrokerStart]:
        """Return what a broker finds wrong with each partition when it starts, by their paths.

        A file of another partition in its log dirs that ends the start counts, too, also where that is not in scope.
        """
        starts: dict[Place, BrokerStart] = {}
        selected = {partition.inventory.partition.path for partition in self.partitions}
        brokers: dict[object, list[LogDir]] = {}
        for log_dir in self.log_dirs:
            broker = (log_dir.cluster_id, log_dir.broker_id)
            brokers.setdefault(log_dir.path if None in broker else broker, []).append(log_dir)
        for log_dirs in brokers.values():
            paths = {log_dir.path for log_dir in log_dirs}
            starts |= broker_starts(
                [partition.inventory for partition in self.partitions if partition.log_dir.path in paths],
                [problem for problem in self.problems if problem.path.parent in paths],
                {path for log_dir in log_dirs for path in log_dir.unwanted} - selected,
                [path for log_dir in log_dirs if log_dir.broker_id is not None for path in log_dir.unknown],
                sources,
            )
        return starts

    def find(self, topic_partition: TopicPartition) -> SelectedPartition:
        """Return one partition.

        Raises:
            UsageError: it is not in scope.
            ResnapError: it is, and cannot be read as one log.

        """
        for selected in self.partitions:
            if selected.topic_partition == topic_partition:
                return selected
        for problem in self.problems:
            if problem.topic_partition == topic_partition:
                raise problem.error
        there = sorted(self.partitions, key=lambda one: one.topic_partition.topic != topic_partition.topic)
        known = first_of([one.topic_partition for one in there], 5) or "none"
        raise UsageError(f"{topic_partition} is not in the given source", hint=f"partitions there: {known}")


class NothingInScopeError(UsageError):
    """The log dirs can be read and have no partition, or none that was asked for."""


def matches(topic: str, globs: Sequence[str]) -> bool:
    """Return whether one of ``globs`` matches a topic; without any, all topics match."""
    return not globs or any(fnmatchcase(topic, glob) for glob in globs)


def select(scope: Scope, sources: Sources = PLAIN) -> Selection:
    """List the log dirs in scope and take the inventory of their partitions.

    A log dir that cannot be read, or is not there, is a problem of the selection, and hides no other.

    Raises:
        UsageError: no source is what it should be, two of them have the same partition, or nothing is in scope.
        LogDirError: no log dir can be read.
        StoreError: a source cannot be listed.

    """
    with scope.looking() as (progress,):
        return _select(scope, sources, progress)


def _select(scope: Scope, sources: Sources, progress: Progress) -> Selection:
    partitions: dict[TopicPartition, SelectedPartition] = {}
    facts = scope.live()
    opened, problems = _readable(scope, facts, sources, partial(progress.expect, 0, 0))
    joining = scope.joining or _joining(scope, [log_dir for log_dir, _ in opened], sources)
    problems += () if joining is None else joining.stored.problems
    known = cache(partial(_known_in_log_dirs, scope, sources))
    for log_dir, metadata in opened:
        whole = log_dir if joining is None else with_remote(log_dir, joining)
        settings = metadata.topic_settings() | ({} if facts is None else facts.topic_settings())
        policies = {name: setting[CLEANUP_POLICY] for name, setting in settings.items() if CLEANUP_POLICY in setting}
        progress.at_work("scanning", 1)
        progress.expect(sum(len(partition.segments) for partition in whole.partitions), 0)
        inventory = take_inventory(
            whole,
            cleanup_policies=policies,
            sources=sources,
            taken=lambda partition: progress.advance(len(partition.segments), 0),
        )
        problems += inventory.problems
        for found in inventory.partitions:
            topic = found.partition.topic_partition.topic
            of_topic = settings.get(topic, {})
            selected = SelectedPartition(
                inventory=found,
                log_dir=whole,
                live=None if facts is None else facts.topics.get(topic),
                remote_end=partial(_remote_end, known, found.partition, sources),
                retention_ms=_number(of_topic.get(RETENTION_MS)),
                retention_bytes=_number(of_topic.get(RETENTION_BYTES)),
            )
            _add(partitions, selected)
    if not partitions and not problems:
        raise nothing_in(scope)
    if scope.high_watermark is not None and len(partitions) > 1:
        raise UsageError(
            f"--high-watermark is of one partition, {len(partitions)} are in scope",
            hint="name one partition's directory",
        )
    return Selection(
        partitions=tuple(partitions[key] for key in sorted(partitions)),
        problems=tuple(problems),
        incomplete=tuple(segment for log_dir, _ in opened for segment in log_dir.incomplete),
        log_dirs=tuple(log_dir for log_dir, _ in opened),
        silent={} if facts is None else facts.silent,
    )


def _number(value: str | None) -> int | None:
    return None if value is None else int(value)


def _readable(
    scope: Scope, facts: ClusterFacts | None, sources: Sources, goes_on: Callable[[], None]
) -> tuple[list[tuple[LogDir, ClusterMetadata]], list[PartitionProblem]]:
    """Return the sources in scope that can be read, and what is wrong with the others."""

    def wanted(partition: TopicPartition) -> bool:
        goes_on()
        return scope.wants_partition(partition)

    opened: list[tuple[LogDir, ClusterMetadata]] = []
    problems: list[PartitionProblem] = []
    for source in scope.sources:
        try:
            opened.append(_open_log_dir(source, scope, facts, sources, wanted))
        except (LogDirError, NoLogDirError) as error:
            path = Path(source).absolute()
            problems.append(PartitionProblem(path=path, error=error, topic_partition=_partition_of(path)))
    if problems and not opened:
        raise problems[0].error
    return opened, problems


def _partition_of(path: Path) -> TopicPartition | None:
    """Return which partition's directory ``path`` is; a log dir may have such a name, too, as ``kafka-logs-1``."""
    name = parse_partition_dir_name(path.name)
    return name.topic_partition if name is not None and is_there(path.parent / META_PROPERTIES) else None


def _open_log_dir(
    source: str, scope: Scope, facts: ClusterFacts | None, sources: Sources, wanted: Callable[[TopicPartition], bool]
) -> tuple[LogDir, ClusterMetadata]:
    """Return a source with what the running cluster, or a metadata log, says of its topics."""
    listed = open_source(source, sources, topics=wanted, topic_ids=scope.topic_ids, counts=scope.counts)
    metadata = scope.metadata(source)
    listed = with_strays(listed, metadata.unknown)
    if facts is not None:
        topics = {partition.topic_partition.topic for partition in listed.partitions}
        listed = with_facts(listed, scope.with_refused(facts, topics))
    return with_topic_ids(listed, metadata.image), metadata


def joined_once(scope: Scope, sources: Sources) -> Scope:
    """Return ``scope`` with its remote storage listed for all its sources, so that each can be read alone.

    Sources that cannot be opened are reported where they are read.
    """
    log_dirs = []
    for source in scope.sources if scope.remote is not None else ():
        with suppress(ResnapError):
            log_dirs.append(_open_log_dir(source, scope, None, sources, scope.wants_partition)[0])
    return replace(scope, joining=_joining(scope, log_dirs, sources)) if log_dirs else scope


def _joining(scope: Scope, log_dirs: Sequence[LogDir], sources: Sources) -> Joining | None:
    """Return what the remote storage in scope holds of ``log_dirs``, less what brokers' metadata say not to read.

    Raises:
        UsageError: nothing that is read as a log is there.
        StoreError, ClusterError: it, or the metadata, cannot be read.

    """
    if scope.remote is None:
        return None
    wanted = [partition for log_dir in log_dirs for partition in log_dir.partitions]
    known = _known(scope, wanted, sources)
    stored = open_tiered(
        scope.remote,
        sources,
        topics={partition.topic_partition for partition in wanted}.__contains__,
        topic_ids={one.topic_partition.topic: one.topic_id for one in wanted if one.topic_id is not None},
        counts=known.counts,
    )
    whole = replace(stored, problems=(*stored.problems, *known.problems))
    return Joining(url=scope.remote, stored=whole, sources=sources, known=known.between)


def _known(scope: Scope, wanted: Sequence[PartitionDir], sources: Sources) -> KnownSegments:
    """Return what ``__remote_log_metadata`` says: of the running cluster, where it has one, else of the log dirs."""
    if scope.connect is not None:
        with scope.connect() as cluster:
            if (live := known_by(cluster, wanted)) is not None:
                return live
    return _known_in_log_dirs(scope, sources)


def _known_in_log_dirs(scope: Scope, sources: Sources) -> KnownSegments:
    return known_in(
        open_source(source, sources, topics=lambda one: one.topic == METADATA_TOPIC)
        for source in dict.fromkeys((*scope.sources, *scope.beside))
        if not is_store_url(source)
    )


def _remote_end(known: Callable[[], KnownSegments], partition: PartitionDir, sources: Sources) -> int | None:
    with suppress(ResnapError):  # what of a log dir cannot be read is reported where it is selected
        return known().end(partition, sources)
    return None


def warn_of_gaps(scope: Scope, selection: Selection, warn: Callable[[str], None]) -> None:
    """Warn of names that the selection has nothing of, and of leaders of its partitions that do not answer."""
    found = {selected.topic_partition for selected in selection.partitions}
    found |= {problem.topic_partition for problem in selection.problems if problem.topic_partition is not None}
    globs, partitions = scope.unmatched(found)
    where = ", ".join(scope.sources)
    for glob in globs:
        warn(f"no topic in {where} matches {scope.topic_flag} {glob}")
    for partition in partitions:
        warn(f"no partition {partition} in {where}")
    leaders = {selected.live_facts.leader for selected in selection.partitions if selected.live_facts is not None}
    for leader, why in selection.silent.items():
        if leader in leaders:
            warn(f"of partitions that broker {leader} leads the files here alone count: {why}")


def high_watermark_of(scope: Scope, selection: Selection, sources: Sources, warn: Callable[[str], None]) -> int | None:
    """Return the high watermark that was given for the one partition in scope, at most its log end; None if none was.

    Warns if it is above the one that the checkpoint or the leader has, or above the log end.
    """
    if (given := scope.high_watermark) is None:
        return None
    for selected in selection.partitions:
        partition, name = selected.inventory.partition, selected.topic_partition
        known, last = partition.high_watermark, partition.segments[-1] if partition.segments else None
        if known is not None and given > known:
            warn(
                f"{name}: --high-watermark {given} is above the known one, {known}: records above that may not be on"
                " all in-sync replicas, and another leader may not have them"
            )
        with suppress(ResnapError):  # what cannot be read is refused by itself
            if last and last.base_offset < given > (end := log_end(last.path, last.base_offset, sources)):
                warn(f"{name}: --high-watermark {given} is above the log end offset, {end}, which is used")
                return end
    return given


_OF_EXPRESSIONS = frozenset("^$|()+\\/")
"""What regular expressions have, and the names of topics and globs have not."""


def nothing_in(scope: Scope) -> NothingInScopeError:
    """Return the error of a scope without a partition."""
    where = ", ".join(scope.sources)
    lists = f"`resnap scan {shlex.join(scope.sources)} --output json` lists what is there"
    what, hint = f"no partition in {where}", "compare with log.dirs in the broker's server.properties"
    if scope.partitions:
        what, hint = f"none of {', '.join(scope.partitions[:5])} is in {where}", lists
        if not all(map(parse_partition_dir_name, scope.partitions)):
            hint = f"a partition is TOPIC-NUMBER, such as payments-0; {hint}"
    elif scope.topics:
        what, hint = f"no topic in {where} matches {scope.topic_flag} {' or '.join(scope.topics)}", lists
        if any(map(parse_partition_dir_name, scope.topics)):
            hint = f"a partition, such as payments-0, is chosen by --partition; {hint}"
        elif not _OF_EXPRESSIONS.isdisjoint("".join(scope.topics)):
            hint = f"a topic is chosen by its name or a glob, such as 'pay*', not by an expression; {hint}"
    elif (metadata_log := find_metadata_log(scope.sources)) is not None:
        what = f"no partition of a topic in {where}, only the metadata log: it is a controller's, or a new broker's"
        shows = f"`resnap controller image {shlex.quote(str(metadata_log))}` shows the log"
        hint = f"give the log.dirs of a broker; {shows}"
    return NothingInScopeError(what, hint=hint)


def _add(partitions: dict[TopicPartition, SelectedPartition], selected: SelectedPartition) -> None:
    other = partitions.setdefault(selected.topic_partition, selected)
    path, other_path = selected.inventory.partition.path, other.inventory.partition.path
    if path != other_path:
        hint = "the boundaries of a partition differ between its replicas: give one of them"
        brokers = {(side.log_dir.cluster_id, side.log_dir.broker_id) for side in (selected, other)}
        if len(brokers) == 1 and None not in brokers.copy().pop():
            hint = "a broker does not start with both: before it starts, move one to a place outside its log dirs"
        raise UsageError(f"{selected.topic_partition} is in {other_path} and {path}", hint=hint)
