"""What is asked of runs over HTTP: once per key, page by page, event by event, and again where it failed."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from resnap.scheduler.api.paging import encode_cursor
from resnap.scheduler.job.contract import PartitionState
from resnap.scheduler.runs.history import History
from resnap.scheduler.runs.run import OTHER_FAILURES, PartitionOutcome, Run, RunEnd, RunRequest, RunState
from resnap.scheduler.state.database import DATABASE_FILE, Database
from tests.fixture_sets import copied_tree
from tests.scheduler.api.whole import FINAL, Whole, whole
from tests.scheduler.files import bases, file_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx

    from tests.fixture_sets import FixtureSet


@pytest.fixture
def service(tmp_path: Path, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    log_dir = copied_tree(fixture_set("kafka-2.7.2-then-3.9.1").data, tmp_path / "data")
    with whole(tmp_path, log_dir) as found:
        yield found


def ask(client: httpx.Client, service: Whole, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    sent = {"destination": f"{service.directory}/out", **body}
    return client.post("/v1/replays", json=sent, headers=headers)


def test_a_body_with_more_keys_than_there_are_is_one_error(service: Whole) -> None:
    with service.client() as client:
        began_s = time.process_time()
        answer = ask(client, service, **{f"key{number}": 0 for number in range(70_000)})
        assert time.process_time() - began_s < 1.5, "bodies are checked on the event loop"
    assert answer.status_code == 422
    assert [part["detail"] for part in answer.json()["errors"]] == [
        "Value error, an object of 70001 keys, expected 64 at most"
    ]


def events(client: httpx.Client, at: str, last: str | None = None) -> list[tuple[int, str, dict[str, Any]]]:
    headers = {"Last-Event-ID": last} if last else {}
    answer = client.get(f"{at}/events", headers=headers)
    found = []
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "id" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def test_names_that_are_not_known_are_answered_with_those_that_are(service: Whole) -> None:
    with service.client() as client:
        asked = ({"topcis": ["orders"]}, {"topcis": [], "zzz": 1}, {"window": {"asOff": "now"}})
        told = [client.post("/v1/plans", json=body) for body in asked]
        query = client.get("/v1/partitions?verdct=ready").json()
    assert [one.status_code for one in told] == [422, 422, 422]
    first, second, third = (one.json()["errors"] for one in told)
    assert first == [{"in": "body", "at": "/topcis", "detail": "there is no such key; did you mean topics?"}]
    assert [one["at"] for one in second] == ["/topcis", "/zzz"]
    assert "there is no such key; possible: boundaries, excludeTopics, " in second[1]["detail"]
    assert [(one["at"], one["detail"].split("; ")[1]) for one in third] == [("/window/asOff", "did you mean asOf?")]
    assert (query["status"], query["detail"]) == (422, "query verdct: there is no such parameter")
    assert query["hint"] == "did you mean verdict?"


def test_one_key_is_one_run_also_for_two_at_once(service: Whole) -> None:
    with service.client() as client, ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: ask(client, service, "k", partitions=["payments-1"]), range(4)))
        assert {answer.status_code for answer in answers} == {202}
        (at,) = {answer.headers["location"] for answer in answers}
        assert len(client.get("/v1/runs", params={"kind": "regenerate"}).json()["runs"]) == 1
        assert service.over(client, at)["state"] == "succeeded"
        assert ask(client, service, "k", partitions=["payments-1"]).headers["location"] == at, "also once it is over"
        other = ask(client, service, "k", partitions=["payments-0"])
        assert (other.status_code, other.json()["code"]) == (409, "idempotency-key-reused")
        assert ask(client, service, "other", partitions=["payments-1"]).headers["location"] != at


def test_the_same_key_is_the_same_run_though_its_plan_is_out_of_date_since(service: Whole) -> None:
    partition = service.directory / "data" / "payments-1"
    with service.client() as client:
        plan = client.post("/v1/plans", json={"partitions": ["payments-1"]}).json()["id"]
        at, body = f"/v1/plans/{plan}/replays", {"destination": f"{service.directory}/out"}
        first = client.post(at, json=body, headers={"Idempotency-Key": "k"}).headers["location"]
        assert service.over(client, first)["state"] == "succeeded"
        for file in partition.glob(f"{min(partition.glob('*.log')).stem}.*"):
            file.unlink()
        assert client.post(at, json=body).status_code == 412
        again = client.post(at, json=body, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.headers["location"]) == (202, first)


def test_a_schedule_is_run_once_for_a_key(service: Whole) -> None:
    with service.client() as client:
        name = client.get("/v1/schedules").json()["schedules"][0]["name"]
        at, key = f"/v1/schedules/{name}/run", {"Idempotency-Key": "k"}
        runs = [client.post(at, headers=key).json() for _ in range(2)]
        other = client.post(at, headers={"Idempotency-Key": "other"}).json()
    assert {run["origin"] for run in (*runs, other)} == {f"schedule:{name}"}
    assert runs[0]["id"] == runs[1]["id"] != other["id"]


def test_a_run_is_of_the_partitions_that_were_named_and_of_no_others(service: Whole) -> None:
    with service.client() as client:
        at = ask(client, service, partitions=["payments-1"]).headers["location"]
        assert service.over(client, at)["state"] == "succeeded"
        found = client.get(f"{at}/partitions").json()["partitions"]
        assert [(one["topic"], one["partition"], one["state"]) for one in found] == [("payments", 1, "done")]
        assert {path.name for path in (service.directory / "out").iterdir()} == {"payments-1"}
        nothing = ask(client, service, partitions=["nowhere-0"]).headers["location"]
        assert service.over(client, nothing)["state"] == "failed"


def test_a_dry_run_writes_nothing_and_reports_what_it_would_do(service: Whole) -> None:
    with service.client() as client:
        for kind, where in (("regenerate", "out"), ("tier", "store")):
            body = {"kind": kind, "dryRun": True, "destination": f"file://{service.directory}/{where}"}
            answer = ask(client, service, **body)
            assert answer.status_code == 202, answer.text
            over = service.over(client, answer.headers["location"])
            assert (over["state"], over["totals"]["dryRun"]) == ("succeeded", True), over
            assert not [*service.directory.joinpath(where).rglob("*.*")]


def test_events_are_sent_once_in_order_and_end_with_the_run(service: Whole) -> None:
    with service.client() as client:
        at = ask(client, service).headers["location"]
        heard = events(client, at)
        numbers = [number for number, _, _ in heard]
        assert numbers == sorted(set(numbers))
        assert [told["state"] for _, kind, told in heard if kind == "state"][-1] in FINAL
        done = [(told["topic"], told["partition"]) for _, kind, told in heard if kind == "partition"]
        there = client.get(f"{at}/partitions?limit=500").json()["partitions"]
        assert sorted(done) == [(one["topic"], one["partition"]) for one in there]
        selected = client.get(at).json()["progress"]["select"]
        assert selected["segments"] == selected["segmentsTotal"] > 0
        assert [told["select"] for _, kind, told in heard if kind == "progress"][-1] == selected
        middle = numbers[len(numbers) // 2]
        again = [number for number, _, _ in events(client, at, str(middle))]
        assert again == [number for number, _, _ in events(client, at) if number > middle]
        for last in (numbers[-1], 10**19):
            assert client.get(f"{at}/events", headers={"Last-Event-ID": str(last)}).status_code == 204


def test_pages_lose_and_repeat_nothing_while_runs_are_added(service: Whole) -> None:
    with service.client() as client:
        for _ in range(5):
            at = ask(client, service, partitions=["payments-1"], dryRun=True).headers["location"]
            service.over(client, at)
        before = [run["id"] for run in client.get("/v1/runs", params={"kind": "regenerate"}).json()["runs"]]
        seen, cursor = list[str](), ""
        while cursor is not None:
            asked = {"kind": "regenerate", "limit": 2, **({"cursor": cursor} if cursor else {})}
            page = client.get("/v1/runs", params=asked).json()
            seen += [run["id"] for run in page["runs"]]
            cursor = page.get("nextCursor")
            ask(client, service, partitions=["payments-1"], dryRun=True)
        assert seen == before


def test_rows_of_a_later_release_do_not_stop_the_service_and_are_named(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    database = Database(tmp_path / "state" / DATABASE_FILE)
    history = History(database, lambda: 1)
    ids = [f"{number:020}" for number in range(3)]
    for one in ids:
        history.add(Run(id=one, request=RunRequest(kind="scan"), state=RunState.QUEUED, origin="schedule:look",
                        principal="me", created_ms=1))  # fmt: skip
    with database.write() as connection:
        request = json.dumps({"kind": "brandnew"})
        for one, state in zip(ids, ("queued", "running", "succeeded"), strict=True):
            values = (state, request, one)
            connection.execute("UPDATE runs SET kind = 'brandnew', state = ?, request = ? WHERE id = ?", values)
    database.close()
    with whole(tmp_path, fixture_set("kafka-2.7.2-then-3.9.1").data) as service, service.client() as client:
        assert client.get("/readyz").status_code == 200
        found = client.get("/v1/runs").json()
        assert (found["unreadable"].keys(), set(ids) & {run["id"] for run in found["runs"]}) == (set(ids), set())
        assert all("cannot be read" in why for why in found["unreadable"].values())
        assert all(f"the run {one} cannot be read" in client.get("/runs").text for one in ids)
        assert client.get("/").status_code == 200


def test_a_cursor_that_no_page_gave_is_refused(service: Whole) -> None:
    with service.client() as client:
        at = ask(client, service, partitions=["payments-1"], dryRun=True).headers["location"]
        for path, parts in (("/v1/runs", ["\ud800"]), ("/v1/runs", [1]), (f"{at}/partitions", ["t", 1 << 63])):
            answer = client.get(path, params={"cursor": encode_cursor(*parts)})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request"), answer.text


def test_an_id_that_no_run_has_is_not_found_whatever_it_looks_like(service: Whole) -> None:
    with service.client() as client:
        for name in ("nosuch", "0" * 20, "%00", "a%20b"):
            for path in (f"/v1/runs/{name}", f"/v1/replays/{name}/partitions", f"/v1/plans/{name}"):
                answer = client.get(path)
                assert (answer.status_code, answer.json()["code"]) == (404, "not-found"), path


def test_a_plan_of_a_later_release_is_not_in_lists_and_hides_no_other(service: Whole) -> None:
    with service.client() as client:
        later, plan = (client.post("/v1/plans", json={"partitions": ["payments-1"]}).json()["id"] for _ in range(2))
        with service.services.database.write() as connection:
            replaced = "UPDATE plans SET request = json_set(request, '$.kind', 'mend') WHERE id = ?"
            connection.execute(replaced, (later,))
        assert [one["id"] for one in client.get("/v1/plans").json()["plans"]] == [plan]
        assert client.get(f"/v1/plans/{later}").status_code == 404
        assert client.get("/plans").status_code == 200


def test_rows_with_damage_that_sqlite_does_not_see_are_named(service: Whole) -> None:
    with service.client() as client:
        at = ask(client, service, partitions=["payments-1"]).headers["location"]
        service.over(client, at)
        for column, path in (("run_partitions SET row", f"{at}/partitions"), ("run_events SET data", f"{at}/events"),
                             ("partitions SET row", "/v1/partitions")):  # fmt: skip
            with service.services.database.write() as connection:
                connection.execute(f"UPDATE {column} = ?", ('{"broken": \\u',))
            answer = client.get(path).json()
            named = f"service.db in the state directory: {column.split()[-1]} of a row cannot be read"
            assert (answer["code"], named in answer["detail"]) == ("unusable-data", True)
        assert client.get("/v1/runs").status_code == client.get("/readyz").status_code == 200


def test_what_the_caller_has_already_is_not_sent_again(service: Whole) -> None:
    with service.client() as client:
        first = client.get("/v1/partitions")
        again = client.get("/v1/partitions", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get("/v1/partitions", headers={"If-None-Match": '"other"'}).status_code == 200


def test_only_what_failed_is_done_again(service: Whole) -> None:
    partition = service.directory / "data" / "payments-1"
    damaged = file_at(partition, bases(partition)[1], "log")
    whole_bytes = damaged.read_bytes()
    damaged.write_bytes(whole_bytes[: len(whole_bytes) // 2] + bytes(len(whole_bytes) - len(whole_bytes) // 2))
    with service.client() as client:
        at = ask(client, service, window={"asOf": "roll"}).headers["location"]
        first = service.over(client, at)
        assert first["state"] == "partially_failed", first
        assert first["errors"]
        failed = client.get(f"{at}/partitions?state=failed").json()["partitions"]
        assert [(one["topic"], one["partition"]) for one in failed] == [("payments", 1)]
        damaged.write_bytes(whole_bytes)
        answer = client.post(f"{at}/retry")
        assert answer.status_code == 202
        second = service.over(client, answer.headers["location"])
        assert (second["state"], second["retryOf"]) == ("succeeded", at.rpartition("/")[2])
        found = client.get(f"{answer.headers['location']}/partitions").json()["partitions"]
        assert [(one["topic"], one["partition"]) for one in found] == [("payments", 1)]
        assert client.post(f"{answer.headers['location']}/retry").status_code == 409


def test_what_could_not_be_read_at_all_is_done_again_too(service: Whole) -> None:
    metadata = service.directory / "data" / "payments-1" / "partition.metadata"
    readable = metadata.read_bytes()
    metadata.write_bytes(b"not a number")
    with service.client() as client:
        at = ask(client, service).headers["location"]
        assert service.over(client, at)["state"] == "partially_failed"
        (failed,) = client.get(f"{at}/partitions?state=failed").json()["partitions"]
        assert (failed["topic"], failed["partition"]) == ("payments", 1)
        assert "partition.metadata" in failed["row"]["reason"]
        metadata.write_bytes(readable)
        again = client.post(f"{at}/retry").headers["location"]
        assert service.over(client, again)["state"] == "succeeded"
        assert client.get(again).json()["request"]["partitions"] == ["payments-1"]
        assert list((service.directory / "out" / "payments-1").glob("*.snapshot"))


def test_all_is_done_again_where_a_run_did_not_come_to_every_partition(service: Whole) -> None:
    asked = RunRequest(kind="regenerate", destination=f"{service.directory}/out")
    history = service.services.history
    run = Run(id="0" * 20, request=asked, state=RunState.QUEUED, origin="api", principal="local", created_ms=0)
    history.add(run)
    for number, state in enumerate((PartitionState.DONE, PartitionState.FAILED)):
        history.partition_done(run.id, PartitionOutcome(topic="payments", partition=number, state=state))
    totals = {"partitionsDone": 1, "partitionsFailed": 1, OTHER_FAILURES: 1}
    history.ended(run.id, RunEnd(state=RunState.PARTIALLY_FAILED, totals=totals, errors=()))
    with service.client() as client:
        again = client.post(f"/v1/runs/{run.id}/retry").json()
        assert again["request"]["partitions"] == []


def test_a_kept_plan_is_carried_out_until_the_log_has_changed(service: Whole) -> None:
    with service.client() as client:
        plan = client.post("/v1/plans", json={"partitions": ["payments-1"]}).headers["location"]
        body = {"destination": f"{service.directory}/out"}
        answer = client.post(f"{plan}/replays", json=body)
        assert answer.status_code == 202, answer.text
        over = service.over(client, answer.headers["location"])
        assert over["state"] == "succeeded", over
        partition = service.directory / "data" / "payments-1"
        for suffix in ("log", "index", "timeindex", "snapshot"):
            file_at(partition, bases(partition)[0], suffix).unlink(missing_ok=True)
        stale = client.post(f"{plan}/replays", json=body)
        assert (stale.status_code, stale.json()["code"]) == (412, "stale-plan")


def test_what_a_verification_finds_is_counted_by_its_kind(service: Whole) -> None:
    with service.client() as client:
        assert service.over(client, client.post("/v1/schedules/ship/run").headers["location"])["state"] != "failed"
        shipped = sorted((service.directory / "store").rglob("payments/*/1/*.manifest"))
        shipped[1].unlink()
        log = next(shipped[2].parent.glob(f"{shipped[2].name[:20]}*.log"))
        log.write_bytes(log.read_bytes()[:-1] + b"?")
        asked = RunRequest(kind="verify", destination=f"file://{service.directory}/store")
        run = service.services.worker.submit(asked, origin="schedule:check", principal="schedule")
        assert service.services.worker.wait(run.id) is RunState.PARTIALLY_FAILED
        found = client.get("/metrics").text
        for kind, count in (("object", 1), ("gap", 1), ("overlap", 0)):
            assert f'resnap_verify_mismatches_total{{kind="{kind}"}} {float(count)}' in found, kind


def test_what_was_shipped_under_narrower_rules_fails_the_run_that_would_keep_more(service: Whole) -> None:
    narrow, wide = (
        RunRequest(
            kind="tier",
            destination=f"file://{service.directory}/store",
            partitions=("payments-1",),
            settings={"as_of": as_of, "producer_id_expiration_ms": expiration_ms},
        )
        for as_of, expiration_ms in (("now", 1000), ("roll", 604_800_000))
    )
    states = []
    for asked in (narrow, narrow, wide):
        run = service.services.worker.submit(asked, origin="schedule:ship", principal="schedule")
        states.append(service.services.worker.wait(run.id))
    assert states[:2] == [RunState.SUCCEEDED] * 2
    assert states[2] is RunState.PARTIALLY_FAILED
    kept = service.services.history.get(run.id)
    assert kept is not None
    assert [error.exit_code for error in kept.errors] == [13]
    assert "was made under producer.id.expiration.ms 1000" in kept.errors[0].message
    with service.client() as client:
        assert 'resnap_verify_mismatches_total{kind="snapshot"} 1.0' in client.get("/metrics").text


def test_verifying_where_nothing_was_shipped_fails_as_it_does_in_a_shell(service: Whole) -> None:
    asked = RunRequest(kind="verify", destination=f"file://{service.directory}/store")
    run = service.services.worker.submit(asked, origin="schedule:check", principal="schedule")
    assert service.services.worker.wait(run.id) is RunState.FAILED
    kept = service.services.history.get(run.id)
    assert kept is not None
    assert "holds no shipped segment" in kept.errors[0].message


def test_what_brokers_tiered_is_verified_like_what_was_shipped(
    service: Whole, fixture_set: Callable[[str], FixtureSet]
) -> None:
    remote = fixture_set("kafka-3.9.1-aiven-plain").remote
    asked = RunRequest(kind="verify", destination=remote.as_uri())
    run = service.services.worker.submit(asked, origin="schedule:check", principal="schedule")
    assert service.services.worker.wait(run.id) is RunState.SUCCEEDED
    kept = service.services.history.get(run.id)
    assert kept is not None
    assert kept.totals["snapshotsReplayed"] == len(list(remote.rglob("*.rsm-manifest"))) > 0


def test_a_log_dir_and_its_remote_part_are_replayed_as_one_log(
    tmp_path: Path, fixture_set: Callable[[str], FixtureSet]
) -> None:
    fixture = fixture_set("kafka-3.9.1-lost-state")
    log_dir = copied_tree(fixture.data, tmp_path / "data")
    remote = copied_tree(fixture.remote, tmp_path / "sources")
    with whole(tmp_path, log_dir) as found, found.client() as client:
        body = {"remote": remote.as_uri(), "boundaries": "all", "window": {"asOf": "roll"}}
        run = found.over(client, ask(client, found, **body).headers["location"])
        assert run["state"] == "succeeded", run
        assert run["totals"]["snapshots"] == len(list((fixture.expected / "t-0").glob("*.snapshot")))
        plan = client.post("/v1/plans", json=body).headers["location"]
        made = client.post(f"{plan}/replays", json={"destination": f"{tmp_path}/out/planned"})
        assert found.over(client, made.headers["location"])["state"] == "succeeded"
    assert list((tmp_path / "out/planned").rglob("*.txnindex"))
