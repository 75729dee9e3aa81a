"""The dashboard and the alert rules use only metrics, labels and reasons that exist."""

import json
import re
from pathlib import Path

from fake_agent import FakeAgent
from fake_switch import FakeSwitch
from harness import as_described, running, until
from ruamel.yaml import YAML
from sample_rack import NAMES

from rivulet_controller.metrics import STATES, Metrics
from rivulet_controller.pb.rivulet.agent.v1 import agent_pb2

DASHBOARD = Path(__file__).resolve().parents[1] / "grafana.json"
ALERTS = DASHBOARD.with_name("alerts.yaml")


async def test_every_query_uses_existing_metrics_and_labels(tmp_path: Path) -> None:
    async with FakeSwitch(NAMES) as switch, running(switch, tmp_path) as controller:
        await until(lambda: as_described(controller, switch), "first apply")
        switch.counters["drops", 1] = 1
        switch.counters["suspects", 1] = 1
        switch.counters["service_outcomes", 16] = 1
        samples = controller.fleet.health.samples
        await until(lambda: "tor1" in samples and bool(samples["tor1"].drops), "a reading")
        async with FakeAgent(f"unix:{tmp_path}/agents", "r1") as agent:
            agent.trods = agent_pb2.TrodsStatus(unprotected={"tls": 1})
            await until(lambda: controller.view("r1").trods is not None, "a report")
            text = Metrics(controller).text().decode()
    found = {}
    for name, labels in re.findall(r"^(rivulet_\w+)(?:\{(.*)\})? ", text, re.MULTILINE):
        found[name] = set(re.findall(r'(\w+)="', labels))
    queries = [t["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for t in panel["targets"]]
    rules = [rule for group in YAML(typ="safe").load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        assert {"summary", "do"} <= rule["annotations"].keys() and rule["labels"]["severity"] in ("page", "ticket")
        for reasons in re.findall(r'reason=~?"([^"]+)"', rule["expr"]):
            for reason in reasons.split("|"):
                NAMES.value("drop_reason_t", reason.upper())
        for states in re.findall(r'state=~"([^"]+)"', rule["expr"]):
            assert set(states.split("|")) <= set(STATES)
    assert len(queries) > 10 and len(rules) > 5
    queries += [rule["expr"] for rule in rules]
    for query in queries:
        names = re.findall(r"rivulet_\w+", query)
        assert names and set(names) <= found.keys(), query
        used = set(re.findall(r"(\w+)=~?\"", query)) | {
            label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")
        }
        for name in names:
            assert used <= found[name], (query, found[name])
