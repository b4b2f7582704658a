# SPDX-License-Identifier: Apache-2.0
"""Metrics: each value of the agent's state in base units, and what is said when there is no state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metrics_testbed import CREATED_NS, GIB, SECOND, STARTED_NS, AgentNode, Labels, make_job, make_state, parse, value

from hami_hpc.core.agent_state import AgentState, JobState, OtherProcess, Standing, to_json
from hami_hpc.core.mode_outage import Outage
from hami_hpc.errors import NodeError
from hami_hpc.metrics.definitions import COUNTER, HISTOGRAM, METRICS
from hami_hpc.metrics.exposition import expose
from hami_hpc.metrics.samples import OWNERS, Status
from hami_hpc.node import agent_file, mig_notes, mode_outages


@pytest.fixture
def node(tmp_path: Path) -> AgentNode:
    return AgentNode(tmp_path)


def make_service() -> JobState:
    """A latency-critical job with requests: 1, 2, 3 in the first rows, 7 in the last with a bound, 8 above."""
    return make_job(finding=("memory",))._replace(
        latency=1,
        slo_us=10_000,
        latency_buckets=(1, 2, 3, *(0,) * 37, 7, 8),
        latency_sum_ns=SECOND // 4,
        slo_miss_count=2,
        floor_hit_count=5,
        beyond_cores=1,
    )


def samples_of(node: AgentNode, state: AgentState) -> dict[str, dict[Labels, float]]:
    node.write(state)
    exposition = expose(node.run_dir, node.run_dir)
    assert (exposition.status, exposition.problem) == (Status.LOOKING, "")
    return parse(exposition.text)


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("hami_hpc_agent_up", {}, 1),
        ("hami_hpc_agent_status", {"status": "looking"}, 1),
        ("hami_hpc_agent_status", {"status": "stale"}, 0),
        ("hami_hpc_agent_period_seconds", {}, 1),
        ("hami_hpc_agent_looks_total", {}, 1000),
        ("hami_hpc_agent_events_total", {"kind": "memory_over"}, 2),
        ("hami_hpc_agent_events_total", {"kind": "no_job"}, 0),
        ("hami_hpc_agent_start_timestamp_seconds", {}, STARTED_NS / SECOND),
        ("hami_hpc_agent_last_event_timestamp_seconds", {"kind": "memory"}, CREATED_NS / SECOND + 5),
        ("hami_hpc_agent_last_event_timestamp_seconds", {"kind": "started"}, CREATED_NS / SECOND),
        ("hami_hpc_gpu_state", {"minor": "0", "model": "h200", "state": "ok"}, 1),
        ("hami_hpc_gpu_state", {"state": "lost"}, 0),
        ("hami_hpc_gpu_state", {"state": "error"}, 0),
        ("hami_hpc_gpu_memory_total_bytes", {}, 140 * GIB),
        ("hami_hpc_gpu_memory_used_bytes", {}, 100 * GIB),
        ("hami_hpc_gpu_memory_granted_bytes", {}, 8 * GIB),
        ("hami_hpc_gpu_share_granted_ratio", {}, 0.5),
        ("hami_hpc_gpu_jobs", {}, 1),
        ("hami_hpc_gpu_busy_ratio", {}, 0.75),
        ("hami_hpc_gpu_power_watts", {}, 450.5),
        ("hami_hpc_gpu_energy_joules_total", {}, 12345.678),
        ("hami_hpc_gpu_temperature_celsius", {}, 61),
        ("hami_hpc_gpu_other_processes", {"owner": "none"}, 1),
        ("hami_hpc_gpu_other_processes", {"owner": "job"}, 2),
        ("hami_hpc_gpu_other_memory_bytes", {"owner": "none"}, 512 << 20),
        ("hami_hpc_gpu_other_memory_bytes", {"owner": "job"}, 2 * GIB),
        ("hami_hpc_job_info", {"job_id": "7", "uid": "1007", "class": "std", "policy": "cap", "mode": "share"}, 1),
        ("hami_hpc_job_start_timestamp_seconds", {}, CREATED_NS / SECOND),
        ("hami_hpc_job_memory_granted_bytes", {}, 8 * GIB),
        ("hami_hpc_job_memory_used_bytes", {}, 6 * GIB),
        ("hami_hpc_job_memory_peak_bytes", {}, 7 * GIB),
        ("hami_hpc_job_memory_accounted_bytes", {}, 5 * GIB),
        ("hami_hpc_job_share_granted_ratio", {}, 0.5),
        ("hami_hpc_job_busy_ratio", {}, 0.25),
        ("hami_hpc_job_busy_seconds_total", {}, 90),
        ("hami_hpc_job_watched_seconds_total", {}, 300),
        ("hami_hpc_job_off_gpu_seconds_total", {}, 75),
        ("hami_hpc_job_energy_joules_total", {}, 40.5),
        ("hami_hpc_job_processes", {}, 2),
        ("hami_hpc_job_refused_allocations_total", {"reason": "grant"}, 4),
        ("hami_hpc_job_refused_allocations_total", {"reason": "gpu"}, 1),
        ("hami_hpc_job_disturbed_allocations_total", {}, 3),
        ("hami_hpc_job_pauses_total", {}, 6),
        ("hami_hpc_job_paused_seconds_total", {}, 1.5),
        ("hami_hpc_job_floor_hits_total", {}, 5),
        ("hami_hpc_job_beyond_cores", {}, 1),
        ("hami_hpc_job_slo_seconds", {}, 0.01),
        ("hami_hpc_job_slo_misses_total", {}, 2),
        ("hami_hpc_job_request_seconds_count", {}, 21),
        ("hami_hpc_job_request_seconds_sum", {}, 0.25),
        ("hami_hpc_job_request_seconds_bucket", {"le": "6.4e-05"}, 1),
        ("hami_hpc_job_request_seconds_bucket", {"le": "0.000128"}, 6),
        ("hami_hpc_job_request_seconds_bucket", {"le": "67.108864"}, 13),
        ("hami_hpc_job_request_seconds_bucket", {"le": "+Inf"}, 21),
        ("hami_hpc_job_finding", {"kind": "memory"}, 1),
    ],
)
def test_each_value_is_in_base_units(node: AgentNode, name: str, labels: dict[str, str], expected: float) -> None:
    state = make_state()._replace(jobs=(make_service(),))
    assert value(samples_of(node, state), name, **labels) == pytest.approx(expected)


def test_every_metric_is_exported_and_nothing_else(node: AgentNode) -> None:
    names = {metric.name for metric in METRICS if metric.kind != HISTOGRAM}
    names |= {f"{m.name}_{part}" for m in METRICS if m.kind == HISTOGRAM for part in ("bucket", "sum", "count")}
    state = make_state()
    faulty = state.gpus[0]._replace(fault_counts=(("79", 1),))
    mig_notes.count_no_room(str(node.run_dir))
    mode_outages.write(str(node.run_dir), (Outage("mig", 1, 2, "", ""),))
    assert samples_of(node, state._replace(jobs=(make_service(),), gpus=(faulty,))).keys() == names


def test_errors_of_a_gpu_are_counted_by_code_also_while_it_is_lost(node: AgentNode) -> None:
    state = make_state()
    faulty = state.gpus[0]._replace(state="lost", fault_counts=(("79", 1), ("thermal_slowdown", 7)))
    rows = samples_of(node, state._replace(gpus=(faulty, *state.gpus[1:])))["hami_hpc_gpu_faults_total"]
    assert {dict(labels)["xid"]: value for labels, value in rows.items()} == {"79": 1, "thermal_slowdown": 7}


def test_requests_are_exported_of_jobs_that_are_measured_and_of_no_others(node: AgentNode) -> None:
    for fields, expected in (({}, None), ({"latency": 1}, 0), ({"latency_buckets": (4, *(0,) * 41)}, 4)):
        job = make_job()._replace(**fields)
        samples = samples_of(node, make_state()._replace(jobs=(job,)))
        assert value(samples, "hami_hpc_job_request_seconds_count") == expected
        assert (value(samples, "hami_hpc_job_slo_misses_total") is None) == (expected is None)
        assert value(samples, "hami_hpc_job_slo_seconds") is None


def test_counts_of_another_number_of_rows_are_no_state(node: AgentNode) -> None:
    job = make_job()._replace(latency_buckets=(1, 2, 3))
    node.write(make_state()._replace(jobs=(job,)))
    assert expose(node.run_dir).status is Status.ABSENT


def test_names_and_labels_follow_prometheus_conventions() -> None:
    for metric in METRICS:
        assert metric.name.startswith("hami_hpc_")
        assert metric.name.endswith("_total") == (metric.kind == COUNTER), metric.name
        assert not {"job", "instance", "le", "quantile"} & set(metric.labels), metric.name
        assert metric.help.isascii(), metric.name
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_memory_and_share_are_summed_over_the_jobs_of_each_gpu(node: AgentNode) -> None:
    samples = samples_of(node, make_state(gpus=2, jobs=3))
    for minor in "01":
        assert value(samples, "hami_hpc_gpu_memory_granted_bytes", minor=minor) == 24 * GIB
        assert value(samples, "hami_hpc_gpu_share_granted_ratio", minor=minor) == 1.5
        assert value(samples, "hami_hpc_gpu_jobs", minor=minor) == 3
    assert value(samples, "hami_hpc_gpu_other_processes", minor="1", owner="none") == 0


def test_a_lost_gpu_has_a_state_and_no_measured_values(node: AgentNode) -> None:
    state = make_state()
    lost = state.gpus[0]._replace(state="lost", detail="GPU is lost")
    samples = samples_of(node, state._replace(gpus=(lost,)))
    assert value(samples, "hami_hpc_gpu_state", state="lost") == 1
    assert value(samples, "hami_hpc_gpu_state", state="ok") == 0
    assert value(samples, "hami_hpc_gpu_memory_granted_bytes") == 8 * GIB
    for name in ("memory_used_bytes", "busy_ratio", "power_watts", "energy_joules_total", "temperature_celsius"):
        assert f"hami_hpc_gpu_{name}" not in samples


def test_what_nvml_has_no_number_for_is_absent_and_not_zero(node: AgentNode) -> None:
    state = make_state()
    gpu = state.gpus[0]._replace(power_mw=0, energy_mj=0, temperature_c=0, used_bytes=0, busy_percent=0.0)
    samples = samples_of(node, state._replace(gpus=(gpu,)))
    for name in ("power_watts", "energy_joules_total", "temperature_celsius"):
        assert f"hami_hpc_gpu_{name}" not in samples
    assert value(samples, "hami_hpc_gpu_memory_used_bytes") == 0
    assert value(samples, "hami_hpc_gpu_busy_ratio") == 0


def test_of_two_runs_of_a_job_the_newest_is_exported(node: AgentNode) -> None:
    old, new = make_job(), make_job()._replace(created_unix_ns=CREATED_NS + SECOND, used_bytes=GIB)
    for jobs in ((old, new), (new, old)):
        samples = samples_of(node, make_state()._replace(jobs=jobs))
        assert value(samples, "hami_hpc_job_memory_used_bytes") == GIB
        assert value(samples, "hami_hpc_gpu_jobs") == 1


def test_a_process_on_a_gpu_that_the_state_does_not_list_is_counted(node: AgentNode) -> None:
    other = OtherProcess(1, 0, 0, "GPU-gone", GIB, 0.0)
    samples = samples_of(node, make_state()._replace(others=(other,)))
    assert value(samples, "hami_hpc_gpu_other_memory_bytes", gpu="GPU-gone", owner="none") == GIB


def test_a_process_whose_job_is_not_known_is_neither_of_a_job_nor_of_none(node: AgentNode) -> None:
    other = OtherProcess(1, 0, -1, make_state().gpus[0].uuid, GIB, 0.0)
    samples = samples_of(node, make_state()._replace(others=(other,)))
    owners = {owner: value(samples, "hami_hpc_gpu_other_processes", owner=owner) for owner in OWNERS}
    assert owners == {"job": 0, "none": 0, "unknown": 1}


def test_an_agent_that_does_not_say_when_it_started_has_no_start(node: AgentNode) -> None:
    samples = samples_of(node, make_state()._replace(started_unix_ns=0))
    assert "hami_hpc_agent_start_timestamp_seconds" not in samples


def test_names_from_outside_cannot_break_a_line(node: AgentNode) -> None:
    model = 'h200"} 1\nevil 1\\'
    gpu = make_state().gpus[0]._replace(model=model)
    samples = samples_of(node, make_state()._replace(gpus=(gpu,)))
    assert "evil" not in samples
    assert value(samples, "hami_hpc_gpu_jobs", model=model) == 1


def check_down(node: AgentNode, status: Status, names: set[str] = frozenset()) -> str:  # type: ignore[assignment]
    """Checks that the metrics say that the agent is down, and that beside it there are those of `names` alone."""
    exposition = expose(node.run_dir)
    samples = parse(exposition.text)
    assert exposition.status is status
    assert samples["hami_hpc_agent_up"] == {frozenset(): 0}
    assert value(samples, "hami_hpc_agent_status", status=status.value) == 1
    assert sum(samples["hami_hpc_agent_status"].values()) == 1
    assert samples.keys() - {"hami_hpc_agent_up", "hami_hpc_agent_status"} == names
    return exposition.problem


def test_without_a_state_file_the_agent_is_absent(node: AgentNode) -> None:
    assert "Is the agent running?" in check_down(node, Status.ABSENT)


STALE_NAMES = {
    "hami_hpc_agent_last_look_timestamp_seconds",
    "hami_hpc_agent_last_look_age_seconds",
    "hami_hpc_agent_period_seconds",
    "hami_hpc_agent_looks_total",
    "hami_hpc_agent_events_total",
    "hami_hpc_agent_start_timestamp_seconds",
}


def test_a_stale_state_keeps_the_metrics_of_the_agent_alone(node: AgentNode) -> None:
    state = make_state()
    node.write(state._replace(boot_time_ns=state.boot_time_ns - 11 * SECOND))
    assert "11 s ago" in check_down(node, Status.STALE, STALE_NAMES)
    age = value(parse(expose(node.run_dir).text), "hami_hpc_agent_last_look_age_seconds")
    assert age is not None
    assert 11 <= age < 20


def test_stale_is_counted_in_periods_and_by_a_clock_that_is_not_set(node: AgentNode) -> None:
    state = make_state()._replace(time_unix_ns=0)
    node.write(state._replace(boot_time_ns=state.boot_time_ns - 11 * SECOND, period_ns=2 * SECOND))
    assert expose(node.run_dir).status is Status.LOOKING
    node.write(state._replace(boot_time_ns=state.boot_time_ns + 3600 * SECOND))
    assert expose(node.run_dir).status is Status.STALE, "a look in the future is none of this boot"


def damaged(change: dict[str, Any]) -> str:
    return json.dumps(json.loads(to_json(make_state())) | change)


@pytest.mark.parametrize(
    "text",
    [
        lambda: "",
        lambda: "{",
        lambda: "null",
        lambda: "[]",
        lambda: to_json(make_state())[:-40],
        lambda: "[" * 100_000,
        lambda: damaged({"version": 2}),
        lambda: damaged({"boot_id": "another"}),
        lambda: damaged({"period_ns": "1"}),
        lambda: damaged({"boot_time_ns": None}),
        lambda: damaged({"looks": [1]}),
        lambda: damaged({"looks": 10**400}),
        lambda: damaged({"gpus": None}),
        lambda: damaged({"gpus": [make_state().gpus[0]._asdict() | {"busy_percent": "x"}]}),
        lambda: damaged({"gpus": [make_state().gpus[0]._asdict() | {"uuid": 5}]}),
        lambda: damaged({"gpus": [make_state().gpus[0]._asdict() | {"model": "\ud800"}]}),
        lambda: damaged({"jobs": [make_job()._asdict() | {"gpu_uuid": []}]}),
        lambda: damaged({"jobs": [make_job()._asdict() | {"findings": [5]}]}),
        lambda: damaged({"events": [{"kind": "x"}]}),
    ],
)
def test_a_state_that_is_cut_off_or_damaged_is_said_to_be_absent(node: AgentNode, text: Callable[[], str]) -> None:
    node.state_file.write_text(text())
    check_down(node, Status.ABSENT)


def test_a_user_who_may_not_read_the_state_is_told_so(node: AgentNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_run_dir: str, _boot_id: str) -> None:
        raise NodeError("only root and the group of [agent] can read it")

    monkeypatch.setattr(agent_file, "read", refuse)
    assert "only root" in check_down(node, Status.UNREADABLE)


def test_jobs_that_wait_for_room_or_could_not_leave_are_counted_by_gpu(node: AgentNode) -> None:
    state = make_state(2)
    first, second = (gpu.uuid for gpu in state.gpus)
    states = ((first, "room"), (first, "room"), (first, "stays"), (first, "waits"), (second, "stays"))
    standings = tuple(Standing(100 + n, 1, gpu, word, 1) for n, (gpu, word) in enumerate(states))
    found = samples_of(node, state._replace(standings=standings))
    for name, counts in (("without_room", (2, 0)), ("that_stay", (1, 1))):
        assert tuple(value(found, f"hami_hpc_gpu_jobs_{name}", minor=minor) for minor in ("0", "1")) == counts
