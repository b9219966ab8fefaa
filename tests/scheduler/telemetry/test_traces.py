"""Traces, as a collector on loopback gets them: off nothing is imported, on the work is cut as it was done."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, NamedTuple

import pytest

from resnap.scheduler.telemetry.traces import export_spans, is_asked_for
from resnap.storage.spans import span
from tests.scheduler.api.whole import whole
from tests.scheduler.files import flip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Span(NamedTuple):
    """One span, as it was sent."""

    service: str
    id: bytes
    parent: bytes
    name: str
    attributes: dict[str, str | int]
    took_ns: int
    error: str


@dataclass(slots=True)
class Collector:
    """What was sent."""

    address: str = ""
    spans: list[Span] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        """Keep the spans of one request."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (  # noqa: PLC0415
            ExportTraceServiceRequest,
        )

        for of in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(one.value.string_value for one in of.resource.attributes if one.key == "service.name")
            for one in (one for scope in of.scope_spans for one in scope.spans):
                attributes = {each.key: each.value.string_value or each.value.int_value for each in one.attributes}
                took_ns = one.end_time_unix_nano - one.start_time_unix_nano
                self.spans.append(
                    Span(service, one.span_id, one.parent_span_id, one.name, attributes, took_ns, one.status.message)
                )

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name."""
        return [one for one in self.spans if one.name == name]


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            found.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_command_is_a_span_with_its_partitions_and_they_have_their_segments(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    data, store = fixture_set("kafka-2.7.2").data, (tmp_path / "store").as_uri()
    with collector() as sent:
        ran = command("tier", data, "--to", store, "--engine", "local", "--as-of", "roll", "--output", "json",
                      **{ENDPOINT: sent.address})  # fmt: skip
    (root,) = (one for one in sent.spans if not one.parent)
    assert (root.name, root.service, root.attributes) == ("resnap tier", "resnap", {"resnap.exit_code": ran.code})
    shipped = {f"{one['topic']}-{one['partition']}": len(one["shipped"]) for one in ran.document["partitions"]}
    partitions = {one.id: one for one in sent.named("ship partition")}
    assert {partition.parent for partition in partitions.values()} == {root.id}
    segments = sent.named("ship segment")
    counted = Counter(str(partitions[segment.parent].attributes["resnap.partition"]) for segment in segments)
    assert counted == {name: count for name, count in shipped.items() if count}
    assert sum(int(segment.attributes["resnap.bytes"]) for segment in segments) > 0
    assert all(0 < one.took_ns <= root.took_ns for one in (*segments, *partitions.values()))
    replayed = sent.named("replay partition")
    assert {str(one.attributes["resnap.partition"]) for one in replayed} >= set(counted)
    assert {one.parent for one in replayed} == {root.id}


def test_runs_of_the_service_are_traces_of_their_own(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as sent:
        monkeypatch.setenv(ENDPOINT, sent.address)
        data = fixture_set("kafka-2.7.2").data
        with (
            export_spans({ENDPOINT: sent.address}, pytest.fail),
            whole(tmp_path, data) as service,
            service.client() as client,
        ):
            body = {"destination": f"{service.directory}/out"}
            run = service.over(client, client.post("/v1/replays", json=body).headers["location"])
    roots = {one.name: one for one in sent.spans if not one.parent}
    assert set(roots) == {"run scan", "run regenerate"}
    said = {"resnap.run": run["id"], "resnap.origin": "api", "resnap.state": "succeeded"}
    assert roots["run regenerate"].attributes == said
    assert {one.parent for one in sent.named("replay partition")} == {roots["run regenerate"].id}


def test_what_fails_says_so(command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path) -> None:
    with collector() as sent:
        assert command("scan", tmp_path / "nowhere", **{ENDPOINT: sent.address}).code == 2
        assert command("scan", fixture_set("kafka-2.7.2").data, "--exit-code", **{ENDPOINT: sent.address}).code == 4
        damaged = tmp_path / f"{0:020}.log"
        damaged.write_bytes((fixture_set("kafka-2.7.2").data / "payments-0" / damaged.name).read_bytes())
        flip(damaged, 109 + 16)  # the magic of the second batch
        dumped = command("inspect", damaged, "--output", "dump-log", **{ENDPOINT: sent.address})
        shown = command("inspect", damaged, **{ENDPOINT: sent.address})
    spans = [(one.error, one.attributes) for one in sent.spans]
    code = {"resnap.exit_code": shown.code}
    assert spans == [("NoLogDirError", {}), ("", {"resnap.exit_code": 4}), ("", code), ("", code)]
    assert (dumped.code, shown.code, "baseOffset: 0 " in dumped.out) == (1, 1, True)


def test_without_an_endpoint_nothing_of_it_is_imported(fixture_set: Callable[[str], FixtureSet]) -> None:
    code = (
        "import sys\nfrom resnap.scheduler.cli import run\nassert run(sys.argv[1:]) == 0\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    words = [sys.executable, "-c", code, "scan", str(fixture_set("kafka-2.7.2").data), "--quiet"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, env={"HOME": "/nowhere"})
    assert ran.stdout.splitlines()[-1] == "[]"
    with span("nothing", happens=1):
        pass


def test_variables_switch_it_on_and_off_and_another_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    on = {ENDPOINT: "http://127.0.0.1:1"}
    assert is_asked_for(on)
    assert is_asked_for({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"})
    for off in ({}, {**on, "OTEL_SDK_DISABLED": "true"}, {**on, "OTEL_TRACES_EXPORTER": "none"}, {ENDPOINT: ""}):
        assert not is_asked_for(off), off
    said: list[str] = []
    with export_spans({**on, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, said.append):
        pass
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with export_spans(on, said.append):
        pass
    assert [one.split(":")[0] for one in said] == ["no traces are sent"] * 2
    assert "[otel]" in said[1]
