# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/faults.py: what is done about errors of GPUs. A program's own error frees and drains nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_testbed import UUIDS, job_environment
from watcher_testbed import Bench, watched_node

from hami_hpc.agent.fault_events import FaultEvents
from hami_hpc.agent.faults import Faults
from hami_hpc.agent.gpus import NOT_SHOWN
from hami_hpc.core.agent_state import LOST, OK, AgentState, from_json, to_json
from hami_hpc.core.fault_log import CODES_MAX, OTHER, REPORT_NS, FaultLog
from hami_hpc.node.fault_table import FaultAction, FaultPolicy, GpuFault, Whose, fault_of, table


class FaultBench:
    """A watched node with jobs 7 and 8 on GPU 0, whose GPUs report what a test says."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.drained: list[tuple[str, str, int]] = []
        self.counts: dict[tuple[str, str], int] = {}
        bench.gpus.fault_events = self  # type: ignore[attr-defined]
        bench.gpus.lacking = lambda: self.lacks  # type: ignore[attr-defined]
        self.lacks: tuple[str, ...] = ()
        self.policy(FaultPolicy())

    def policy(self, policy: FaultPolicy) -> None:
        watcher = self.bench.watcher

        def event(fault: GpuFault, text: str, uuid: str, action: str, times: int) -> None:
            watcher.event("gpu_fault", text, 0, uuid, action, fault.xid, times, fault.whose.value)

        watcher.faults = Faults(policy, watcher.slurm, lambda *one: self.drained.append(one), event, watcher.unix_ns)

    def take(self) -> dict[tuple[str, str], int]:
        counts, self.counts = self.counts, {}
        return counts

    def report(self, *codes: str, gpu: int = 0, times: int = 1) -> AgentState:
        self.counts = {(UUIDS[gpu], code): times for code in codes}
        state: AgentState = self.bench.look()
        return state

    def told(self) -> list[tuple[str, ...]]:
        """Returns (how, job) of everything that Slurm was told."""
        return [
            (" ".join(words[1:-1]), words[-1]) if words[1] == "requeue" else words[1:3]
            for words in self.bench.slurm.heard()
        ]


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[FaultBench]:
    with watched_node(tmp_path) as bench:
        yield FaultBench(bench)


def test_a_gpu_that_fell_off_the_bus_is_drained_and_its_jobs_are_told_and_marked(faults: FaultBench) -> None:
    faults.bench.look()
    state = faults.report("79")
    assert faults.drained == [(UUIDS[0], "Xid 79: GPU has fallen off the bus", 79)]
    assert faults.told() == [("notify", "7"), ("update", "JobId=7"), ("notify", "8"), ("update", "JobId=8")]
    text = faults.bench.slurm.heard()[0][3]
    assert (
        text
        == f"hami_hpc: GPU 0 ({UUIDS[0]}) of this job reported an error: Xid 79: GPU has fallen off the bus (hardware)"
    )
    assert {job.gpu_fault for job in state.jobs} == {79}
    (event,) = faults.bench.events
    assert (event.kind, event.xid, event.fault, event.action) == (
        "gpu_fault",
        79,
        "hardware",
        "comment, unbilled, drain",
    )
    assert state.gpus[0].last_fault == "Xid 79: GPU has fallen off the bus"
    assert (state.gpus[0].fault_counts, state.gpus[1].fault_counts) == ((("79", 1),), ())
    assert from_json(to_json(state)) == state


def test_the_other_gpus_jobs_are_left_alone(faults: FaultBench) -> None:
    state = faults.report("79", gpu=1)
    assert faults.told() == []
    assert {job.gpu_fault for job in state.jobs} == {0}
    assert faults.drained == [(UUIDS[1], "Xid 79: GPU has fallen off the bus", 79)]


@given(st.sampled_from([code for code, fault in table().items() if fault.whose is Whose.APPLICATION]))
def test_no_application_error_frees_requeues_or_drains_whatever_the_policy(code: str) -> None:
    everything = frozenset(FaultAction)
    policy = FaultPolicy({code: everything}, dict.fromkeys(Whose, everything))
    assert policy.actions(fault_of(code)) == {FaultAction.LOG, FaultAction.COMMENT}


def test_an_xid_31_marks_and_drains_nothing(faults: FaultBench) -> None:
    state = faults.report("31", "13", "43", "45", "thermal_slowdown", times=5000)
    assert faults.drained == []
    assert {job.gpu_fault for job in state.jobs} == {0}


def test_an_applications_error_is_not_told_to_other_users(faults: FaultBench) -> None:
    """Else anybody could write into their output."""
    environment = job_environment(9, mem_mib=2048) | {"SLURM_JOB_UID": "1234"}
    assert faults.bench.node.run("prolog", environment) == (0, "")
    faults.bench.look()
    faults.report("31")
    assert faults.told() == []
    faults.report("79")
    assert {job for _, job in faults.told()} == {"7", "JobId=7", "8", "JobId=8", "9", "JobId=9"}


def test_an_applications_error_is_told_where_all_jobs_are_of_one_user_and_once(faults: FaultBench) -> None:
    faults.bench.look()
    for _ in range(100):
        faults.report("31")
    assert faults.told() == [("notify", "7"), ("update", "JobId=7"), ("notify", "8"), ("update", "JobId=8")]


def test_an_error_that_repeats_is_counted_and_not_logged_each_time(faults: FaultBench) -> None:
    for _ in range(125):
        state = faults.report("31", times=4000)
    assert [event.times for event in faults.bench.events] == [4000, 240_000, 240_000]
    assert state.gpus[0].fault_counts == (("31", 500_000),)
    assert "240000 times" in faults.bench.events[1].text


def test_requeue_is_asked_once_for_each_run(faults: FaultBench) -> None:
    faults.policy(FaultPolicy({"48": frozenset({FaultAction.REQUEUE})}))
    faults.bench.look()
    for _ in range(3):
        faults.report("48")
    assert faults.told() == [("requeue incomplete", "7"), ("requeue incomplete", "8")]
    assert faults.drained == []


def test_an_error_that_the_site_ignores_is_counted_alone(faults: FaultBench) -> None:
    faults.policy(FaultPolicy({"79": frozenset()}))
    state = faults.report("79")
    assert (faults.drained, faults.told(), faults.bench.events) == ([], [], [])
    assert state.gpus[0].fault_counts == (("79", 1),)


def test_a_lost_gpu_is_a_fault_at_its_second_look_and_once(faults: FaultBench) -> None:
    faults.bench.look()
    faults.bench.gpus.states[UUIDS[0]] = LOST
    faults.bench.look()
    assert faults.drained == []
    state = faults.bench.look(5)
    assert faults.drained == [(UUIDS[0], "NVML does not reach the GPU: it is lost", 79)]
    assert {job.gpu_fault for job in state.jobs} == {79}
    faults.bench.gpus.states[UUIDS[0]] = OK
    faults.bench.look()
    assert len(faults.drained) == 1


def test_a_gpu_that_nvml_does_not_list_is_being_reset_and_not_lost(
    faults: FaultBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = faults.bench.gpus.look
    monkeypatch.setattr(
        faults.bench.gpus,
        "look",
        lambda: tuple(one._replace(detail=NOT_SHOWN) if one.state == LOST else one for one in real()),
    )
    faults.bench.gpus.states[UUIDS[0]] = LOST
    faults.bench.look(10)
    assert faults.drained == []


def test_conditions_count_when_they_begin(faults: FaultBench, monkeypatch: pytest.MonkeyPatch) -> None:
    hot = [False]
    real = faults.bench.gpus.look
    monkeypatch.setattr(
        faults.bench.gpus,
        "look",
        lambda: tuple(one._replace(conditions=("thermal_slowdown",) if hot[0] else ()) for one in real()),
    )
    for hot[0] in (False, True, True, True, False, True):
        state = faults.bench.look()
    assert dict(state.gpus[0].fault_counts) == {"thermal_slowdown": 2}
    assert faults.drained == []


def test_the_mark_of_a_run_stays_when_nvml_fails_and_over_a_restart(faults: FaultBench) -> None:
    faults.bench.look()
    faults.report("79")
    faults.bench.gpus.problem = "NVML cannot be used"
    state = faults.bench.look(3)
    assert {job.gpu_fault for job in state.jobs} == {79}
    faults.bench.watcher.sums = type(faults.bench.watcher.sums).resumed(state.jobs)
    faults.bench.gpus.problem = ""
    state = faults.report("48")
    assert {job.gpu_fault for job in state.jobs} == {79}


def test_errors_that_come_while_nvml_fails_mark_the_runs_that_were_there(faults: FaultBench) -> None:
    faults.bench.look()
    faults.bench.gpus.problem = "NVML cannot be used"
    state = faults.report("79")
    assert {job.gpu_fault for job in state.jobs} == {79}


def test_what_a_driver_lacks_is_said_once(faults: FaultBench) -> None:
    faults.lacks = ("this driver has no nvmlEventSetCreate",)
    faults.bench.look(5)
    assert faults.bench.kinds() == ["faults_unwatched"]


def test_codes_without_end_are_bounded() -> None:
    log = FaultLog()
    for code in range(10_000):
        log.update(code * REPORT_NS, {("GPU", str(code)): 1})
    assert len(log.totals) == CODES_MAX + 1
    assert log.totals["GPU", OTHER] == 10_000 - CODES_MAX


def test_an_unknown_code_is_told_and_no_more() -> None:
    fault = fault_of("4711")
    assert fault.whose is Whose.UNKNOWN
    assert fault.actions == {FaultAction.LOG, FaultAction.COMMENT}


def test_without_a_thread_nvml_can_be_closed_at_once() -> None:
    assert FaultEvents().stop()
