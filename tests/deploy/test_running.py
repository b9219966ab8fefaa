"""The files that an operator copies: they load, they are of one mind with the program, and with each other."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from resnap.scheduler.cli import failures
from resnap.scheduler.settings.layers import setting_name
from resnap.scheduler.settings.loading import load_settings
from resnap.scheduler.settings.settings import DECLARED, Settings
from resnap.storage.errors import ConfigurationError, UsageError
from tests.deploy.dockerfile import Dockerfile
from tests.scheduler.files import lost_boundaries
from tests.scheduler.installed import SET, regenerate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixture_sets import FixtureSet

ROOT: Final = Path(__file__).parent.parent.parent
DEPLOY: Final = ROOT / "docs" / "deploy"
EXAMPLE: Final = DEPLOY / "resnap.toml"
DEFAULTS: Final = Settings()
PORT: Final = int(DEFAULTS.listen.rpartition(":")[2])
OF_THE_COMMAND_LINE: Final = {"config"}
"""A file cannot name itself."""


def uncommented(text: str) -> str:
    """Return the example with every setting set."""
    return re.sub(r"^#(?=[a-z\[])", "", text, flags=re.MULTILINE)


def load(directory: Path, text: str) -> Settings:
    file = directory / "resnap.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings({"config": str(file)}, environment={}, directory=directory)


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """What the example names, so that all of it can be loaded."""
    (tmp_path / "server.properties").write_text("log.dirs=/data\n")
    return tmp_path


def in_here(text: str, etc: Path) -> str:
    text = text.replace("/etc/kafka/server.properties", str(etc / "server.properties"))
    return re.sub(r"^metadata-log = .*$", "", text, flags=re.MULTILINE)


def test_the_example_loads_as_it_is(etc: Path) -> None:
    settings = load(etc, EXAMPLE.read_text(encoding="utf-8"))
    assert [str(path) for path in settings.log_dirs] == ["/var/lib/kafka/data"]
    assert [(spec.name, spec.run) for spec in settings.schedules] == [("look", "scan")]


def test_the_example_loads_with_every_setting_set(etc: Path) -> None:
    settings = load(etc, in_here(uncommented(EXAMPLE.read_text(encoding="utf-8")), etc))
    assert [spec.name for spec in settings.schedules] == [
        "look",
        "count",
        "ship-payments",
        "export",
        "export-cluster",
        "replicas",
    ]
    assert settings.spark_conf == {"spark.executor.memory": "2g"}
    from_the_file = {name for name in DECLARED if settings.origin(name).startswith("file ")}
    assert from_the_file == set(DECLARED) - OF_THE_COMMAND_LINE - {"metadata_log"}


def test_the_example_names_every_setting_once() -> None:
    text, _, tables = EXAMPLE.read_text(encoding="utf-8").partition("[[schedules]]")
    assert "[[fleet]]" in tables
    named = [setting_name(name) for name in re.findall(r"^#?([a-z][\w.-]*) = ", text, flags=re.MULTILINE)]
    assert sorted([*named, "schedules", "fleet", *OF_THE_COMMAND_LINE]) == sorted(DECLARED)


def test_where_a_setting_has_a_default_the_example_shows_it(etc: Path) -> None:
    settings = load(etc, in_here(uncommented(EXAMPLE.read_text(encoding="utf-8")), etc))
    has_one = {name for name in DECLARED if getattr(DEFAULTS, name) not in (None, (), {})}
    assert len(has_one) > 20
    differing = {name for name in has_one if getattr(settings, name) != getattr(DEFAULTS, name)}
    assert differing == set()


def test_a_word_that_is_wrong_in_the_example_would_be_seen(etc: Path) -> None:
    with pytest.raises(ConfigurationError, match="queue-size"):
        load(etc, uncommented("#queue-size = 0\n"))


# ---- Dockerfile


@pytest.fixture(scope="module")
def image() -> Dockerfile:
    return Dockerfile.read(ROOT / "Dockerfile")


def test_every_instruction_is_known_and_words_are_in_the_form_without_a_shell(image: Dockerfile) -> None:
    assert image.problems() == []


def test_what_is_wrong_in_a_dockerfile_would_be_seen(tmp_path: Path) -> None:
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("""
FROM python
ADD x /x
ENV API_TOKEN=x
RUN pip install \\
  resnap
COPY --from=build /a /a
WORKDIR a
CMD resnap
CMD x
""")
    assert Dockerfile.read(wrong).problems() == [
        "ADD is not known",
        "a secret in ENV",
        "python has no version",
        "CMD twice",
        "there is no stage build",
        "a is not absolute",
        "pip leaves its cache in the image",
        "CMD goes through a shell",
        "CMD goes through a shell",
    ]


def test_what_is_copied_is_there_and_is_let_into_the_build(image: Dockerfile) -> None:
    copied = image.copied()
    assert {"requirements.lock", "pyproject.toml", "scheduler"} <= set(copied)
    let_in = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE))
    for name in copied:
        assert (ROOT / name).exists()
        assert name in let_in
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["only-include"]
    assert {name.partition("/")[0] for name in packages} <= set(copied)


def test_the_container_does_not_run_as_root_and_keeps_its_state_in_a_volume(image: Dockerfile) -> None:
    last = image.stages()[-1]
    user = last.one("USER").partition(":")[0]
    assert user.isdecimal()
    assert int(user) > 0
    state_dir = re.search(r"RESNAP_STATE_DIR=(\S+)", last.one("ENV"))
    assert state_dir is not None
    assert last.one("VOLUME") == state_dir[1]
    assert last.at("RUN") < last.at("USER")
    assert json.loads(last.one("ENTRYPOINT")) == ["resnap"]


def test_the_port_is_the_one_that_the_service_listens_at(image: Dockerfile) -> None:
    assert image.stages()[-1].one("EXPOSE") == str(PORT)


SERVICE: Final = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[2]) if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, *arguments): ...

server = HTTPServer((sys.argv[3], 0), Answers)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize(
    ("command", "status", "host", "is_healthy"),
    [
        ("serve", 200, "127.0.0.1", True),
        ("serve", 200, "0.0.0.0", True),  # noqa: S104
        ("serve", 503, "127.0.0.1", False),
        ("serve", 404, "127.0.0.1", False),
        ("scan", 503, "127.0.0.1", True),
    ],
)
def test_the_health_check_asks_the_service_wherever_it_listens(
    image: Dockerfile, command: str, status: int, host: str, is_healthy: bool
) -> None:
    program, script = image.stages()[-1].health_check()
    assert (program, script) == ("python", "/opt/resnap/healthcheck.py")
    proxied = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    service = [sys.executable, "-c", SERVICE, command, str(status), host]
    with subprocess.Popen(service, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        check = [sys.executable, DEPLOY / "healthcheck.py", str(running.pid)]
        found = subprocess.run(check, env=proxied, check=False, capture_output=True)
        running.kill()
    assert (found.returncode == 0, found.stderr) == (is_healthy, b"")


def test_a_service_that_listens_nowhere_is_not_healthy() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "serve"], stdin=subprocess.PIPE) as running:
        check = [sys.executable, DEPLOY / "healthcheck.py", str(running.pid)]
        assert subprocess.run(check, check=False).returncode == 1
        running.kill()


# ---- workflows of a public host


def test_every_action_is_pinned_by_commit_and_only_a_release_may_write() -> None:
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            assert job.get("environment") == "release" or "permissions" not in job
            for step in job.get("steps", []):
                assert re.search(r"@[0-9a-f]{40}$", step.get("uses", f"@{'0' * 40}")), step


# ---- systemd

UNIT: Final = (DEPLOY / "resnap.service").read_text(encoding="utf-8")


def unit(key: str) -> str:
    found = re.findall(rf"^{key}=(.*)$", UNIT, flags=re.MULTILINE)
    assert len(found) == 1, key
    return str(found[0])


def seconds(text: str) -> float:
    settings = load_settings({"stop_grace": text if text[-1].isalpha() else f"{text}s"}, environment={})
    return settings.stop_grace.total_seconds()


def test_the_unit_starts_a_command_that_there_is() -> None:
    program, *arguments = shlex.split(unit("ExecStart"))
    assert program.endswith("/bin/resnap")
    done = subprocess.run(
        [sys.executable, "-m", "resnap", *arguments[:1], "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for flag in (word for word in arguments if word.startswith("--")):
        assert flag in done.stdout


def test_the_unit_waits_longer_than_the_service_takes_to_end() -> None:
    assert seconds(unit("TimeoutStopSec")) > DEFAULTS.stop_grace.total_seconds()
    assert unit("Type") == "notify"
    assert seconds(unit("WatchdogSec")) >= 30


def test_the_unit_does_not_retry_what_does_not_repair_itself() -> None:
    never = {int(code) for code in unit("RestartPreventExitStatus").split()}
    assert never == {UsageError.exit_code, ConfigurationError.exit_code}


def test_the_unit_forbids_nothing_that_java_and_numba_need() -> None:
    keys = set(re.findall(r"^(\w+)=", UNIT, flags=re.MULTILINE))
    assert "MemoryDenyWriteExecute" not in keys
    assert {"NoNewPrivileges", "ProtectSystem", "ReadOnlyPaths", "StateDirectory", "SystemCallFilter"} <= keys
    assert unit("User") == "kafka"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not on this machine")
def test_systemd_itself_takes_the_unit_and_finds_it_well_confined(tmp_path: Path) -> None:
    file = tmp_path / "resnap.service"
    file.write_text(UNIT.replace(shlex.split(unit("ExecStart"))[0], "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    security = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(file)]
    assert subprocess.run(security, capture_output=True, check=False).returncode == 0


# ---- Kubernetes

KUBERNETES: Final = DEPLOY / "kubernetes"


def documents() -> dict[str, Any]:
    return {
        file.relative_to(KUBERNETES).as_posix(): yaml.safe_load(file.read_text(encoding="utf-8"))
        for file in sorted(KUBERNETES.rglob("*.yaml"))
    }


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, document in documents().items():
        if document["kind"] in {"StatefulSet", "Job"}:
            yield name, document["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each container of ours with its pod."""
    for _, pod in pods():
        every = [*pod.get("initContainers", ()), *pod.get("containers", ())]
        yield from ((pod, container) for container in every if container["name"].startswith("resnap"))


def test_there_are_an_init_container_a_job_and_a_sidecar() -> None:
    names = [container["name"] for _, container in containers()]
    assert names == ["resnap-install", "resnap", "resnap"]
    assert [container["args"][0] for _, container in containers()][1:] == ["tier", "serve"]


@pytest.mark.slow
def test_the_init_container_installs_what_was_made_and_lets_the_broker_start_where_nothing_was(
    fixture_set: Callable[[str], FixtureSet], tmp_path: Path
) -> None:
    (container,) = [one for _, one in containers() if one["name"] == "resnap-install"]
    shell, dash, script = *container["command"], container["args"][0]
    data = shutil.copytree(fixture_set(SET).data, tmp_path / "data")
    regenerate(data, tmp_path / "staged" / "kafka-0")
    assert len(lost_boundaries(data / "payments-0")) > 1
    (tmp_path / "own").mkdir()
    for path, here in (("/var/lib/kafka/data", data), ("/var/lib/resnap", tmp_path / "own")):
        assert path in script
        script = script.replace(path, str(here))
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for pod, said in (("kafka-0", False), ("kafka-1", True)):
        own = {"PATH": path, "HOME": str(tmp_path), "STAGED": str(tmp_path / "staged"), "POD_NAME": pod}
        ran = subprocess.run([shell, dash, script], env=own, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert ("the broker starts as it was" in ran.stderr) is said
        assert lost_boundaries(data / "payments-0") == []


def test_each_container_is_confined_and_writes_to_its_volumes_alone() -> None:
    for pod, container in containers():
        context = {**pod.get("securityContext", {}), **container["securityContext"]}
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
        installs = {"/var/lib/kafka/data"} if container["name"] == "resnap-install" else set()
        written = {path for path, is_read_only in mounts.items() if not is_read_only}
        assert written == {"/tmp", "/var/lib/resnap", *installs}  # noqa: S108
        assert "memory" in container["resources"]["limits"]


def test_volumes_that_are_mounted_are_there() -> None:
    for pod, container in containers():
        there = {volume["name"] for volume in pod["volumes"]} | {"data"}
        assert {mount["name"] for mount in container["volumeMounts"]} <= there


def test_probes_ask_for_what_the_service_answers_at_its_port() -> None:
    (sidecar,) = [container for _, container in containers() if container["args"][0] == "serve"]
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    assert ports == {"resnap": PORT}
    for probe in ("startupProbe", "livenessProbe"):
        assert sidecar[probe]["httpGet"] == {"path": "/livez", "port": "resnap"}
    assert "readinessProbe" not in sidecar


def test_the_job_gives_up_at_once_where_trying_again_is_of_no_use() -> None:
    job = documents()["job/job.yaml"]
    (rule,) = job["spec"]["podFailurePolicy"]["rules"]
    assert set(rule["onExitCodes"]["values"]) == {UsageError.exit_code, ConfigurationError.exit_code, 13}
    assert failures.PARTIAL not in rule["onExitCodes"]["values"]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_the_sidecars_configuration_loads(tmp_path: Path) -> None:
    settings = load(tmp_path, (KUBERNETES / "sidecar" / "resnap.toml").read_text(encoding="utf-8"))
    assert settings.listen == f"0.0.0.0:{PORT}"
    assert settings.auth == "token"
    grace = dict(pods())["sidecar/statefulset.yaml"]["terminationGracePeriodSeconds"]
    assert grace > settings.stop_grace.total_seconds()


def test_kustomizations_name_files_that_there_are() -> None:
    for name, document in documents().items():
        if not name.endswith("kustomization.yaml"):
            continue
        folder = KUBERNETES / Path(name).parent
        named = [*document.get("resources", []), *document.get("components", [])]
        named += [patch["path"] for patch in document.get("patches", [])]
        named += [file for made in document.get("configMapGenerator", []) for file in made["files"]]
        assert named
        assert [one for one in named if not (folder / one).exists()] == []


KUSTOMIZE: Final = next(
    (words for words in (["kubectl", "kustomize"], ["kustomize", "build"]) if shutil.which(words[0])), []
)


@pytest.mark.skipif(not KUSTOMIZE, reason="neither kubectl nor kustomize is on this machine")
def test_kustomize_itself_puts_the_sidecar_and_the_init_container_beside_the_broker(tmp_path: Path) -> None:
    copy = shutil.copytree(KUBERNETES, tmp_path / "kubernetes") / "example"
    with (copy / "kustomization.yaml").open("a", encoding="utf-8") as file:
        file.write("  - ../install\n")
    made = subprocess.run([*KUSTOMIZE, str(copy)], capture_output=True, text=True, check=True).stdout
    (broker,) = [one for one in yaml.safe_load_all(made) if one["kind"] == "StatefulSet"]
    pod = broker["spec"]["template"]["spec"]
    assert {container["name"] for container in pod["containers"]} == {"kafka", "resnap"}
    assert [container["name"] for container in pod["initContainers"]] == ["resnap-install"]
    (configuration,) = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
    assert configuration.startswith("resnap-")
