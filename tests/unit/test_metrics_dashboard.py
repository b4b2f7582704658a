# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard: every query has data on a node with jobs, and its panels and variables fit together.

No Grafana loads it here: Debian has none, and npm has only its types.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from metrics_testbed import AgentNode, make_job, make_state, parse
from promtool import ROOT, run_rule_tests

from hami_hpc.metrics.definitions import HISTOGRAM, METRICS
from hami_hpc.metrics.exposition import expose

DASHBOARD: dict[str, Any] = json.loads((ROOT / "docs/monitoring/hami-hpc.dashboard.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
BUILT_IN = {"__rate_interval", "__all"}
WIDTH = 24
# Units of Grafana's @grafana/data, valueFormats/categories.ts, as far as they are used here.
UNITS = {"short", "watt", "percentunit", "celsius", "bytes", "s", "joule", "dateTimeAsIso"}
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]


def promql(query: str) -> str:
    """Returns the query as Grafana sends it with all nodes and jobs chosen."""
    return query.replace("$__rate_interval", "5m").replace("$node", ".*").replace("$job_id", ".*")


def rules_and_check(folder: Path, queries: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Returns a rules file with an alert for each query that has no data, and a test that none of them fires."""
    node = AgentNode(folder)
    state = make_state(gpus=2, jobs=2)
    service = make_job(finding=("memory_over",))._replace(latency=1, slo_us=10_000, latency_buckets=(1,) * 42)
    node.write(state._replace(jobs=(service, *state.jobs[1:])))
    series = [
        {
            "series": name + "{" + ",".join([*(f'{key}="{text}"' for key, text in labels), 'instance="gpu01"']) + "}",
            "values": f"{value!r}+{1 if name.endswith(('_total', '_count')) else 0}x20",
        }
        for name, rows in parse(expose(node.run_dir).text).items()
        for labels, value in rows.items()
    ]
    rules = [{"alert": f"Empty{i}", "expr": f"absent({promql(query)})"} for i, query in enumerate(queries)]
    checks = [{"eval_time": "15m", "alertname": rule["alert"], "exp_alerts": []} for rule in rules]
    text = json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    return text, [{"interval": "1m", "input_series": series, "alert_rule_test": checks}]


def test_every_query_is_promql_and_has_data(tmp_path: Path) -> None:
    done = run_rule_tests(tmp_path, *rules_and_check(tmp_path, [query for _, query in QUERIES]))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "query", ["hami_hpc_gpu_state{state='gone'}", "hami_hpc_gpu_jobs / on (job_id) hami_hpc_job_info"]
)
def test_a_query_without_data_would_be_noticed(tmp_path: Path, query: str) -> None:
    done = run_rule_tests(tmp_path, *rules_and_check(tmp_path, [query]))
    assert done.returncode != 0
    assert "Empty0" in done.stdout


def test_a_query_that_is_not_promql_would_be_noticed(tmp_path: Path) -> None:
    done = run_rule_tests(tmp_path, *rules_and_check(tmp_path, ["sum(hami_hpc_gpu_jobs"]))
    assert done.returncode != 0
    assert "parse error" in done.stdout


def test_queries_and_variables_name_only_metrics_and_labels_that_exist() -> None:
    metrics = {metric.name: metric.labels for metric in METRICS}
    for metric in METRICS:
        if metric.kind == HISTOGRAM:
            metrics |= {f"{metric.name}_bucket": (*metric.labels, "le"), f"{metric.name}_count": metric.labels}
    texts = [query for _, query in QUERIES] + [
        variable["query"]["query"] for variable in VARIABLES.values() if variable["type"] == "query"
    ]
    for text in texts:
        names = re.findall(r"\bhami_hpc_\w+", text)
        assert names, text
        known = {"instance"}.union(*(metrics[name] for name in names))
        used = set(re.findall(r"(\w+)(?:=~|!=|=)\"", text))
        used |= {word for group in re.findall(r"\bby \(([^)]*)\)", text) for word in group.split(", ")}
        assert used <= known, text
    for title, legend in [(p["title"], t["legendFormat"]) for p in PANELS for t in p["targets"]]:
        assert set(re.findall(r"{{(\w+)}}", legend)) <= {"instance", "minor", "job_id", "reason", "owner"}, title


def test_every_variable_that_is_used_is_defined() -> None:
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert used - BUILT_IN == VARIABLES.keys()


def test_panels_are_within_the_grid_and_do_not_overlap() -> None:
    cells = []
    for panel in PANELS:
        at = panel["gridPos"]
        assert 0 <= at["x"] < at["x"] + at["w"] <= WIDTH, panel["title"]
        cells.append({(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])})
    assert not any(one & other for one, other in combinations(cells, 2))
    rows = Counter(y for cell in cells for _, y in cell)
    assert set(rows.values()) == {WIDTH}, "no row has a gap"
    assert set(rows) == set(range(max(rows) + 1))


def test_panels_have_what_grafana_needs() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["type"] in ("stat", "timeseries", "table")
        assert panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        ids = [target["refId"] for target in panel["targets"]]
        assert ids == [chr(ord("A") + number) for number in range(len(ids))]
        for override in panel["fieldConfig"]["overrides"]:
            assert override["matcher"]["options"].removeprefix("Value #") in ids
