"""Commands to copy: the shell command's own parser takes them, and they do what the service did."""

from __future__ import annotations

import re
import shlex
from contextlib import closing, contextmanager
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from resnap.scheduler.cli import run
from resnap.scheduler.cli.commands import load_command
from resnap.scheduler.clock import Clock
from resnap.scheduler.registry import COMMANDS
from resnap.scheduler.runs.configuration import Configuration
from resnap.scheduler.runs.run import RunKind, RunRequest
from resnap.scheduler.service.services import Services
from resnap.scheduler.web.commands import Shell, curl
from tests.scheduler.api.whole import Whole, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixture_sets import FixtureSet

ODD = "a b'; rm -rf $HOME #"
SHELL = Shell(
    flags={"engine": "local", "config": Path("/etc/resnap.toml"), "spark_conf": ["a=b"]}, is_on=frozenset({"full"})
)


@contextmanager
def shell_of(flags: dict[str, object], directory: Path) -> Iterator[Shell]:
    """Give what a page copies for a service with these settings, which nobody calls."""
    services = Services(Configuration(flags=flags, environment={}, directory=directory), Clock())
    with closing(services.database):
        yield Shell.of(services)


def verbs() -> dict[str, Any]:
    return {words: load_command(words) for words in COMMANDS}


def parsed(line: str) -> dict[str, Any]:
    """Return what the shell command makes of a line: the values that were given, by name."""
    program, verb, *words = shlex.split(line)
    assert program == "resnap"
    given = verbs()[verb].make_context(verb, words).params
    return {name: value for name, value in given.items() if value not in (None, False, [], ())}


def test_a_secret_that_the_service_was_started_with_is_not_in_a_command() -> None:
    flags = {"spark_conf": ["spark.cores.max=2", "spark.ssl.keyPass=hunter2", "spark.x=a password=hunter2"]}
    line = Shell(flags=flags).overview("regenerate", "/data", "", "--into", "staged")
    assert parsed(line)["spark_conf"] == ["spark.cores.max=2", "spark.ssl.keyPass=***", "spark.x=***"]


@pytest.mark.parametrize(("kind", "place"), [("regenerate", "into"), ("tier", "to")])
def test_the_command_of_a_run_is_complete_whatever_is_in_it(kind: RunKind, place: str) -> None:
    request = RunRequest(
        kind=kind,
        sources=(ODD, "/data"),
        partitions=("payments-0", "orders-12"),
        destination=f"file:///{ODD}",
        settings={"topics": [ODD, "x*"], "dry_run": True, "full": False, "verify_crc": True, "bwlimit": "50MiB",
                  "as_of": "roll", "max_reach_back": None},
    )  # fmt: skip
    told = {
        place: f"file:///{ODD}", "sources": [ODD, "/data"], "partitions": ["payments-0", "orders-12"],
        "topics": [ODD, "x*"], "dry_run": True, "verify_crc": True, "as_of": "roll", "bwlimit": "50MiB",
        "engine": "local", "config": Path("/etc/resnap.toml"), "spark_conf": ["a=b"],
    }  # fmt: skip
    if kind != "tier":
        del told["bwlimit"]
    line = SHELL.run(request)
    assert parsed(line) == told
    assert "--no-full" in line  # which the configuration has on


def test_the_command_of_a_run_has_what_its_verb_alone_takes() -> None:
    assert parsed(SHELL.run(RunRequest(kind="scan", sources=("/data",), settings={"exit_code": True})))["exit_code"]
    assert "exit_code" not in parsed(
        SHELL.run(RunRequest(kind="scan", sources=("/data",), settings={"exit_code": False}))
    )
    line = SHELL.run(RunRequest(kind="verify", sources=("/data",), settings={"since": ODD}))
    assert parsed(line)["since"] == ODD


def test_a_run_of_a_plan_takes_it_from_a_file() -> None:
    line = SHELL.run(RunRequest(kind="tier", sources=("/data",), destination="s3://b/p", plan="01abc"))
    found = parsed(line)
    assert (str(found["plan_file"]), found["to"]) == ("/var/tmp/plan-01abc.json", "s3://b/p")  # noqa: S108
    assert "sources" not in found


def test_a_request_is_quoted_and_keeps_the_token_out_of_histories() -> None:
    asked = curl(f"http://h/?a={ODD}", needs_token=True, body={"a": ODD}, words=("-o", ODD))
    assert '-H "Authorization: Bearer $RESNAP_TOKEN"' in asked
    words = shlex.split(asked)
    assert words[-1] == f"http://h/?a={ODD}"
    assert words[words.index("-o") + 1] == ODD


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, fixture_set: Callable[[str], FixtureSet]) -> Iterator[Whole]:
    with whole(tmp_path_factory.mktemp("commands"), fixture_set("kafka-2.7.2").data) as found:
        yield found


def commands(service: Whole, path: str) -> list[str]:
    with service.client() as client:
        answer = client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return [unescape(line) for line in re.findall(r'<code id="line-\d+"[^>]*>([^<]*)</code>', answer.text)]


def made(service: Whole, location: str, body: dict[str, object]) -> str:
    """Have a run made and through, and return its page."""
    with service.client() as client:
        run_at = client.post(location, json=body).headers["location"]
        assert service.over(client, run_at)["state"] == "succeeded"
    return run_at.replace("/v1/runs", "/runs")


def snapshots(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*.snapshot")}


def carried_out(line: str, into: Path) -> dict[str, bytes]:
    """Run a copied command, with another destination, and return what it made."""
    _, *words = shlex.split(line)
    words[words.index("--into") + 1] = str(into)
    assert run([*words, "--state-dir", "none"]) == 0
    return snapshots(into)


def test_the_command_of_a_run_makes_what_the_run_made(service: Whole, tmp_path: Path) -> None:
    out = service.directory / "out" / "one"
    body = {"partitions": ["payments-0"], "window": {"asOf": "2026-11-22T00:00:00Z"}, "destination": str(out)}
    shown = commands(service, made(service, "/v1/replays", body))
    [line] = [one for one in shown if one.startswith("resnap regenerate")]
    there = carried_out(line, tmp_path / "copied")
    assert {name.split("/")[0] for name in there} == {"payments-0"}
    assert there == snapshots(out)


def test_the_commands_of_a_plan_carry_it_out(service: Whole, tmp_path: Path) -> None:
    out = service.directory / "out" / "planned"
    with service.client() as client:
        plan = client.post("/v1/plans", json={"partitions": ["payments-1"]}).json()["id"]
    page = made(service, f"/v1/plans/{plan}/replays", {"destination": str(out)})
    with service.client() as client:
        assert f'href="{page}"' in client.get(f"/plans/{plan}").text  # the page of a plan shows its result
    fetch, line = (one for one in commands(service, page) if "install" not in one and "/v1/runs" not in one)
    words = shlex.split(fetch)
    kept, mine = words[words.index("-o") + 1], tmp_path / "plan.json"
    with service.client() as client:
        mine.write_bytes(client.get(words[-1]).content)
    assert f" --plan {kept} " in line
    assert carried_out(line.replace(kept, str(mine)), tmp_path / "copied") == snapshots(out)
    [of_the_plan] = [one for one in commands(service, f"/plans/{plan}") if one.startswith("resnap regenerate")]
    assert carried_out(of_the_plan.replace(kept, str(mine)), tmp_path / "planned") == snapshots(out)


@pytest.mark.parametrize("path", ["/", "/topics", "/plans", "/partitions/payments/1", "/schedules"])
def test_every_command_of_the_shell_is_one(service: Whole, path: str) -> None:
    for line in commands(service, path):
        if line.startswith("resnap") and " install " not in line:
            found = parsed(line)
            assert found["config"] == service.directory / "resnap.toml"
            named = [found[name] for name in ("into", "plan_file", "save") if name in found]
            assert all(Path(one).is_absolute() for one in [*named, *found.get("sources", ())])


def test_copied_commands_name_the_log_dirs_and_destinations_of_the_service_absolutely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = {"log_dirs": ["data", "more"], "state_dir": str(tmp_path / "state")}
    with shell_of(flags, tmp_path) as shell:
        found = parsed(shell.overview("regenerate", "", "", "--into", shell.staged))
        assert found["sources"] == [str(tmp_path / "data"), str(tmp_path / "more")]
        assert found["into"] == "/var/tmp/staged"  # noqa: S108
    flags["allow_destinations"] = [str(tmp_path / "out")]
    with shell_of(flags, tmp_path) as shell:
        assert shell.staged == str(tmp_path / "out" / "staged")
