# SPDX-License-Identifier: Apache-2.0
"""Switches MIG of one GPU on or off, for `hami-hpc mig`: nothing else in hami_hpc does."""

from __future__ import annotations

from typing import Protocol

from hami_hpc.core.inventory import make_inventory
from hami_hpc.core.out_of_service import Holding
from hami_hpc.errors import NodeError
from hami_hpc.node import admin_log, events, mig, mig_gpu, nvml
from hami_hpc.node.config import Settings
from hami_hpc.slurm import placeholders
from hami_hpc.stages import common, occupy
from hami_hpc.stages.gpu_service import find, jobs_on, listed

LISTED_MAX = 8


def switch(settings: Settings, node: placeholders.Node, word: str, on: bool) -> str:
    """Switches MIG of the GPU that `word` names, and returns a line about it.

    Raises NodeError, with nothing changed, while jobs or processes are on the GPU, or instances that are to go; and
    when the mode has not taken effect, with what it waits for.
    """
    entry = find(occupy.inventory(settings), (), word)
    name = f"GPU {entry.minor} ({entry.uuid})"
    state = "on" if on else "off"
    refuse_jobs(settings, node, entry.uuid, entry.slurm_index, name)
    with mig_gpu.locked(settings, entry.uuid) as gpu:
        now = mig.mode(gpu.nvml, gpu.handle)
        if now is None:
            raise NodeError(f"{name} has no MIG: it is of the Ampere generation or later in data center GPUs only")
        if now == (on, on):
            return f"{name}: MIG is {state} already"
        refuse_processes(gpu, name)
        instances = gpu.instances()
        if instances and not on:
            names = ", ".join(one.uuid or str(one.gi_id) for one in instances[:LISTED_MAX])
            raise NodeError(
                f"{name} has {len(instances)} MIG instance(s): {names}. Those of ended jobs: hami-hpc reconcile. "
                "Others: nvidia-smi mig -dci, then -dgi. See hami-hpc mig list"
            )
        waits_for = mig.set_mode(gpu.nvml, gpu.handle, on)
    if waits_for:
        raise NodeError(f"{name}: MIG is not {state} yet: {waits_for}")
    text = f"{name}: MIG is {state}"
    admin_log.to_syslog(admin_log.WARNING, text)
    events.write(settings.state_dir, "mig", "mig_mode", text=text, gpu_uuid=entry.uuid)
    _enter_gpus(settings)
    return f"{text}. Check modes in [vgpu] of {settings.path}, then: hami-hpc doctor"


class Holder(Protocol):
    """What is needed of a placeholders.Node."""

    def holdings(self) -> tuple[Holding, ...]: ...


def refuse_jobs(settings: Settings, node: Holder, uuid: str, slurm_index: int, name: str) -> None:
    """Raises NodeError while a job has a part of the GPU, by the ledger or by slurmctld."""
    ledger = common.read_ledger(settings)
    try:
        jobs = {grant.job_id for grant in ledger.grants() if grant.gpu_uuid == uuid}
    finally:
        ledger.close()
    jobs |= set(jobs_on(node.holdings(), slurm_index))
    if jobs:
        raise NodeError(
            f"{name} has {len(jobs)} running job(s){listed(sorted(jobs))}. Take it out of service and wait for them: "
            f"hami-hpc gpu drain {uuid} --reason MIG. After the switch: hami-hpc gpu resume {uuid}"
        )


def refuse_processes(gpu: mig_gpu.MigGpu, name: str) -> None:
    """Raises NodeError while a process uses the GPU."""
    try:
        pids = sorted({int(one.pid) for one in gpu.nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)})
    except gpu.nvml.NVMLError as error:
        raise NodeError(f"{name}: NVML does not say which processes use it ({error}): see nvidia-smi") from error
    if pids:
        some = ", ".join(map(str, pids[:LISTED_MAX]))
        raise NodeError(f"{name} is used by process {some}: end it (ps -fp {pids[0]}), then try again")


def _enter_gpus(settings: Settings) -> None:
    """Reads the GPUs again: nvml.h says that the switch may change a GPU's minor number, and its memory is another."""
    ledger = common.open_ledger(settings)
    try:
        ledger.set_inventory(make_inventory(nvml.read_devices(), settings.gpu_models))
    finally:
        ledger.close()
