"""The Helm chart: it is linted and rendered by helm, and what it renders fits the program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from resnap.scheduler.version import resnap_version

CHART: Final = Path(__file__).parent.parent.parent / "docs" / "deploy" / "helm"
TOKENS: Final = "tokensSecret=tokens"


def helm(*arguments: str, code: int = 0) -> str:
    if shutil.which("helm") is None:
        pytest.skip("NOT TESTED: there is no helm on the PATH (go install helm.sh/helm/v3/cmd/helm@latest)")
    ran = subprocess.run(["helm", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stderr
    return ran.stdout + ran.stderr


def rendered(*values: str) -> dict[str, Any]:
    sets = [word for value in (TOKENS, *values) for word in ("--set", value)]
    documents = yaml.safe_load_all(helm("template", "r", str(CHART), *sets))
    return {document["kind"]: document for document in documents if document}


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (resnap_version(), resnap_version())


def test_the_service_has_its_tokens_its_state_and_its_monitor() -> None:
    helm("lint", "--strict", str(CHART), "--set", TOKENS)
    found = rendered("podMonitor.enabled=true", "service.port=9000", "storeSecret=aws", 'config=engine = "local"')
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


def test_beside_a_broker_nothing_of_its_own_is_made_but_the_configuration() -> None:
    assert set(rendered("service.enabled=false")) == {"ConfigMap"}


def test_a_service_without_tokens_is_refused() -> None:
    assert "name a Secret with the key `tokens`" in helm("template", "r", str(CHART), code=1)
