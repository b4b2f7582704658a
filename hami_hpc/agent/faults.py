# SPDX-License-Identifier: Apache-2.0
"""What is done about errors of GPUs: [agent.faults] of the settings, and the table node/xids.tsv.

NVML does not say which process met an error, so whatever is done concerns all slices on that GPU. Nothing that an
application can cause frees a run, requeues a job or takes a GPU out of service.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from hami_hpc.agent.gpus import NOT_SHOWN, GpuLook
from hami_hpc.agent.slurm_port import SlurmPort
from hami_hpc.core.agent_state import LOST, GpuState, JobState
from hami_hpc.core.fault_log import FaultLog
from hami_hpc.core.job_sums import JobSums
from hami_hpc.core.watch import SECOND, Throttle
from hami_hpc.node.fault_table import FaultAction, FaultPolicy, GpuFault, Whose, fault_of

GPU_LOST = "gpu_lost"
LOST_LOOKS = 2  # consecutive looks: a GPU that is being reset is lost for a moment
TOLD_NS = 600 * SECOND  # between two comments to one job about one error


@dataclass
class Faults:
    """The errors of this node's GPUs. `drain` takes one GPU out of service, `event` keeps an event."""

    policy: FaultPolicy
    slurm: SlurmPort
    drain: Callable[[str, str, int], None]
    event: Callable[[GpuFault, str, str, str, int], None]  # fault, text, GPU, action, count
    unix_ns: Callable[[], int]
    log: FaultLog = field(default_factory=FaultLog)
    _news: dict[tuple[str, str], int] = field(default_factory=dict)
    _conditions: dict[str, frozenset[str]] = field(default_factory=dict)  # of each GPU, at the last look
    _lost: dict[str, int] = field(default_factory=dict)  # consecutive looks
    _last: dict[str, tuple[str, int]] = field(default_factory=dict)  # title and time of each GPU's last error
    _told: Throttle = field(default_factory=lambda: Throttle(1, TOLD_NS))
    _names: dict[str, str] = field(default_factory=dict)  # by UUID
    _requeued: set[tuple[int, int]] = field(default_factory=set)

    def resume(self, gpus: Iterable[GpuState]) -> None:
        """Takes each GPU's last error from an earlier agent's state."""
        self._last = {gpu.uuid: (gpu.last_fault, gpu.last_fault_unix_ns) for gpu in gpus if gpu.last_fault}

    def add(self, counts: dict[tuple[str, str], int]) -> None:
        """Adds events of NVML's, by GPU and code."""
        for key, count in counts.items():
            self._news[key] = self._news.get(key, 0) + count

    def look(self, boot_ns: int, gpus: Iterable[GpuLook], sums: JobSums) -> None:
        """Takes one look's conditions, acts on what is new, and marks the runs that met a fault of the GPU."""
        for one in gpus:
            self._names[one.gpu.uuid] = f"GPU {one.gpu.minor} ({one.gpu.uuid})"
            self._compare(one)
        news, self._news = self._news, {}
        for uuid, code in news:
            fault = fault_of(code)
            actions = self.policy.actions(fault)
            self._last[uuid] = (fault.title, self.unix_ns())
            if FaultAction.UNBILLED in actions and fault.xid:
                sums.mark(uuid, fault.xid)
            if FaultAction.DRAIN in actions:
                self.drain(uuid, fault.title, fault.xid)
            jobs = sums.on(uuid)
            if FaultAction.COMMENT in actions:
                self._comment(boot_ns, fault, uuid, jobs)
            if FaultAction.REQUEUE in actions:
                self._requeue(jobs, sums)
        for report in self.log.update(boot_ns, news):
            self._report(report.gpu_uuid, report.code, report.times)

    def fields(self, uuid: str) -> tuple[str, int, tuple[tuple[str, int], ...]]:
        """Returns a GPU's last error, its time, and the counts by code, for the state."""
        return (*self._last.get(uuid, ("", 0)), self.log.of_gpu(uuid))

    def _compare(self, one: GpuLook) -> None:
        """Counts the conditions that a GPU did not have at the last look. One that NVML does not show at all is being
        reset, or its driver is: that is no fault."""
        uuid = one.gpu.uuid
        is_lost = one.state == LOST and one.detail != NOT_SHOWN
        self._lost[uuid] = self._lost.get(uuid, 0) + 1 if is_lost else 0
        before = self._conditions.get(uuid, frozenset())
        now = before & {GPU_LOST} if is_lost else frozenset(one.conditions)
        if self._lost[uuid] >= LOST_LOOKS:
            now |= {GPU_LOST}
        self.add({(uuid, code): 1 for code in now - before})
        self._conditions[uuid] = now

    def _comment(self, boot_ns: int, fault: GpuFault, uuid: str, jobs: Collection[JobState]) -> None:
        """Tells the jobs on a GPU. What an application did is told where all of them are of one user: nobody can write
        into the output of others, or learns what their programs do."""
        if fault.whose is not Whose.HARDWARE and len({job.uid for job in jobs}) > 1:
            return
        text = f"{self._name(uuid)} of this job reported an error: {fault.title} ({fault.whose.value})"
        for job in jobs:
            if self._told.admits((job.job_id, fault.code), boot_ns):
                self.slurm.warn(job.job_id, f"hami_hpc: {text}")
                self.slurm.comment(job.job_id, text)

    def _requeue(self, jobs: Iterable[JobState], sums: JobSums) -> None:
        self._requeued &= {(job.job_id, job.created_unix_ns) for states in sums.last() for job in states}
        for job in jobs:
            run = (job.job_id, job.created_unix_ns)
            if run not in self._requeued:
                self._requeued.add(run)
                self.slurm.requeue(job.job_id)

    def _name(self, uuid: str) -> str:
        return self._names.get(uuid, f"GPU {uuid}")

    def _report(self, uuid: str, code: str, count: int) -> None:
        fault = fault_of(code)
        actions = self.policy.actions(fault)
        if not actions:
            return
        times = f", {count} times" if count > 1 else ""
        done = ", ".join(action.value for action in FaultAction if action in actions and action is not FaultAction.LOG)
        self.event(fault, f"{self._name(uuid)}: {fault.title} ({fault.whose.value}){times}", uuid, done, count)
