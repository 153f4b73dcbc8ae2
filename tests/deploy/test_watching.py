"""What dashboard and alert rules name is what a running program exports; what they say leads to the guide."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import ask
from tests.cli.program import Site
from tests.deploy.proxies import DEPLOY

METRIC = re.compile(r"\btollkeeper_[a-z_]+")
GUIDE = (DEPLOY.parent / "docs" / "guide-operator.md").read_text()


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return list(group["rules"])


def dashboard_queries() -> list[str]:
    panels = json.loads((DEPLOY / "grafana" / "tollkeeper.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def exported(url: str) -> set[str]:
    """The names under which samples of each family can come, whether there are any yet or not."""
    names = set[str]()
    for family in text_string_to_metric_families(ask(url).body.decode()):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        names |= {family.name + suffix for suffix in suffixes}
    return names


def test_every_metric_of_dashboard_and_rules_is_exported(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    site = Site(tmp_path / "home", embedded_chain)
    site.environ["TOLLKEEPER_METRICS_ADDRESS"] = "127.0.0.1:0"
    named = set(METRIC.findall(" ".join([*dashboard_queries(), *(rule["expr"] for rule in rules())])))
    with site.serving() as program:
        found = exported(program.process.wait_for_event("metrics_served")["url"])
    assert len(named) > 20
    assert sorted(named - found) == []
    assert sorted(name for name in found if name.startswith("tollkeeper_") and not is_shown(name, named)) == []


def is_shown(name: str, named: set[str]) -> bool:
    """A metric that nobody looks at need not be there; of a histogram one of its parts is enough."""
    family = re.sub(r"_(bucket|sum|count)$", "", name)
    return name in named or any(one.startswith(family) for one in named)


def test_each_alert_has_a_rule_test_that_raises_it_and_one_that_does_not() -> None:
    played = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())["tests"]
    tried = [one for test in played for one in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in rules()}
    assert {one["alertname"] for one in tried if one["exp_alerts"]} == alerts
    assert {one["alertname"] for one in tried if not one["exp_alerts"]} == alerts


def test_each_event_that_an_alert_names_is_explained_in_the_guide() -> None:
    events = {
        event
        for rule in rules()
        for named in re.findall(r"\(((?:[a-z]+_[a-z_]+(?:, )?)+)\)", rule["annotations"]["summary"])
        for event in named.split(", ")
    }
    assert len(events) > 10
    assert [event for event in events if f"`{event}`" not in GUIDE] == []
