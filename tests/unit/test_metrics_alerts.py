# SPDX-License-Identifier: Apache-2.0
"""Each alert of docs/monitoring fires on the metrics of a state that should raise it, and on no healthy one.

The series are the expositions of real states: 30 minutes of a healthy one, then a faulty one. gpu02 is always healthy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from metrics_testbed import GIB, SECOND, AgentNode, make_state, parse
from promtool import ROOT, promtool, run_rule_tests

from hami_hpc.core.agent_state import AgentState, GpuState, JobState, OtherProcess
from hami_hpc.core.mode_outage import Outage
from hami_hpc.core.watch import Kind
from hami_hpc.metrics.definitions import HISTOGRAM, METRICS
from hami_hpc.metrics.exposition import expose
from hami_hpc.node import mode_outages

PARTS = {HISTOGRAM: ("_bucket", "_sum", "_count")}
SCRAPED = {f"{metric.name}{part}" for metric in METRICS for part in PARTS.get(metric.kind, ("",))}
RULES = ROOT / "docs/monitoring/hami-hpc.rules.yml"
HEALTHY, FAULTY = 30, 30  # minutes
SOON, LATE = 30, 44  # minutes: the first evaluation of the faulty state, and one after every `for`
LAST_LOOK = "hami_hpc_agent_last_look_timestamp_seconds"
GPU = {"gpu": "GPU-00000000-0000-0000-0000-000000000000", "minor": "0", "model": "h200"}
JOB = {"gpu": GPU["gpu"], "minor": "0", "job_id": "7", "uid": "1007", "class": "std"}


SERVED = (0,) * 10 + (1000,) + (0,) * 31
REQUESTS = {"slo_us": 10_000, "latency_buckets": SERVED, "latency_sum_ns": 1500 * SECOND // 1000, "slo_miss_count": 3}


def healthy() -> AgentState:
    """Returns a state of two GPUs with a job each, none of which was ever disturbed. The memory of the second GPU is
    oversold, and what its job holds stands for that of several."""
    state = make_state(gpus=2)
    jobs = [job._replace(disturbed_count=0, latency=1, **REQUESTS) for job in state.jobs]  # type: ignore[arg-type]
    jobs[1] = jobs[1]._replace(mem_bytes=400 * GIB, cores_percent=330)
    gpus = (state.gpus[0], state.gpus[1]._replace(sold_percent=334))
    daemon = OtherProcess(100, 0, 0, state.gpus[0].uuid, 200 << 20, 0.0)
    whole = OtherProcess(101, 0, 99, "GPU-of-a-whole-GPU-job", 90 * GIB, 0.0)
    return state._replace(gpus=gpus, jobs=tuple(jobs), others=(daemon, whole))


def with_gpu(state: AgentState, /, **fields: Any) -> AgentState:
    first: GpuState = state.gpus[0]
    return state._replace(gpus=(first._replace(**fields), *state.gpus[1:]))


def with_job(state: AgentState, /, **fields: Any) -> AgentState:
    first: JobState = state.jobs[0]
    return state._replace(jobs=(first._replace(**fields), *state.jobs[1:]))


def with_finding(kind: Kind) -> Callable[[AgentState], AgentState]:
    return lambda state: with_job(state, findings=(kind.value,))


def with_other(job_id: int) -> Callable[[AgentState], AgentState]:
    return lambda state: state._replace(others=(OtherProcess(1, 5, job_id, state.gpus[0].uuid, GIB, 0.0),))


def aged(state: AgentState) -> AgentState:
    return state._replace(boot_time_ns=state.boot_time_ns - 60 * SECOND)


@dataclass(frozen=True)
class Case:
    """An alert, the change to a healthy state that raises it, and the alert's labels and summary.

    `overrides` are values of series in the faulty minutes; `down`: nothing can be scraped then.
    """

    alert: str
    labels: Mapping[str, str]
    summary: str
    severity: str = "warning"
    change: Callable[[AgentState], AgentState] = lambda state: state
    overrides: Mapping[str, str] = field(default_factory=dict)
    is_down: bool = False
    waits: bool = True  # the alert has `for`
    fires_at: int = LATE
    modes_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.alert + "".join(f"-{v}" for k, v in self.labels.items() if k == "kind")


UNCOUNTED_JOB = "gpu01: job 7 of uid 1007 uses the GPU past the interposer"
CASES = [
    Case("HamiHpcMetricsAbsent", {}, "gpu01: hami-hpc metrics cannot be scraped", is_down=True),
    Case("HamiHpcAgentNotLooking", {}, "gpu01: hami_hpc's agent does not look", "critical", aged),
    Case(
        "HamiHpcMetricsOld",
        {},
        "gpu01: the metrics are of 14m 0s ago",
        overrides={LAST_LOOK: f"{HEALTHY * 60}x{FAULTY}"},
    ),
    Case(
        "HamiHpcAgentBlind",
        {},
        "gpu01: the agent looks and sees no GPU",
        "critical",
        lambda state: state._replace(gpus=(), jobs=(), others=()),
    ),
    Case(
        "HamiHpcAgentRestarts",
        {},
        "gpu01: the agent started 15 times in 30 minutes",
        overrides={"hami_hpc_agent_start_timestamp_seconds": f"1+1x{FAULTY}"},
        waits=False,
    ),
    Case(
        "HamiHpcGpuLost",
        GPU | {"state": "lost"},
        f"gpu01: GPU 0 ({GPU['gpu']}) has fallen off the bus",
        "critical",
        lambda state: with_gpu(state, state="lost"),
    ),
    Case(
        "HamiHpcGpuFault",
        GPU | {"xid": "79"},
        f"gpu01: GPU 0 ({GPU['gpu']}) reports a fault of its hardware: 79",
        "critical",
        lambda state: with_gpu(state, fault_counts=(("31", 500), ("79", 1), ("thermal_slowdown", 7))),
        waits=False,
        fires_at=33,  # it is silent again after 15 minutes without a new one
    ),
    Case(
        "HamiHpcGpuMissing",
        {},
        "gpu01: NVML lists 1 GPUs, fewer than within the last day",
        change=lambda state: state._replace(gpus=state.gpus[1:], jobs=state.jobs[1:]),
    ),
    Case(
        "HamiHpcGpuError",
        GPU | {"state": "error"},
        f"gpu01: NVML fails on GPU 0 ({GPU['gpu']})",
        change=lambda state: with_gpu(state, state="error"),
    ),
    Case(
        "HamiHpcJobAboveItsMemory",
        JOB,
        "gpu01: job 7 of uid 1007 holds 2GiB more than its grant",
        change=lambda state: with_job(state, used_bytes=10 * GIB),
    ),
    Case(
        "HamiHpcJobWithoutInterposer",
        JOB | {"kind": "no_interposer"},
        f"{UNCOUNTED_JOB} (no_interposer)",
        change=with_finding(Kind.NO_INTERPOSER),
    ),
    Case(
        "HamiHpcJobWithoutInterposer",
        JOB | {"kind": "uncounted"},
        f"{UNCOUNTED_JOB} (uncounted)",
        change=with_finding(Kind.UNCOUNTED),
    ),
    Case(
        "HamiHpcJobAboveItsShare",
        JOB | {"kind": "time_over"},
        "gpu01: job 7 of uid 1007 takes more than its share of the GPU's time",
        change=with_finding(Kind.TIME_OVER),
    ),
    Case(
        "HamiHpcJobOnWrongGpu",
        JOB | {"kind": "wrong_gpu"},
        "gpu01: job 7 of uid 1007 uses a GPU that it does not hold",
        change=with_finding(Kind.WRONG_GPU),
    ),
    *(
        Case(
            "HamiHpcGpuWithoutGrant",
            {"kind": kind},
            f"gpu01: {summary}",
            change=lambda state, kind=kind: state._replace(event_counts=((kind, 1),)),  # type: ignore[misc]
            waits=False,
            fires_at=33,  # it is silent again after 15 minutes without a new one
        )
        for kind, summary in (
            ("no_job", "a process of no job used a GPU"),
            ("no_grant", "a job used a GPU that it does not hold"),
        )
    ),
    Case(
        "HamiHpcMemoryOfNoJob",
        GPU | {"owner": "none"},
        "gpu01: processes of no job hold 1GiB of GPU 0",
        change=with_other(0),
    ),
    Case(
        "HamiHpcJobOnSlicedGpu",
        GPU | {"owner": "job"},
        "gpu01: a job without a slice holds 1GiB of GPU 0, which has slices of others",
        change=with_other(99),
    ),
    Case(
        "HamiHpcGrantsAboveGpu",
        GPU,
        "gpu01: the grants of GPU 0 are more than the GPU has",
        "critical",
        lambda state: with_job(state, cores_percent=101),
    ),
    Case(
        "HamiHpcGrantsAboveGpu",
        GPU,
        "gpu01: the grants of GPU 0 are more than the GPU has",
        "critical",
        lambda state: with_job(state, mem_bytes=141 * GIB),
    ),
    Case(
        "HamiHpcGrantsAboveGpu",
        GPU,
        "gpu01: the grants of GPU 0 are more than the GPU has",
        "critical",
        lambda state: with_job(with_gpu(state, sold_percent=223), cores_percent=224),
    ),
    Case(
        "HamiHpcSloMisses",
        JOB,
        "gpu01: of the requests of job 7 of uid 1007 more than 1 % took longer than its slo in the last 10 minutes",
        change=lambda state: with_job(
            state, latency_buckets=tuple(2 * count for count in SERVED), slo_miss_count=3 + 20
        ),
        waits=False,
        fires_at=33,  # it is silent again after ten minutes without a new one
    ),
    Case(
        "HamiHpcModeOut",
        {"mode": "mig"},
        "gpu01: mode=mig failed repeatedly and is out of the node's features",
        waits=False,
        modes_out=("mig",),
    ),
    Case(
        "HamiHpcJobsDisturbed",
        JOB,
        "gpu01: job 7 of uid 1007 found no memory within its grant, because another held more than its own",
        change=lambda state: with_job(state, disturbed_count=2),
        waits=False,
        fires_at=33,  # it is silent again after ten minutes without a new one
    ),
    Case(
        "HamiHpcJobsDisturbed",
        JOB | {"job_id": "8888"},
        "gpu01: job 8888 of uid 1007 found no memory within its grant, because another held more than its own",
        change=lambda state: with_job(state, disturbed_count=2, job_id=8888),
        waits=False,
        fires_at=33,  # it is silent again after ten minutes without a new one
    ),
]


def rules_text() -> str:
    """Returns the rules without their descriptions, which would have to be repeated here."""
    return re.sub(r"^ *description: .*\n", "", RULES.read_text(encoding="utf-8"), flags=re.MULTILINE)


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))


def exposed(folder: Path, state: AgentState, modes_out: tuple[str, ...] = ()) -> dict[str, tuple[str, float]]:
    """Returns {series without target labels: (metric, value)}."""
    node = AgentNode(folder)
    node.write(state)
    mode_outages.write(node.run_dir, [Outage(mode, 1, 2, "", "") for mode in modes_out])
    found = {}
    for name, rows in parse(expose(node.run_dir, node.run_dir).text).items():
        for labels, value in rows.items():
            found[",".join([name, *(f'{key}="{text}"' for key, text in sorted(labels))])] = (name, value)
    return found


def series(folder: Path, instance: str, case: Case) -> list[dict[str, str]]:
    before = exposed(folder / f"{instance}-before", healthy())
    after = exposed(folder / f"{instance}-after", case.change(healthy()), case.modes_out)
    target = f'job="hami-hpc",instance="{instance}"'
    rows = [{"series": f"up{{{target}}}", "values": f"1x{HEALTHY - 1} {0 if case.is_down else 1}x{FAULTY}"}]
    for key in sorted(before.keys() | after.keys()):
        name, _, labels = key.partition(",")
        first = f"{before[key][1]!r}x{HEALTHY - 1}" if key in before else f"_x{HEALTHY}"
        last = f"{after[key][1]!r}x{FAULTY}" if key in after and not case.is_down else f"_x{FAULTY}"
        if name == LAST_LOOK:  # promtool's clock starts at 0
            first, last = f"0+60x{HEALTHY - 1}", f"{HEALTHY * 60}+60x{FAULTY}"
        last = case.overrides.get(name, last)
        rows.append({"series": f"{name}{{{target}{',' if labels else ''}{labels}}}", "values": f"{first} {last}"})
    return rows


HEALTHY_CASE = Case("", {}, "")


def checks_of(folder: Path, case: Case) -> list[dict[str, Any]]:
    """Returns promtool's test of one case: silence at first, and the alert of gpu01 alone later."""
    labels = {"severity": case.severity, "instance": "gpu01", **case.labels}
    if case.alert != "HamiHpcGpuMissing":  # it counts by instance
        labels["job"] = "hami-hpc"
    fires = {"exp_labels": labels, "exp_annotations": {"summary": case.summary}}
    silent = [{"eval_time": f"{HEALTHY - 1}m", "alertname": name, "exp_alerts": []} for name in alerts()]
    if case.waits:
        silent.append({"eval_time": f"{SOON}m", "alertname": case.alert, "exp_alerts": []})
    return [
        {
            "interval": "1m",
            "input_series": series(folder, "gpu01", case) + series(folder, "gpu02", HEALTHY_CASE),
            "alert_rule_test": [
                *silent,
                {"eval_time": f"{case.fires_at}m", "alertname": case.alert, "exp_alerts": [fires]},
            ],
        }
    ]


def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout
    assert f"{len(alerts())} rules found" in done.stdout


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_alert_fires_where_it_should_and_only_there(tmp_path: Path, case: Case) -> None:
    done = run_rule_tests(tmp_path, rules_text(), checks_of(tmp_path, case))
    assert done.returncode == 0, done.stdout


def test_each_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == set(alerts())


@pytest.mark.parametrize("case", {case.alert: case for case in CASES}.values(), ids=str)
def test_these_tests_fail_for_an_alert_that_never_fires(tmp_path: Path, case: Case) -> None:
    pattern = rf"(- alert: {case.alert}\n +expr: )(?:>-\n(?: {{10}}.*\n)+|.*\n)"
    rules, count = re.subn(pattern, r"\1vector(0) > 1\n", rules_text())
    assert count == 1
    done = run_rule_tests(tmp_path, rules, checks_of(tmp_path, case))
    assert done.returncode != 0
    assert f"alertname: {case.alert}" in done.stdout


def test_the_rules_name_only_metrics_and_findings_that_exist() -> None:
    text = RULES.read_text(encoding="utf-8")
    assert set(re.findall(r"\bhami_hpc_[a-z_]+(?=[\s{)\[])", text)) <= SCRAPED
    kinds = {kind for match in re.findall(r'kind=~?"([^"]*)"', text) for kind in match.split("|")}
    assert kinds <= {kind.value for kind in Kind}
