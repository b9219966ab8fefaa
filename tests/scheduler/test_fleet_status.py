"""``resnap fleet status`` over real services, and over services that refuse, lie, hang and come back."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from resnap.scheduler.fleet import collecting
from resnap.scheduler.fleet.collecting import Collector
from resnap.scheduler.settings.service import FleetEntry
from resnap.scheduler.verbs.fleet import check_topics
from resnap.storage.errors import UsageError
from resnap.storage.log.names import TopicPartition
from resnap.tiering.cluster.replica_comparison import PartitionReplicas
from tests import schemas
from tests.clocks import FixedClock
from tests.kafka.brokers import free_port
from tests.scheduler.api.whole import whole
from tests.scheduler.services import Script, fleet_table, row, scripted, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.server import BaseHTTPRequestHandler
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

SECRET = "resnap_" + "s" * 43


def test_one_answer_comes_of_several_services_and_one_that_is_gone_makes_it_unknown(
    command: Resnap, fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    ready.mkdir()
    data = fixture_set("kafka-3.9.1-steady").data
    for name in ("meta.properties", "payments-0"):
        (shutil.copytree if (data / name).is_dir() else shutil.copy2)(data / name, ready / name)
    tables, configuration = "", tmp_path / "fleet.toml"
    with ExitStack() as stack:
        logs = (ready, ready, fixture_set("kafka-2.7.2").data)
        for broker, log_dir in enumerate(logs, 1):
            directory = tmp_path / str(broker)
            directory.mkdir()
            service = stack.enter_context(whole(directory, log_dir, auth="token"))
            (directory / "token").write_text(service.secrets["viewer"] + "\n")
            tables += fleet_table(broker, service.address, token=directory / "token")
        configuration.write_text(tables)
        ran = command("fleet", "status", "--config", configuration, "--output", "json")
        assert ran.code == 4, ran.err
        schemas.check("fleet-status", ran.document)
        topics = {topic["topic"]: topic for topic in ran.document["topics"]}
        assert topics["payments"]["verdict"] == "blocked"
        (blocker,) = topics["payments"]["blockers"]
        assert (blocker["reason"], blocker["brokers"]) == ("missing-snapshot", [3])
        assert topics["payments"]["verdicts"] == {"blocked": 2, "ready": 2}
        assert ran.document["summary"]["verdict"] == "blocked"
        assert [broker["error"] for broker in ran.document["summary"]["brokers"]] == [None] * 3
        table = command("fleet", "status", "--config", configuration, "--topic", "payments").out
        assert "missing-snapshot: 2 replicas" in table
        assert (
            "None of 1 topic is ready.\n1 blocked: payments.\nAsked: 3 brokers.\nNext: broker 3: payments-0: " in table
        )
        two = tables[: tables.index("\n[[fleet]]\nbroker = 3")]
        configuration.write_text(two)
        ran = command("fleet", "status", "--config", configuration, "--output", "json")
        assert (ran.code, ran.err) == (0, "")
        gone = f"http://127.0.0.1:{free_port()}"
        configuration.write_text(two + fleet_table(3, gone))
        ran = command("fleet", "status", "--config", configuration, "--output", "json")
        assert ran.code == 16
        assert [topic["verdict"] for topic in ran.document["topics"]] == ["unknown"]
        assert f"broker 3: {gone}: connection refused" in ran.error["message"]
        nobody = command("fleet", "status", "--config", configuration, "--topic", "nothing-like-it")
        assert nobody.code == 16
        assert "1 broker did not answer." in nobody.out
        assert "There is no topic" not in nobody.out
        configuration.write_text(two)
        assert command("fleet", "status", "--config", configuration, "--topic", "nothing-like-it").code == 2


def answering(status: int, body: bytes = b"{}", **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    return lambda handler: send(handler, status, body, **headers)


def sources(**fields: object) -> bytes:
    now = "2099-01-01T00:00:00.000Z"
    return json.dumps(
        {"sources": [{"source": "/data", "scanned": now, "tried": now, "error": None, **fields}]}
    ).encode()


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Answer a byte now and then, without an end."""
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" ")
        time.sleep(0.05)


def test_a_service_that_does_not_say_what_it_was_asked_for_is_not_known_and_nothing_of_it_is_repeated(
    command: Resnap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "_MOST_PAGES", 3)
    configuration, token = tmp_path / "resnap.toml", tmp_path / "token"
    token.write_text(SECRET)
    endless = json.dumps({"partitions": [row("payments", 0)], "nextCursor": "again"}).encode()
    strange = json.dumps({"partitions": [row("payments", 0, verdict="<b>")], "nextCursor": None}).encode()
    for path, answer, why in (
        ("/v1/sources", answering(401), "401 Unauthorized: it needs a valid token of that service"),
        ("/v1/sources", answering(421), "421 Misdirected Request: it does not accept this host name"),
        ("/v1/sources", answering(599), "it answers 599"),
        ("/v1/sources", answering(302, Location="http://127.0.0.1:1/steal"), "it answers 302 Found"),
        ("/v1/sources", answering(200, b"<html>" + SECRET.encode()), "its response is not one of a Resnap service"),
        ("/v1/sources", answering(200, b'{"sources": []}'), "it has scanned nothing yet"),
        ("/v1/sources", answering(200, sources(error="a disk is gone")), "could not scan /data: a disk is gone"),
        ("/v1/sources", answering(200, sources(scanned=None)), "could not scan /data: nothing was seen yet"),
        ("/v1/sources", answering(200, sources(scanned="2001-01-01T00:00:00Z")), "its last scan was"),
        ("/v1/partitions", answering(200, endless), "its list of partitions has more than 3 pages"),
        ("/v1/partitions", answering(200, strange), "verdict '<b>' is unknown"),
        ("/v1/partitions", answering(304), "it answers 304 Not Modified"),
    ):
        with scripted(Script(answers={path: answer})) as service, scripted(Script()) as other:
            tables = fleet_table(1, service.address, token=token) + fleet_table(2, other.address)
            configuration.write_text(tables)
            ran = command("fleet", "status", "--config", configuration, "--output", "json")
        assert ran.code == 16, why
        assert why in ran.error["message"], why
        assert [topic["verdict"] for topic in ran.document["topics"]] == ["unknown"], why
        assert SECRET not in ran.out + ran.err, why
        assert {headers["authorization"] for _, headers in service.asked} == {f"Bearer {SECRET}"}
        assert all("authorization" not in headers for _, headers in other.asked)


@pytest.mark.parametrize(("limit", "why"), [("_DEADLINE_S", "not done within"), ("_PAUSE_S", "no answer within")])
def test_a_service_is_waited_for_no_longer_than_it_may_take(
    command: Resnap, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, why: str
) -> None:
    over = threading.Event()
    monkeypatch.setattr(collecting, limit, 0.5)
    slow = Script(answers={"/v1/sources": drip if limit == "_DEADLINE_S" else lambda _: over.wait(60)})
    with scripted(slow) as service:
        (tmp_path / "resnap.toml").write_text(fleet_table(1, service.address))
        ran = command("fleet", "status", "--config", tmp_path / "resnap.toml", "--output", "json")
        over.set()
    assert (ran.code, f"{why} 0.5 s" in ran.error["message"]) == (16, True)


def test_a_token_file_that_holds_no_token_is_never_sent_and_never_shown(command: Resnap, tmp_path: Path) -> None:
    configuration, token = tmp_path / "resnap.toml", tmp_path / "token"
    with scripted(Script()) as service:
        configuration.write_text(fleet_table(1, service.address, token=token))
        for content in (None, "", "hush\nX-Other: 1", "h\xfcsh"):
            if content is not None:
                token.write_text(content, encoding="latin-1")
            ran = command("fleet", "status", "--config", configuration)
            assert (ran.code, "sh" in ran.out + ran.err.replace(str(tmp_path), "")) == (16, False)
            assert str(token) in ran.err
    assert service.asked == []


def test_certificates_are_judged_by_the_ca_file_alone(command: Resnap, tmp_path: Path) -> None:
    configuration, pems = tmp_path / "resnap.toml", [tmp_path / "one.pem", tmp_path / "two.pem"]
    for pem in pems:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        name = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
        made = ("openssl", "req", "-x509", *curve, *name, "-keyout", pem, "-out", f"{pem}.crt")
        subprocess.run(made, check=True, capture_output=True)
        with pem.open("a") as both:
            both.write(pem.with_name(f"{pem.name}.crt").read_text())
    with scripted(Script(), pems[0]) as service:
        for ca, code, why in (
            (pems[0], 0, ""),
            (pems[1], 16, "its certificate is not trusted"),
            (None, 16, "its certificate is not trusted"),
            (configuration, 16, "does not hold certificates in PEM"),
            (tmp_path / "none", 16, "no such file"),
        ):
            configuration.write_text(fleet_table(1, service.address, ca=ca))
            ran = command("fleet", "status", "--config", configuration)
            assert (ran.code, why in ran.err) == (code, True), (ca, ran.err)


def test_what_has_not_changed_is_not_sent_again_and_services_that_come_and_go_are_followed() -> None:
    def page(handler: BaseHTTPRequestHandler) -> None:
        body = json.dumps(script.body(handler.path)).encode()
        etag = f'"{hash(body)}"'
        is_known = handler.headers.get("If-None-Match") == etag
        sent.append((304, b"") if is_known else (200, body))
        send(handler, *sent[-1], ETag=etag)

    sent: list[tuple[int, bytes]] = []
    script, collector = Script(answers={"/v1/partitions": page}), Collector(now_ms=FixedClock(0).now_ms)
    with scripted(script) as service:
        entry = FleetEntry.model_validate({"broker": 1, "url": service.address})
        first, second = collector.collect([entry]), collector.collect([entry])
        assert first[0].topics == second[0].topics == collector.collect([entry])[0].topics
        assert [status for status, _ in sent] == [200, 304, 304]
        script.topics["orders"] = 2
        (changed,) = collector.collect([entry])
        assert {topic: len(replicas) for topic, replicas in changed.topics.items()} == {"payments": 1, "orders": 2}
    (gone,) = collector.collect([entry])
    assert (gone.topics, gone.error) == ({}, f"broker 1: {entry.url}: connection refused")


def test_a_fleet_table_is_judged_when_it_is_read(command: Resnap, tmp_path: Path) -> None:
    configuration = tmp_path / "resnap.toml"
    for table, why in (
        ("", "no [[fleet]] table names the service of a broker"),
        ('[[fleet]]\nbroker = 1\nurl = "ftp://broker"', "fleet[1].url"),
        ('[[fleet]]\nbroker = 1\nurl = "http://user@broker"', "fleet[1].url"),
        ('[[fleet]]\nbroker = 1\nurl = "http://broker:123456"', "fleet[1].url"),
        ('[[fleet]]\nbroker = -1\nurl = "http://broker"', "fleet[1].broker"),
        ('[[fleet]]\nbroker = 1\nurl = "http://broker"\ntoken-file = "token"', "expected a path from the root on"),
        (
            '[[fleet]]\nbroker = 1\nurl = "http://broker"\ntoken = "hush"',
            "resnap.toml, line 4): there is no such key\nhint: did you mean token-file?",
        ),
        (
            '[[fleet]]\nbroker = 1\nurl = "http://a"\n[[fleet]]\nbroker = 1\nurl = "http://b"',
            "two entries are of broker 1",
        ),
    ):
        configuration.write_text(table)
        ran = command("fleet", "status", "--config", configuration)
        assert (ran.code, why in ran.err, "hush" in ran.err) == (10, True, False), ran.err


def test_a_gate_for_a_mistyped_topic_lets_no_broker_go() -> None:
    """It would ask for no snapshot at all."""
    places = [PartitionReplicas(TopicPartition("payments", 0), 1, 0, (1,), (1,))]
    for globs in ((), ("pay*",), ("other", "payments")):
        check_topics(globs, places)
    check_topics((), [])
    with pytest.raises(UsageError, match="no topic of the cluster matches --topic paymnts"):
        check_topics(("paymnts",), places)
