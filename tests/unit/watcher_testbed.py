# SPDX-License-Identifier: Apache-2.0
"""A watcher of a node with two GPUs and two slices, on GPUs and a Slurm that tests make up."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from harness.mounting import unmount_below
from node_testbed import GPU_MIB, UUIDS, Node

from hami_hpc.agent.gpus import GpuLook, GpuProcess, Gpus
from hami_hpc.agent.processes import Processes
from hami_hpc.agent.slices import Slices
from hami_hpc.agent.slurm_port import SlurmPort
from hami_hpc.agent.watcher import Watcher
from hami_hpc.contract import constants as c
from hami_hpc.core.agent_state import OK, Event
from hami_hpc.core.inventory import Gpu
from hami_hpc.core.watch import MIB, SECOND, Action, Kind, Limits
from hami_hpc.errors import NodeError
from hami_hpc.node import boot
from hami_hpc.node.agent_settings import AgentSettings

GPUS = tuple(Gpu(i, i, uuid, "NVIDIA H200", "h200", GPU_MIB) for i, uuid in enumerate(UUIDS))
BLIND = "NVML cannot be used"


class FakeGpus:
    """The GPUs, with what each process holds and does."""

    def __init__(self) -> None:
        self.processes: dict[str, list[GpuProcess]] = {uuid: [] for uuid in UUIDS}
        self.states = dict.fromkeys(UUIDS, OK)
        self.problem = ""
        self.energy_mj = self.pcie_bytes = self.nvlink_bytes = self.unseen_bytes = 0

    def look(self) -> tuple[GpuLook, ...]:
        if self.problem:
            raise NodeError(self.problem)
        return tuple(self._look(gpu) for gpu in GPUS)

    def _look(self, gpu: Gpu) -> GpuLook:
        if self.states[gpu.uuid] != OK:
            return GpuLook(gpu, self.states[gpu.uuid], "GPU is lost")
        own = self.processes[gpu.uuid]
        used = self.unseen_bytes + sum(process.used_bytes for process in own)
        look = GpuLook(gpu, OK, "", GPU_MIB * MIB, used, 0.0, 0, self.energy_mj, 30, tuple(own))
        return look._replace(pcie_bytes=self.pcie_bytes, nvlink_bytes=self.nvlink_bytes)


class FakeSlurm(SlurmPort):
    """Slurm's commands, which are recorded."""

    def __init__(self) -> None:
        self.said: list[tuple[str, ...]] = []
        self.pids: dict[int, int] = {}
        self.jobs: dict[int, str] = {}
        self.is_up = True
        super().__init__("node1", lambda text: self.said.append(("report", text)), self._run)

    def _run(self, command: tuple[str, ...], _timeout_s: float) -> str | None:
        if command[1] == "listpids":
            return "PID JOBID STEPID\n" + "".join(f"{pid} {job} 0\n" for pid, job in self.pids.items())
        if not self.is_up:
            return None
        if "show" in command:
            return self.jobs.get(int(command[-1]), "")
        if command[0] == "squeue":  # none is a task of an array
            (job,) = [word.partition("=")[2] for word in command if word.startswith("--jobs=")]
            return f"{job} {job} N/A\n"
        self.said.append(command)
        return ""

    def heard(self) -> list[tuple[str, ...]]:
        self.finish()
        return self.said


@dataclasses.dataclass
class Bench:
    """A watcher of a node with two GPUs; each look() is a second later."""

    node: Node
    watcher: Watcher
    gpus: FakeGpus
    slurm: FakeSlurm
    events: list[Event]
    now_ns: int = 1000 * SECOND

    def look(self, times: int = 1, step_ns: int = SECOND) -> Any:
        for _ in range(times):
            self.now_ns += step_ns
            state = self.watcher.look()
        return state

    def hold(self, pid: int, mib: int, busy: float = 0.0, gpu: int = 0) -> None:
        self.gpus.processes[UUIDS[gpu]].append(GpuProcess(pid, mib * MIB, int(busy * SECOND / 100)))

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def set(self, **actions: Action) -> None:
        self.watcher.settings = self.watcher.settings._replace(
            actions=self.watcher.settings.actions | {Kind(kind): action for kind, action in actions.items()}
        )


def write_count(node: Node, job_id: int, device_oom_count: int) -> None:
    """Writes into the head of a job's usage file, as its interposer does."""
    offset, width, _kind = c.USAGE_FIELDS["device_oom_count"]
    with (node.jobs / str(job_id) / c.FILE_USAGE).open("r+b") as file:
        file.seek(offset)
        file.write(device_oom_count.to_bytes(width, "little"))


@contextlib.contextmanager
def watched_node(tmp_path: Path) -> Iterator[Bench]:
    node = Node.make(tmp_path / "node")
    node.prolog(7, mem_mib=2048)
    node.prolog(8, mem_mib=2048)
    gpus, slurm, events = FakeGpus(), FakeSlurm(), list[Event]()
    own = AgentSettings(1000, -1, Limits(64 * MIB, frozenset({0})), dict.fromkeys(Kind, Action.WARN))
    watcher = Watcher(
        own,
        boot.boot_id(),
        cast(Gpus, gpus),
        Processes(slurm.listed_pids),
        Slices(node.settings.run_dir),
        slurm,
        events.append,
    )
    made = Bench(node, watcher, gpus, slurm, events)
    watcher.boot_ns = lambda: made.now_ns
    yield made
    unmount_below(tmp_path)
