"""The dashboard, the alerts and the table of metrics speak of series that the service has, and the table of all."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from resnap.scheduler.telemetry.metrics import Metrics, Watched
from resnap.tiering.quota.quota_manager import series
from tests.cases import each
from tests.deploy.promql import parse
from tests.tiering.quota.quotas import ALICE, manager, sequential

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent.parent
DEPLOY: Final = ROOT / "docs" / "deploy"
RULES: Final = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text(encoding="utf-8"))
DASHBOARD: Final = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
OPERATIONS: Final = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
OF_THE_TARGET: Final = {"job", "instance"}
"""What Prometheus itself adds to every series."""
OF_PROMETHEUS: Final = {"up": set[str]()}


@cache
def there_are() -> dict[str, dict[str, set[str]]]:
    """Return the values of each label of each series of a service, by name of the sample."""
    quota = manager()
    quota.admit_request(ALICE, sequential(5))
    watched = Watched(sources=(("c1", "/data"),), schedules=("hourly",), queue_limit=10)
    metrics = Metrics(watched, version="1", revision="")
    metrics.routes([("GET", "/v1/runs")])
    metrics.quota(lambda: series(quota))
    found: dict[str, dict[str, set[str]]] = {name: {} for name in OF_PROMETHEUS}
    for family in metrics.registry.collect():
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


FREE: Final = {"cluster", "log_dir", "schedule", "user", "route", "version", "revision", "le"}
"""Labels whose values come from the configuration; of all others the values are known."""


def alerts() -> Iterator[tuple[str, dict[str, Any]]]:
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule


def shown() -> Iterator[tuple[str, str]]:
    """Yield every expression of the dashboard with its title."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


EXPRESSIONS: Final = [(name, rule["expr"]) for name, rule in alerts()] + list(shown())


@each(("title", "expression"), EXPRESSIONS)
def test_an_expression_speaks_of_series_and_labels_that_there_are(title: str, expression: str) -> None:
    found = parse(expression)
    assert found.selectors, title
    labels_there = OF_THE_TARGET | {label for name, _ in found.selectors for label in there_are()[name]}
    for name, matchers in found.selectors:
        for matcher in matchers:
            assert matcher.label in OF_THE_TARGET | there_are()[name].keys(), (name, matcher)
            if matcher.label not in FREE | OF_THE_TARGET:
                assert set(matcher.values()) <= there_are()[name][matcher.label], (name, matcher)
    for word, labels in found.lists:
        assert set(labels) <= labels_there, (word, labels)


@each(("title", "expression"), EXPRESSIONS)
def test_counters_are_asked_for_their_growth_and_gauges_are_not(title: str, expression: str) -> None:
    grown = set(re.findall(r"(?:rate|increase)\((\w+)", expression))
    told_as_they_are = {name for name, _ in parse(expression).selectors} - grown
    counters = {name for name in there_are() if name.endswith(("_total", "_bucket", "_sum", "_count"))}
    assert grown <= counters, title
    # Of what earlier processes left behind, the number itself is reported: it is counted once, before the first scrape.
    assert told_as_they_are & counters <= {"resnap_runs_orphaned_total"}, title


@each(("name", "rule"), list(alerts()))
def test_an_alert_says_what_is_wrong_by_labels_that_its_expression_leaves(name: str, rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"warning", "critical"}
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    told = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    found = parse(rule["expr"])
    kept = [set(labels) for word, labels in found.lists if word == "by"]
    left = kept[0] if kept else OF_THE_TARGET | {label for name, _ in found.selectors for label in there_are()[name]}
    assert told <= left
    assert f"`{name}`" in OPERATIONS


def test_the_variables_of_the_dashboard_are_labels_that_there_are() -> None:
    queries = [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert parse(selector).selectors[0][0] in there_are()
        assert label in OF_THE_TARGET


def test_whatever_raises_an_alert_is_on_the_dashboard() -> None:
    drawn = {name for _, expression in shown() for name, _ in parse(expression).selectors}
    raised = {name for _, rule in alerts() for name, _ in parse(rule["expr"]).selectors}
    assert raised - drawn == set()


def test_the_panels_of_the_dashboard_do_not_lie_on_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def documented() -> dict[str, set[str]]:
    """Return the labels of every series in the table of metrics."""
    rows = re.findall(r"^\| `(resnap_\w+)` \| \w+ \| ([^|]*)\|", OPERATIONS, flags=re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


def test_the_table_of_metrics_has_every_series_with_its_labels_and_no_other() -> None:
    ours = {name: labels.keys() - {"le"} for name, labels in there_are().items() if name.startswith("resnap_")}
    histograms = {name.removesuffix("_bucket"): labels for name, labels in ours.items() if name.endswith("_bucket")}
    parts = {name + suffix for name in histograms for suffix in ("_bucket", "_count", "_sum")}
    expected = {name: labels for name, labels in ours.items() if name not in parts} | histograms
    assert documented() == expected


@pytest.mark.parametrize(
    "wrong", ["sum(resnap_runs_total", "sum by job (x)", "frobnicate(x)", "x{job=~resnap}", "rate x", "x ? y", "a)"]
)
def test_invalid_promql_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(wrong)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not on this machine")
def test_prometheus_itself_takes_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "prometheus-rules.yml", tmp_path)
    shutil.copy(Path(__file__).parent / "alerts.yml", tmp_path)
    told = [expression.replace("$__rate_interval", "5m") for _, expression in shown()]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(told)]
    (tmp_path / "dashboard.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for arguments in (
        ("check", "rules", "prometheus-rules.yml"),
        ("check", "rules", "dashboard.yml"),
        ("test", "rules", "alerts.yml"),
    ):
        done = subprocess.run(["promtool", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
