"""Collects the scans of replicas from the services beside the brokers, in parallel and with a deadline.

A service that refuses, times out, or sends an invalid response is an error of its broker only. Unchanged pages are not
sent again. The token is read from its file each time, is used only in the header, and appears in no message; redirects
are not followed.
"""

from __future__ import annotations

import http.client
import re
import ssl
import sys
import threading
import time
from collections import defaultdict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from resnap.scheduler.clock import milliseconds
from resnap.storage.stores.urls import is_store_url
from resnap.storage.words import human_bytes, human_duration, instant
from resnap.tiering.fleet import BrokerReplicas, ScannedReplica
from resnap.tiering.judging.readiness import Verdict
from resnap.tiering.judging.refusal import UnblockedBy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from resnap.scheduler.settings.service import FleetEntry

SERVICES_AT_ONCE: Final = 32
PAGE: Final = 500
"""Partitions of a page, as many as the API gives."""
STALE_MS: Final = 24 * 3_600_000
"""What a scan saw so long ago is not known any more."""
_PAUSE_S: Final = 10.0
"""How long a service may say nothing."""
_DEADLINE_S: Final = 60.0
"""How long it may take for everything."""
_LARGEST_BYTES: Final = 16 << 20
"""The most bytes of a page."""
_MOST_PAGES: Final = 2_000
_LONGEST: Final = 500
"""The most characters of a text that a service gives."""
_READ_BYTES: Final = 64 << 10
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_VERDICTS: Final = {verdict.value: verdict for verdict in Verdict}
_UNBLOCKED_BY: Final = {unblocker.value: unblocker for unblocker in UnblockedBy}


class _Answer(BaseModel):
    """Camel case outside; what a newer service says besides is ignored."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True)


class _Source(_Answer):
    source: str
    scanned: AwareDatetime | None
    error: str | None


class _Sources(_Answer):
    sources: list[_Source]


class _Partition(_Answer):
    source: str
    topic: str
    partition: int
    verdict: str = ""
    """Empty from a service of a release before this word."""
    unblocked_by: str | None = None
    reason: str | None
    detail: str
    next_step: str
    missing: int


class _Partitions(_Answer):
    partitions: list[_Partition]
    next_cursor: str | None


_Parsed = TypeVar("_Parsed", bound=_Answer)


class _Page(NamedTuple):
    """A page as it was last sent."""

    etag: str | None
    replicas: Sequence[tuple[str, int, ScannedReplica]]
    """The replicas by topic and partition."""
    next_cursor: str | None


class _AnswerError(Exception):
    """A service has sent an invalid response."""


_Collected: TypeAlias = Future[tuple[BrokerReplicas, dict[str, _Page]]]


@dataclass(slots=True, kw_only=True)
class Collector:
    """Collects repeatedly, and caches unchanged pages; one collection at a time."""

    now_ms: Callable[[], int]
    _pages: dict[FleetEntry, dict[str, _Page]] = field(default_factory=dict)

    def collect(self, entries: Sequence[FleetEntry]) -> list[BrokerReplicas]:
        """Return the report of each service, in the order of ``entries``, or the reason why there is none."""
        answers = [(entry, _Collected()) for entry in entries]
        left = deque(answers)
        for _ in range(min(SERVICES_AT_ONCE, len(entries))):
            # Unlike those of a pool, these keep no process from its end.
            threading.Thread(target=self._work, args=(left,), name="resnap-fleet", daemon=True).start()
        found = [future.result() for _, future in answers]
        self._pages = {entry: pages for entry, (_, pages) in zip(entries, found, strict=True)}
        return [broker for broker, _ in found]

    def _work(self, left: deque[tuple[FleetEntry, _Collected]]) -> None:
        """Query one service after the other, until none is left."""
        while True:
            try:
                entry, future = left.popleft()
            except IndexError:
                return
            try:
                future.set_result(self._collect(entry))
            except BaseException as error:  # noqa: BLE001 - for the thread that waits
                future.set_exception(error)

    def _collect(self, entry: FleetEntry) -> tuple[BrokerReplicas, dict[str, _Page]]:
        """Return the report of a service, and its pages by path."""
        try:
            service = _Service(entry)
            try:
                scanned = _oldest_scan(service, self.now_ms())
                pages = dict(_pages(service, self._pages.get(entry, {})))
            finally:
                service.close()
        except (_AnswerError, OSError, UnicodeError, http.client.HTTPException) as error:
            why = f"broker {entry.broker}: {entry.url}: {_in_words(error)}"
            return BrokerReplicas(broker_id=entry.broker, error=why), {}
        topics = _by_topic(replica for page in pages.values() for replica in page.replicas)
        return BrokerReplicas(broker_id=entry.broker, topics=topics, scanned=scanned), pages


class _Service:
    """A connection to one service."""

    def __init__(self, entry: FleetEntry) -> None:
        parts = urlsplit(entry.url)
        self._prefix, self._ends_s = parts.path, time.monotonic() + _DEADLINE_S
        self._headers = {"Accept": "application/json"}
        if entry.token_file is not None:
            self._headers["Authorization"] = f"Bearer {_token_in(entry.token_file)}"
        host, port = str(parts.hostname), parts.port
        if parts.scheme == "https":
            context = _trusting(entry.ca_file)
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=_PAUSE_S, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=_PAUSE_S)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def get(self, path: str, etag: str | None = None) -> tuple[bytes | None, str | None]:
        """Return the content of ``path`` with its ETag; None if it still has ``etag``."""
        more = {} if etag is None else {"If-None-Match": etag}
        self._connection.request("GET", self._prefix + path, headers={**self._headers, **more})
        with self._connection.getresponse() as answer:
            body = self._body(answer)
            if answer.status == HTTPStatus.NOT_MODIFIED and etag is not None:
                return None, etag
            if answer.status != HTTPStatus.OK:
                raise _AnswerError(_refusal_text(answer.status))
            return body, answer.getheader("ETag")

    def _body(self, answer: http.client.HTTPResponse) -> bytes:
        body = bytearray()
        while part := answer.read1(_READ_BYTES):
            body += part
            if len(body) > _LARGEST_BYTES:
                raise _AnswerError(f"a page of more than {human_bytes(_LARGEST_BYTES)}")
            if time.monotonic() > self._ends_s:
                raise _AnswerError(f"not done within {_DEADLINE_S:g} s")
        return bytes(body)


def _oldest_scan(service: _Service, now_ms: int) -> str:
    """Return the end of the oldest scan; sources in stores belong to no broker and do not count."""
    body, _ = service.get("/v1/sources")
    sources = [source for source in _parse(_Sources, body).sources if not is_store_url(source.source)]
    if not sources:
        raise _AnswerError("it has scanned nothing yet")
    for source in sources:
        if source.error is not None or source.scanned is None:
            raise _AnswerError(
                f"it could not scan {_shorten(source.source)}: {_shorten(source.error or 'nothing was seen yet')}"
            )
    oldest_ms = min(milliseconds(source.scanned) for source in sources if source.scanned is not None)
    if now_ms - oldest_ms > STALE_MS:
        raise _AnswerError(f"its last scan was {human_duration((now_ms - oldest_ms) / 1000)} ago")
    return instant(oldest_ms)


def _pages(service: _Service, known: Mapping[str, _Page]) -> Iterator[tuple[str, _Page]]:
    """Yield every page of partitions by its path; unchanged ones from ``known``."""
    path = f"/v1/partitions?limit={PAGE}"
    for _ in range(_MOST_PAGES):
        before = known.get(path)
        body, etag = service.get(path, None if before is None else before.etag)
        page = before if body is None and before is not None else _page(_parse(_Partitions, body), etag)
        yield path, page
        if page.next_cursor is None:
            return
        path = f"/v1/partitions?limit={PAGE}&cursor={quote(page.next_cursor, safe='')}"
    raise _AnswerError(f"its list of partitions has more than {_MOST_PAGES} pages")


def _page(answer: _Partitions, etag: str | None) -> _Page:
    return _Page(
        etag=etag,
        replicas=[
            (sys.intern(_shorten(partition.topic)), partition.partition, _replica(partition))
            for partition in answer.partitions
            if not is_store_url(partition.source)
        ],
        next_cursor=answer.next_cursor,
    )


def _replica(one: _Partition) -> ScannedReplica:
    if one.verdict not in _VERDICTS:
        raise _AnswerError(f"verdict {_shorten(one.verdict)!r} is unknown: the service is of another release")
    return ScannedReplica(
        verdict=_VERDICTS[one.verdict],
        unblocked_by=_UNBLOCKED_BY.get(one.unblocked_by or ""),
        reason=None if one.reason is None else sys.intern(_shorten(one.reason)),
        detail=sys.intern(_shorten(one.detail)),
        hint=sys.intern(_shorten(one.next_step)),
        missing=one.missing,
    )


def _by_topic(replicas: Iterable[tuple[str, int, ScannedReplica]]) -> dict[str, dict[int, ScannedReplica]]:
    """Return replicas by topic and partition; if one is in several log dirs, the worst."""
    found: dict[str, dict[int, ScannedReplica]] = defaultdict(dict)
    for topic, partition, replica in replicas:
        known = found[topic].get(partition)
        found[topic][partition] = replica if known is None else replica.or_worse(known)
    return dict(found)


def _parse(kind: type[_Parsed], body: bytes | None) -> _Parsed:
    try:
        return kind.model_validate_json(body or b"")
    except ValidationError as error:
        raise _AnswerError("its response is not one of a Resnap service") from error


def _token_in(path: Path) -> str:
    token = path.read_bytes().decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise _AnswerError(f"{path} does not hold a token")
    return token


def _trusting(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError as error:
        raise _AnswerError(f"{ca_file} does not hold certificates in PEM") from error


def _refusal_text(status: int) -> str:
    why = {
        HTTPStatus.UNAUTHORIZED: ": it needs a valid token of that service, in token-file",
        HTTPStatus.FORBIDDEN: ": the token's role is not sufficient",
        HTTPStatus.MISDIRECTED_REQUEST: ": it does not accept this host name, see allow-hosts",
    }
    known = f" {HTTPStatus(status).phrase}" if status in set(HTTPStatus) else ""
    return f"it answers {status}{known}{why.get(HTTPStatus(status), '') if known else ''}"


def _in_words(error: Exception) -> str:
    """Return why there is no response; nothing that the other side has sent is repeated."""
    if isinstance(error, _AnswerError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no answer within {_PAUSE_S:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}; ca-file names those that are"
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{(error.strerror or type(error).__name__).lower()}"
    return f"it does not speak HTTP as expected ({type(error).__name__})"


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
