"""The connection to a running cluster, through the library kafka-python.

Every error of the library becomes a ``ClusterError`` that names the request. Nothing is cached: facts that protect a
step are requested directly before it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias

from resnap.storage.errors import ClusterError
from resnap.storage.kafka_errors import KafkaError
from resnap.tiering.cluster.connecting import SETUP_TIMEOUT_S, bound_handshakes, connect_in_time, reach
from resnap.tiering.cluster.facts import ClusterFacts, TopicFacts, setting_values, topic_facts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from resnap.storage.log.names import TopicPartition

Connect: TypeAlias = Callable[[], AbstractContextManager["Cluster"]]
"""Gives a connection to a cluster while the context lasts."""
_PATIENCE_MS: Final = 30_000
_POLL_MS: Final = 500
_NO_EPOCH: Final = -1
_FETCH_BYTES: Final = 65_536
"""What a fetch for a single record asks for; a larger batch comes whole."""
_TRIES: Final = 5
"""How many brokers are tried for a request that any can answer: some may have died since, or hang."""
_TOPIC_RESOURCE: Final = 2
_UNCOMMITTED, _COMMITTED = 0, 1
"""Isolation levels."""
_HINT: Final = "check --bootstrap-server and --command-config, and that brokers answer"
_TOO_OLD: Final = "brokers of this release do not know the request; give log dirs instead, if the command takes them"


class EpochEnd(NamedTuple):
    """The end offset of a leader epoch in the leader's log."""

    epoch: int
    """The requested epoch, or the largest one below it that the leader knows."""
    end_offset: int


class Cluster:
    """A connection to a cluster; to be closed."""

    def __init__(
        self,
        bootstrap: str,
        settings: Mapping[str, object],
        *,
        setup_timeout_s: float = SETUP_TIMEOUT_S,
        patience_ms: int = _PATIENCE_MS,
    ) -> None:
        """Connect to the brokers at ``bootstrap``; ``settings`` are the library's.

        A broker has ``setup_timeout_s`` to accept the connection, and counts as dead if it does not respond for
        ``patience_ms`` after that.

        Raises:
            UsageError: ``bootstrap`` is not a list of addresses.
            ClusterError: no broker answers.

        """
        import kafka  # takes a third of a second, so only if a cluster is configured

        self._kafka = kafka
        bound_handshakes()
        servers = bootstrap.split(",")
        self._config = {"bootstrap_servers": servers, **settings}
        self._patience_ms = patience_ms
        self._open = ExitStack()
        reach(servers, setup_timeout_s)
        self._admin: Any = connect_in_time(
            lambda wait_ms, some: _new_client(
                kafka.KafkaAdminClient, bootstrap_timeout_ms=wait_ms, **self._config | {"bootstrap_servers": some}
            ),
            (kafka.errors.KafkaError, OSError),
            servers,
            patience_ms,
        )
        self._open.callback(self._admin.close)
        self._producer: Any = None
        self._answers: int | None = None
        """The broker that last answered a request that any can answer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._open.close()

    def facts(self, wants: Callable[[str], bool], names: Collection[str] = ()) -> ClusterFacts:
        """Return the cluster's facts of the wanted topics.

        Brokers list no topic that the user may not describe: those of ``names`` that are missing are asked for by name.

        Raises:
            ClusterError: it does not answer.

        """
        with _translate_errors("cannot describe the topics"):
            listed = self._described()
            described = [topic for topic in listed if wants(topic["name"])]
            settings, refused = self._settings([topic["name"] for topic in described])
            offsets, silent = self._offsets(described)
        topics = {topic["name"]: topic_facts(topic, settings.get(topic["name"], {}), offsets) for topic in described}
        hidden = self.hidden(set(names) - {topic["name"] for topic in listed})
        return ClusterFacts(cluster_id=self.cluster_id(), topics=topics, refused=refused | hidden, silent=silent)

    def describe_topics(self) -> list[dict[str, Any]]:
        """Return what brokers say of all topics, in the library's form.

        Raises:
            ClusterError: the cluster does not answer.

        """
        with _translate_errors("cannot describe the topics"):
            return self._described()

    def hidden(self, names: Collection[str]) -> dict[str, str]:
        """Return those of ``names`` that the user may not describe, with the error.

        Raises:
            ClusterError: the cluster does not answer.

        """
        if not names:
            return {}
        with _translate_errors("cannot describe the topics"):
            answers = self._described(sorted(names))
        return {
            answer["name"]: error_name(answer["error_code"]) for answer in answers if _is_refusal(answer["error_code"])
        }

    def topic(self, name: str) -> TopicFacts | None:
        """Return one topic with its settings and leaders, without offsets: cheap enough for repeated requests.

        Raises:
            ClusterError: the cluster does not answer.

        """
        with _translate_errors(f"{name}: cannot describe the topic"):
            described = [topic for topic in self._described([name]) if not topic["error_code"]]
            settings, _ = self._settings([topic["name"] for topic in described])
        return next((topic_facts(topic, settings.get(name, {}), {}) for topic in described), None)

    def topic_settings(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return the effective settings of topics, by topic.

        Raises:
            ClusterError: the cluster does not answer.

        """
        with _translate_errors("cannot describe the settings of topics"):
            found, _ = self._settings(list(names))
        return {topic: setting_values(settings) for topic, settings in found.items()}

    def epoch_ends(self, of: TopicPartition, leader: int, epochs: Iterable[int]) -> dict[int, EpochEnd]:
        """Return the end offset of each of ``epochs`` in the leader's log.

        Raises:
            ClusterError: the leader does not answer.

        """
        return {epoch: self._epoch_end(of, leader, epoch) for epoch in epochs}

    def cluster_id(self) -> str | None:
        """Return the id of the cluster; None if brokers that are not Apache Kafka's give none.

        Raises:
            ClusterError: the cluster does not answer.

        """
        cluster_id: str | None = self._metadata().cluster_id
        return cluster_id

    def broker_ids(self) -> list[int]:
        """Return the ids of the running brokers.

        Raises:
            ClusterError: the cluster does not answer.

        """
        return sorted(broker.node_id for broker in self._metadata().brokers)

    def _metadata(self) -> Any:  # noqa: ANN401 - messages of the library
        """Return the response to a Metadata request without topics, which brokers of every release answer.

        The library's ``describe_cluster`` fails on the first version of DescribeCluster, of brokers from 2.8 to 3.6.
        """
        from kafka.protocol.metadata import MetadataRequest as Request

        return self.ask("cannot describe the brokers", Request(topics=[], allow_auto_topic_creation=False))

    def transactions(self, producer_ids: Iterable[int]) -> dict[str, Any]:
        """Return the library's description of the transactions of ``producer_ids``, by transactional id.

        Raises:
            ClusterError: the cluster does not answer, or is older than 3.0.

        """
        with _translate_errors("cannot describe transactions"):
            listed = self._admin.list_transactions(producer_id_filters=list(producer_ids))
            names = sorted({listing.transactional_id for of_broker in listed.values() for listing in of_broker})
            found: dict[str, Any] = self._admin.describe_transactions(names)
            return found

    def ask(self, what: str, request: Any, broker_id: int | None = None) -> Any:  # noqa: ANN401 - messages of the library
        """Send a message for which the library has no suitable call to a broker, or to any, and return the response.

        Raises:
            ClusterError: it does not answer; the error begins with ``what``.

        """
        with _translate_errors(what):
            return self._of_any(request) if broker_id is None else self._answer(request, broker_id)

    @contextmanager
    def admin(self, what: str) -> Iterator[Any]:
        """Give the library's own client; errors of what is called there begin with ``what``.

        Raises:
            ClusterError: the cluster does not answer.

        """
        with _translate_errors(what):
            yield self._admin

    @property
    def _unreachable(self) -> tuple[type[Exception], ...]:
        """What the library raises where one broker does not answer."""
        errors = self._kafka.errors
        return errors.KafkaConnectionError, errors.RequestTimedOutError, errors.NodeNotReadyError

    def _answer(self, request: Any, broker_id: int | None) -> Any:  # noqa: ANN401 - messages of the library
        manager = self._admin._manager  # noqa: SLF001
        try:
            return manager.run(manager.send, request, broker_id)
        except self._unreachable as error:
            broker = None if broker_id is None else manager.cluster.broker_metadata(broker_id)
            if broker is None:
                raise
            raise type(error)(f"broker {broker_id} at {broker.host}:{broker.port}: {_said(error)}") from error

    def _of_any(self, request: Any) -> Any:  # noqa: ANN401 - messages of the library
        """Return the response of any broker, trying the next one if one does not answer.

        The library's own choice may be a broker that accepts connections and hangs.
        """
        known = sorted(broker.node_id for broker in self._admin._manager.cluster.brokers())  # noqa: SLF001
        known.sort(key=lambda broker_id: broker_id != self._answers)
        for broker_id in islice(cycle(known), _TRIES - 1):
            with suppress(*self._unreachable):
                answer = self._answer(request, broker_id)
                self._answers = broker_id
                return answer
        return self._answer(request, None)

    def read(self, topic: str, partition: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield offset and value of every record of a partition, up to its current end.

        Raises:
            ClusterError: it cannot be read.

        """
        place = self._kafka.TopicPartition(topic, partition)
        with _translate_errors(f"cannot read {topic}-{partition}"), ExitStack() as closing:
            consumer = self._kafka.KafkaConsumer(
                group_id=None, enable_auto_commit=False, auto_offset_reset="earliest", **self._config
            )
            closing.callback(consumer.close)
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            end = consumer.end_offsets([place])[place]
            yield from self._read_to(end, consumer, place)

    def _read_to(self, end: int, consumer: Any, place: object) -> Iterator[tuple[int, bytes | None]]:  # noqa: ANN401
        """Yield the records below ``end``; if a broker is down, the library would wait for the longest time allowed."""
        heard_at = time.monotonic()
        while (reached := consumer.position(place)) < end:
            for record in consumer.poll(timeout_ms=_POLL_MS).get(place, ()):
                yield record.offset, record.value
            if consumer.position(place) > reached:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > self._patience_ms / 1000:
                raise TimeoutError(
                    f"no record arrived for {self._patience_ms / 1000:g} s at offset {reached}, before {end}"
                )

    def timestamps(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the timestamp of the first record from an offset on, by partition; none where no record arrives.

        Raises:
            ClusterError: the cluster does not answer.

        """
        places = {self._kafka.TopicPartition(of.topic, of.partition): of for of in offsets}
        found: dict[TopicPartition, int] = {}
        if not places:
            return found
        with _translate_errors("cannot read the timestamps of records"), ExitStack() as closing:
            consumer = self._kafka.KafkaConsumer(
                group_id=None, enable_auto_commit=False, max_partition_fetch_bytes=_FETCH_BYTES, **self._config
            )
            closing.callback(consumer.close)
            consumer.assign(list(places))
            for place, of in places.items():
                consumer.seek(place, offsets[of])
            heard_at = time.monotonic()
            while len(found) < len(places) and time.monotonic() - heard_at < self._patience_ms / 1000:
                for place, records in consumer.poll(timeout_ms=_POLL_MS).items():
                    found.setdefault(places[place], records[0].timestamp)
                    consumer.pause(place)
                    heard_at = time.monotonic()
        return found

    def first_since(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        """Return offset and timestamp of the first record at or after a time, by partition; none where there is none.

        Raises:
            ClusterError: the cluster does not answer.

        """
        places = {self._kafka.TopicPartition(of.topic, of.partition): of for of in times_ms}
        if not places:
            return {}
        with _translate_errors("cannot get offsets by time"):
            answer = self._admin.list_partition_offsets({place: times_ms[of] for place, of in places.items()})
        return {places[place]: (one.offset, one.timestamp) for place, one in answer.items() if one.offset >= 0}

    def publish(self, topic: str, partition: int, value: bytes) -> int:
        """Append a record without a key, wait for all in-sync replicas, and return its offset.

        Raises:
            ClusterError: the record may be missing.

        """
        with _translate_errors(f"cannot write to {topic}-{partition}"):
            if self._producer is None:
                self._producer = self._kafka.KafkaProducer(acks="all", enable_idempotence=True, **self._config)
                self._open.callback(self._producer.close)
            sent = self._producer.send(topic, value=value, partition=partition)
            return int(sent.get(timeout=self._patience_ms / 1000).offset)

    def _described(self, names: list[str] | None = None) -> list[dict[str, Any]]:
        """Return what brokers say of ``names``, or of all topics."""
        from kafka.protocol.metadata import MetadataRequest as Request

        topics = None if names is None else [Request.MetadataRequestTopic(name=name) for name in names]
        answer = self._of_any(Request(topics=topics, allow_auto_topic_creation=False))
        found: list[dict[str, Any]] = answer.to_dict()["topics"]
        return found

    def _settings(self, topics: list[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return the settings of ``topics``, by name: values, and where each is set; and by topic why it has none.

        The library's ``describe_configs`` passes over errors of single topics.
        """
        from kafka.protocol.admin.configs import DescribeConfigsRequest as Request

        if not topics:
            return {}, {}
        request = Request(resources=[(_TOPIC_RESOURCE, topic, None) for topic in topics])
        results = self._of_any(request).results
        found = {
            result.resource_name: {entry.name: entry for entry in result.configs if entry.value is not None}
            for result in results
        }
        refused = {one.resource_name: error_name(one.error_code) for one in results if _is_refusal(one.error_code)}
        return found, refused

    def _offsets(self, described: list[dict[str, Any]]) -> tuple[dict[str, dict[tuple[str, int], int]], dict[int, str]]:
        """Return the offsets of all partitions whose leader answers, by what they are; and why other leaders do not.

        One broker that cannot be reached must not hide what the others say.
        """
        from kafka.admin import OffsetSpec

        led: dict[int, list[Any]] = defaultdict(list)
        for topic in described:
            for partition in topic["partitions"]:
                if partition["leader_id"] >= 0:
                    place = self._kafka.TopicPartition(topic["name"], partition["partition_index"])
                    led[partition["leader_id"]].append(place)
        asked = {
            "log_start_offset": (OffsetSpec.EARLIEST, _UNCOMMITTED),
            "high_watermark": (OffsetSpec.LATEST, _UNCOMMITTED),
            "last_stable_offset": (OffsetSpec.LATEST, _COMMITTED),
            "local_start_offset": (OffsetSpec.EARLIEST_LOCAL, _UNCOMMITTED),
            "remote_end_offset": (OffsetSpec.LATEST_TIERED, _UNCOMMITTED),
        }
        found: dict[str, dict[tuple[str, int], int]] = {what: {} for what in asked}
        silent: dict[int, str] = {}
        for leader, places in led.items():
            try:
                of_leader = {what: self._list_offsets(leader, places, *how) for what, how in asked.items()}
            except self._unreachable as error:
                silent[leader] = _why(error)
                continue
            for what, offsets in of_leader.items():
                found[what] |= offsets
        tiered = found["remote_end_offset"]
        found["remote_end_offset"] = {place: last + 1 for place, last in tiered.items()}
        return found, silent

    def _list_offsets(self, leader: int, places: list[Any], spec: object, level: int) -> dict[tuple[str, int], int]:
        from kafka.errors import NotLeaderForPartitionError, UnsupportedVersionError

        asked = dict.fromkeys(places, spec)
        try:
            request = self._admin._list_partition_offsets_request(asked, level)  # noqa: SLF001
            answer = self._admin._list_partition_offsets_process_response(self._answer(request, leader))  # noqa: SLF001
        except UnsupportedVersionError:
            return {}
        except NotLeaderForPartitionError:  # it leads no longer what it led when the topics were described
            answer = self._admin.list_partition_offsets(asked, isolation_level=level)
        return {(place.topic, place.partition): one.offset for place, one in answer.items()}

    def _epoch_end(self, of: TopicPartition, leader: int, epoch: int) -> EpochEnd:
        from kafka.protocol.consumer import OffsetForLeaderEpochRequest as Request

        one = Request.OffsetForLeaderTopic.OffsetForLeaderPartition(
            partition=of.partition, current_leader_epoch=_NO_EPOCH, leader_epoch=epoch
        )
        topic = Request.OffsetForLeaderTopic(topic=of.topic, partitions=[one])
        what = f"{of}: cannot get the leader epochs"
        end = self.ask(what, Request(replica_id=-1, topics=[topic]), leader).topics[0].partitions[0]
        if end.error_code:
            raise ClusterError(f"{what}: {error_name(end.error_code)}", hint=_HINT)
        return EpochEnd(end.leader_epoch, end.end_offset)


def _new_client(client: Any, **config: object) -> Any:  # noqa: ANN401 - classes of the library
    """Return a client of the library; if creating it fails, close what it has opened so far."""
    made = client.__new__(client)
    try:
        made.__init__(**config)
    except BaseException:
        with suppress(Exception):  # what another release of the library says here must not hide the error itself
            made._closed = False  # noqa: SLF001 - the library takes what never came to be for closed
            made.close()
        raise
    return made


def error_name(code: int) -> str:
    """Return Kafka's name of an error, such as ``NOT_LEADER_OR_FOLLOWER``."""
    from kafka.errors import kafka_errors

    if code in tuple(KafkaError):
        return KafkaError(code).name
    return kafka_errors[code].message if code in kafka_errors else f"error {code}"


def _is_refusal(error_code: int) -> bool:
    return error_code == KafkaError.TOPIC_AUTHORIZATION_FAILED


@contextmanager
def _translate_errors(what: str) -> Iterator[None]:
    """Translate the library's errors into ours."""
    from kafka import errors

    try:
        yield
    except (errors.KafkaError, OSError, TimeoutError) as error:
        why = _why(error)
        hint = _TOO_OLD if isinstance(error, errors.UnsupportedVersionError) else _HINT
        raise ClusterError(f"{what}: {why}", hint=hint) from error


def _why(error: Exception) -> str:
    """Return the kind of error and what it says."""
    said = _said(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _said(error: Exception) -> str:
    """Return what an error says; the library's begin with their kind."""
    return str(error).removeprefix(type(error).__name__).removeprefix(": ")
