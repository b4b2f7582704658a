# SPDX-License-Identifier: Apache-2.0
"""Makes room for the queue's MIG requests, for `hami-hpc mig defragment`: removes instances of ours that no job has,
and keeps the places that fragmented requests are to get (core/mig_plan.py). It moves no instance, and ends no job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from hami_hpc.core.mig_plan import NEVER, PlanGpu, Standing, Verdict, Want, plan
from hami_hpc.core.reconcile_plan import Action
from hami_hpc.isolation import mig_instances
from hami_hpc.isolation.table import mode_of_job
from hami_hpc.node import drained_gpus, events, mig_holds, mig_list, mig_settings, mig_static
from hami_hpc.node.config import Settings
from hami_hpc.node.mig_holds import Kept
from hami_hpc.slurm import commands, mig_queue
from hami_hpc.stages import common, mig_leftovers


@dataclass(frozen=True, slots=True)
class Result:
    """What was found, and done unless it was a dry run: leftover instances with the error of their removal, the GPUs
    as they are planned with, the verdict on each request, the holds."""

    leftovers: tuple[tuple[Action, str | None], ...]
    gpus: tuple[PlanGpu, ...]
    verdicts: tuple[Verdict, ...]
    holds: tuple[Kept, ...]


def defragment(settings: Settings, node: str, demand: Sequence[tuple[str, int]], hold_s: int, dry_run: bool) -> Result:
    """Plans for `demand`, profiles with counts, or for the queue where it is empty; does it without `dry_run`.

    The new holds replace all old ones. Raises NodeError.
    """
    ends = mig_queue.parse_ends(commands.holding_rows(node, mig_queue.END_FORMAT))
    ledger = common.read_ledger(settings) if dry_run else common.open_ledger(settings)
    try:
        leftovers = tuple(mig_leftovers.remove(settings, ledger, dry_run))
    finally:
        ledger.close()
    gone = {action.job_id for action, error in leftovers if error is None}
    gpus = read_gpus(settings, ends, gone if dry_run else set())
    wants = [Want(name) for name, count in demand for _ in range(count)] or _queue(settings, node, gpus)
    verdicts = plan(gpus, wants)
    until_unix_s = int(time.time()) + hold_s
    openings = [verdict.opening for verdict in verdicts if verdict.opening is not None]
    holds = tuple(Kept(opening.gpu.uuid, opening.hold, until_unix_s) for opening in openings)
    if not dry_run:
        mig_holds.replace(settings.run_dir, holds)
        for opening in openings:
            last = opening.hold.start + opening.hold.size - 1
            text = (
                f"slices {opening.hold.start} to {last} of GPU {opening.gpu.minor} are held for {opening.hold.profile}"
            )
            events.write(settings.state_dir, "mig", "mig_hold", text=text, gpu_uuid=opening.gpu.uuid)
    return Result(leftovers, gpus, verdicts, holds)


def release(settings: Settings) -> int:
    """Ends all holds. Returns how many there were. Raises NodeError."""
    count = len(mig_holds.read(settings.run_dir, time.time()))
    mig_holds.replace(settings.run_dir, ())
    return count


def read_gpus(settings: Settings, ends: dict[int, float], gone: set[int | None]) -> tuple[PlanGpu, ...]:
    """Returns the GPUs in MIG mode that are in service for slices. `ends` are those of Slurm's jobs here; instances of
    the jobs `gone` are left out. Raises NodeError."""
    drained = {one.uuid for one in drained_gpus.read(settings.state_dir)} | mig_static.gpus(settings.state_dir)
    found = []
    for gpu in mig_list.read(settings):
        if gpu.mode != "on" or gpu.uuid in drained:
            continue
        standing = tuple(
            Standing(row.instance, row.profile, row.job_id, ends.get(row.job_id or 0, NEVER))
            for row in gpu.instances
            if row.job_id is None or row.job_id not in gone
        )
        names = mig_instances.offered(settings, gpu.model)
        found.append(PlanGpu(gpu.uuid, gpu.minor, gpu.profiles, names, standing))
    return tuple(found)


def _queue(settings: Settings, node: str, gpus: Sequence[PlanGpu]) -> list[Want]:
    """Returns what the queue wants of this node's profiles, the highest priority first. Raises NodeError."""
    if not gpus:
        return []
    models = {gpu.uuid: gpu.model for gpu in mig_list.read(settings)}
    model = models[gpus[0].uuid]  # a node has GPUs of one model
    waiting = mig_queue.parse_waiting(commands.pending_rows(mig_queue.WAITING_FORMAT), commands.show_node(node))
    wants = []
    for job in waiting:
        if mode_of_job(settings.modes, job.features) != "mig":
            continue
        name = mig_settings.profile_name(settings, model, job.mem_mib, job.cores)
        if name is not None:
            wants.append(Want(name, job.job_id))
    return wants
