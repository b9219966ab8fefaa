"""The Helm chart: Helm itself, as a library, lints and renders it, and what it renders fits the program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from resnap.storage.version import resnap_version

if TYPE_CHECKING:
    from collections.abc import Callable

CHART: Final = Path(__file__).parent.parent.parent / "docs" / "deploy" / "helm"
TOKENS: Final = {"tokensSecret": "tokens"}
PROGRAM: Final = """
import json, sys
from helm_python.chart import Chart, lint
path, values = sys.argv[1], json.loads(sys.argv[2])
linted = lint(path, values=values, strict=True)
problems = [*linted["errors"], *(one["error"] for one in linted["messages"] if one["severity"] > 1)]
print(json.dumps([problems, Chart.load(path).render(values, name="r")]))
"""


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    tools = tmp_path_factory.mktemp("helm") / "tools"
    subprocess.run([sys.executable, "-m", "venv", tools], check=True)
    python = tools / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "helm-python-sdk>=0.2.2"], check=True, timeout=300)

    def run(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        command = [python, "-c", PROGRAM, CHART, json.dumps(values)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def rendered(ran: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    problems, texts = json.loads(ran.stdout)
    assert problems == []
    documents = [document for text in texts.values() for document in yaml.safe_load_all(text)]
    return {document["kind"]: document for document in documents if document}


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (resnap_version(), resnap_version())


@pytest.mark.slow
def test_the_service_has_its_tokens_its_state_and_its_monitor(
    helm: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    more = {"podMonitor": {"enabled": True}, "service": {"port": 9000}, "config": 'engine = "local"'}
    found = rendered(helm({**TOKENS, **more, "storeSecret": "aws"}))
    assert set(found) == {"ConfigMap", "Service", "StatefulSet", "PodMonitor"}
    assert found["ConfigMap"]["data"]["resnap.toml"].strip() == 'engine = "local"'
    pod = found["StatefulSet"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["args"][-4:] == ["--listen", "0.0.0.0:9000", "--auth", "token"]
    assert {"name": "RESNAP_TOKENS_FILE", "value": "/etc/resnap-tokens/tokens"} in container["env"]
    claims = {claim["metadata"]["name"] for claim in found["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]} | claims
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    selector = found["Service"]["spec"]["selector"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    assert found["PodMonitor"]["spec"]["selector"]["matchLabels"] == selector
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.slow
def test_beside_a_broker_only_the_configuration_is_made_and_tokens_must_be_named(
    helm: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert set(rendered(helm({**TOKENS, "service": {"enabled": False}}))) == {"ConfigMap"}
    assert "name a Secret with the key `tokens`" in helm({}).stderr
