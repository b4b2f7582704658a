# SPDX-License-Identifier: Apache-2.0
"""Reconcile: squares ledger, run directory, Slurm's jobs and the driver's GPUs, after a crash, a full disk or a reboot.

The ledger and the run directory are read before Slurm is asked: a job that starts in between is then in neither, and
is left alone. Each action names the grant it is for by its creation time, so a newer grant of the same job id is safe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from hami_hpc.core.inventory import make_inventory
from hami_hpc.core.reconcile import LEFTOVER_AGE_S, Action, Directory, Kind, NodeState, make_plan
from hami_hpc.errors import NodeError
from hami_hpc.shell import ledger as ledgers
from hami_hpc.shell import node, nvml, region, spool
from hami_hpc.shell.config import Settings
from hami_hpc.shell.ledger import Ledger
from hami_hpc.stages import common
from hami_hpc.stages.epilog import end_grant, spool_usage


@dataclass(frozen=True, slots=True)
class Result:
    """One action and what became of it; `error` is None when it is done (or was only planned)."""

    action: Action
    error: str | None


def reconcile(settings: Settings, running_jobs: Callable[[], frozenset[int]], dry_run: bool) -> tuple[Result, ...]:
    """Plans and, without `dry_run`, does. NodeError when ledger or run directory cannot be read at all."""
    if not dry_run:
        region.prepare(settings.run_dir)
    ledger = common.open_ledger(settings)
    results = []
    try:
        damage = ledger.damage()
        if damage is not None:
            if dry_run:
                raise NodeError(f"ledger {ledger.path} is damaged ({damage}); without --dry-run a new one is made")
            ledger = _replaced(ledger, settings)
            text = f"the ledger was damaged ({damage}); put aside, and a new one filled from the run directory"
            results.append(Result(Action(Kind.RESTORE_ROW, text), None))
        for action in make_plan(read_state(settings, ledger, running_jobs)):
            results.append(Result(action, None if dry_run else _done(settings, ledger, action)))
        for path in spool.leftovers(settings.state_dir, LEFTOVER_AGE_S):
            if not dry_run:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            results.append(
                Result(Action(Kind.REMOVE_FILE, f"{path}: left over from an interrupted epilog; removed"), None)
            )
        return tuple(results)
    finally:
        ledger.close()


def _replaced(ledger: Ledger, settings: Settings) -> Ledger:
    ledger.close()
    return ledgers.replace_damaged(
        ledger.path, node.boot_id(), lambda: region.held_grants(settings.run_dir, node.booted_unix_ns())
    )


def read_state(settings: Settings, ledger: Ledger, running_jobs: Callable[[], frozenset[int]]) -> NodeState:
    """What the witnesses say, Slurm last."""
    rows, void = ledger.grants(), ledger.void_grants()
    directories = tuple(_directory(settings.run_dir, name) for name in region.entries(settings.run_dir))
    capacity: dict[str, int] | None
    try:
        gpus = make_inventory(nvml.read_devices(), settings.gpu_models)
        capacity = {gpu.uuid: int(gpu.total_mib * settings.memory_scaling) for gpu in gpus}
    except NodeError:
        capacity = None
    running: frozenset[int] | None
    try:
        running = running_jobs()
    except NodeError:
        running = None
    return NodeState(rows, void, directories, running, capacity)


def _directory(run_dir: str, name: str) -> Directory:
    path = f"{region.jobs_dir(run_dir)}/{name}"
    is_ended = name.startswith(region.ENDED)
    job_id = int(name) if name.isascii() and name.isdigit() else None
    try:
        age_s = time.time() - os.lstat(path).st_mtime
    except OSError:
        age_s = 0.0  # gone meanwhile
    return Directory(name, job_id, region.read_grant(path) if is_ended or job_id is not None else None, is_ended, age_s)


def _done(settings: Settings, ledger: Ledger, action: Action) -> str | None:
    """Does one action. Returns what stood in its way, so that the others are still done."""
    try:
        _do(settings, ledger, action)
    except NodeError as error:
        return str(error)
    return None


def _do(settings: Settings, ledger: Ledger, action: Action) -> None:
    path = f"{region.jobs_dir(settings.run_dir)}/{action.name}"
    if action.kind is Kind.DROP_VOID:
        ledger.drop_void()
    elif action.kind is Kind.REMOVE_DIRECTORY:
        region.remove(settings.run_dir, path)
    elif action.grant is None:
        return
    elif action.kind is Kind.END:
        end_grant(settings, ledger, action.grant, common.now_unix_ns())
    elif action.kind is Kind.SPOOL:
        grant = action.grant._replace(model=_model(ledger, action.grant.gpu_uuid))
        spool_usage(settings, grant, path, region.ended_unix_ns(path))
        region.remove(settings.run_dir, path)
    elif action.kind is Kind.RESTORE_DIRECTORY:
        region.place(settings.run_dir, action.grant)
    elif action.kind is Kind.RESTORE_ROW:
        ledger.restore(action.grant._replace(model=_model(ledger, action.grant.gpu_uuid)))


def _model(ledger: Ledger, gpu_uuid: str) -> str:
    """A limits record does not hold the model; the inventory does."""
    return next((gpu.model for gpu in ledger.inventory() if gpu.uuid == gpu_uuid), "")
