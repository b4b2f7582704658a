# SPDX-License-Identifier: Apache-2.0
"""Reconcile: makes the ledger and the run directory agree with Slurm's jobs and the driver's GPUs.

It repairs the state after a crash, a full disk or a reboot. The ledger and the run directory are read before Slurm's
jobs: a job that starts in between is in neither, and is left alone. Each action names its grant by the creation time,
so a newer grant of the same job id is safe. A failed action is reported, and the other actions are still done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hami_hpc.core.inventory import make_inventory
from hami_hpc.core.reconcile_plan import LEFTOVER_AGE_S, Action, Directory, Kind, NodeState, make_plan
from hami_hpc.core.sizes import sold_mib
from hami_hpc.errors import JobError, NodeError
from hami_hpc.isolation.table import backend_of
from hami_hpc.node import ended_dirs, events, gpu_jobs, job_dirs, mode_outages, nvml, usage_spool
from hami_hpc.node import ledger as ledgers
from hami_hpc.node.config import Settings
from hami_hpc.node.ledger import Ledger
from hami_hpc.slurm import commands
from hami_hpc.stages import common, mig_leftovers, mode_service, mps_daemons, room_service, suspend
from hami_hpc.stages import gpu_jobs as gpu_job_stages
from hami_hpc.stages.epilog import end_directory, end_grants

ENDING = (Kind.END, Kind.SPOOL, Kind.RECORD, Kind.REMOVE_DIRECTORY)  # these touch no running job
OF_DIRECTORY = (Kind.SPOOL, Kind.RECORD, Kind.REMOVE_DIRECTORY)


@dataclass(frozen=True, slots=True)
class Result:
    """One action and its result; `error` is None when the action is done (or, in a dry run, planned)."""

    action: Action
    error: str | None


def reconcile(
    settings: Settings,
    running_jobs: Callable[[], frozenset[int]],
    dry_run: bool,
    node: Callable[[], str] | None = None,
) -> tuple[Result, ...]:
    """Plans the actions and, without `dry_run`, does them. Raises NodeError if ledger or run directory is unreadable.

    `node` returns this node's name, to put back modes that are out of its features, and the memory of jobs that Slurm
    has resumed; None leaves them alone. A dry run
    changes nothing on disk: where no ledger exists, it plans from the rows that a new one would have.
    """
    ledger = common.read_ledger(settings) if dry_run else common.open_ledger(settings)
    results = []
    try:
        damage = ledger.damage()
        if damage is not None:
            if dry_run:  # it was damaged after it was opened
                raise NodeError(f"ledger {ledger.path} is damaged ({damage}); without --dry-run a new one is made")
            ledger.close()
            common.make_ledger_sound(settings)
            ledger = common.open_ledger(settings)
            text = f"the ledger was damaged ({damage}); it was renamed, and a new one filled from the run directory"
            results.append(Result(Action(Kind.RESTORE_ROW, text), None))
        for action in make_plan(read_state(settings, ledger, running_jobs)):
            results.append(Result(action, None if dry_run else _try(settings, ledger, action)))
        if not dry_run:
            common.tell_neighbours("reconcile", settings, ledger)
        results += [Result(*pair) for pair in mig_leftovers.remove(settings, ledger, dry_run)]
        results += _daemons(settings, ledger, dry_run)
        results += _leftover_files(settings, dry_run)
        results += _modes(settings, node, dry_run)
        results += _room(settings, node, dry_run)
        results += _resumed(settings, node, dry_run)
        results += _waiting_records(settings, dry_run)
        if not dry_run:
            for result in results:
                done = f"failed: {result.error}" if result.error else result.action.kind.value
                events.write(settings.state_dir, "reconcile", "reconciled", action=done, text=result.action.text)
        return tuple(results)
    finally:
        ledger.close()


def _daemons(settings: Settings, ledger: Ledger, dry_run: bool) -> Iterator[Result]:
    """Makes the MPS daemons agree with the ledger."""
    try:
        for text, error in mps_daemons.repair(settings, ledger, dry_run):
            yield Result(Action(Kind.DAEMON, text), error)
    except NodeError as error:
        yield Result(Action(Kind.PROBLEM, f"MPS daemons: {error}"), None)


def _modes(settings: Settings, node: Callable[[], str] | None, dry_run: bool) -> Iterator[Result]:
    """Makes the node's features agree with the modes that are out of service."""
    if node is None or not os.path.lexists(mode_outages.path_of(settings.state_dir)):
        return
    try:
        slurm = mode_service.slurm_of_command(node())
        lines = mode_service.due(settings) if dry_run else mode_service.settle(settings, slurm, "reconcile")
    except NodeError as error:
        yield Result(Action(Kind.PROBLEM, str(error)), None)
        return
    for line in lines:
        yield Result(Action(Kind.MODE, line), None)


def _room(settings: Settings, node: Callable[[], str] | None, dry_run: bool) -> Iterator[Result]:
    """Returns the node to service if its run directory was full and a stage drained it."""
    if node is None or not room_service.is_due(settings):
        return
    try:
        text = room_service.TEXT.format(node()) if dry_run else room_service.settle(settings, node(), "reconcile")
    except NodeError as error:
        yield Result(Action(Kind.PROBLEM, f"the run directory was full, and has room again: {error}"), None)
        return
    if text:
        yield Result(Action(Kind.RETURN_NODE, text), None)


def _resumed(settings: Settings, node: Callable[[], str] | None, dry_run: bool) -> Iterator[Result]:
    """Lets the memory of jobs come back that Slurm has resumed while nobody here heard of it; and orders it away where
    nobody heard that Slurm suspends them."""
    if node is None:
        return
    ask = lambda: commands.suspended_jobs(node())  # noqa: E731
    try:
        for job_id in suspend.forgotten(settings, ask):
            text = f"job {job_id}: Slurm has resumed it; its memory comes back to the GPU"
            if dry_run or suspend.resume(settings, job_id):
                yield Result(Action(Kind.RESUME, text, job_id), None)
        for job_id in suspend.unheard(settings, ask):
            text = suspend.UNHEARD.format(job_id)
            if dry_run or suspend.order_unheard(settings, job_id):
                yield Result(Action(Kind.SUSPEND, text, job_id), None)
    except NodeError as error:
        yield Result(Action(Kind.PROBLEM, f"memory of jobs that were suspended: {error}"), None)


def _leftover_files(settings: Settings, dry_run: bool) -> Iterator[Result]:
    """Removes files outside of `jobs/` that interrupted epilogs, or an older hami_hpc, left."""
    texts = {
        path: f"{path}: left by an interrupted epilog; removed"
        for folder in (f"{settings.state_dir}/{usage_spool.DIRECTORY}", usage_spool.waiting_dir(settings.run_dir))
        for path in usage_spool.leftovers(folder, LEFTOVER_AGE_S)
    }
    if settings.state_dir != settings.run_dir:
        for path in (
            f"{settings.state_dir}/{ledgers.FILE_NAME}{suffix}" for suffix in ("", ".lock", *ledgers.SIDE_FILES)
        ):
            if os.path.lexists(path):
                texts[path] = f"{path}: a ledger of an older hami_hpc; it is now in {settings.run_dir}; removed"
    for path, text in texts.items():
        error = None
        try:
            if not dry_run:
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as failure:
            error = f"{failure.strerror}; see mount and ls -ld"
        yield Result(Action(Kind.REMOVE_FILE, text), error)


def _waiting_records(settings: Settings, dry_run: bool) -> Iterator[Result]:
    """Moves the usage records that wait in the run directory to the spool."""
    count = len(usage_spool.waiting(settings.run_dir))
    if count == 0:
        return
    spool = f"{settings.state_dir}/{usage_spool.DIRECTORY}"
    if not dry_run:
        usage_spool.deliver(settings.run_dir, settings.state_dir, at_most=count)
    left = 0 if dry_run else len(usage_spool.waiting(settings.run_dir))
    if count > left:
        yield Result(Action(Kind.DELIVER, f"{count - left} waiting usage record(s) moved to {spool}"), None)
    if left:
        text = (
            f"{left} usage record(s) wait in {usage_spool.waiting_dir(settings.run_dir)}, which a reboot empties, "
            f"because {spool} cannot be written. Free some space there (df), then run hami-hpc reconcile again"
        )
        yield Result(Action(Kind.PROBLEM, text), None)


def read_state(settings: Settings, ledger: Ledger, running_jobs: Callable[[], frozenset[int]]) -> NodeState:
    """Reads the ledger, the run directory and the driver's GPUs, then Slurm's jobs."""
    rows, void = ledger.grants(), ledger.void_grants()
    directories = tuple(_directory(settings.run_dir, name) for name in job_dirs.entries(settings.run_dir))
    slurm_problem = driver_problem = ""
    capacity: dict[str, int] | None
    try:
        gpus = make_inventory(nvml.read_devices(), settings.gpu_models)
        capacity = {gpu.uuid: sold_mib(gpu.total_mib, settings.memory_scaling) for gpu in gpus}
    except NodeError as error:
        capacity, driver_problem = None, str(error)
    running: frozenset[int] | None
    try:
        running = running_jobs()
    except NodeError as error:
        running, slurm_problem = None, str(error)
    return NodeState(rows, void, directories, running, capacity, slurm_problem, driver_problem)


def _directory(run_dir: str, name: str) -> Directory:
    path = f"{job_dirs.jobs_dir(run_dir)}/{name}"
    is_ended = name.startswith(job_dirs.ENDED)
    is_bad = name.startswith(job_dirs.BAD)
    job_id = int(name) if name.isascii() and name.isdigit() else None
    try:
        age_s = time.time() - os.lstat(path).st_mtime
    except OSError:
        age_s = 0.0  # it was removed meanwhile
    grants = job_dirs.read_grants(path) if is_ended or job_id is not None else ()
    gpu_job = gpu_jobs.read(path) if not grants and (is_ended or job_id is not None) else None
    is_foreign = job_id is not None and not grants and job_dirs.is_foreign(path)
    return Directory(name, job_id, grants, is_ended, age_s, is_bad, gpu_job, is_foreign)


def _try(settings: Settings, ledger: Ledger, action: Action) -> str | None:
    """Does one action. Returns the error message if it fails, so that the caller goes on with the others."""
    try:
        _do(settings, ledger, action)
    except NodeError as error:
        return str(error)
    except JobError as error:
        return f"{error}. A prolog would do so, reconcile does not: requeue or cancel job {action.job_id}"
    except Exception as error:  # a bug in hami_hpc that this entry triggers: set the entry aside, and go on
        text = common.error_text(error)
        if action.kind not in ENDING or action.name is None:
            return text
        try:
            return f"{text}; it is now {ended_dirs.set_bad(settings.run_dir, action.name)}"
        except NodeError as failure:
            return f"{text}; {failure}"
    return None


def _is_still(path: str, action: Action) -> bool:
    """Returns whether a directory is the one that the plan saw. Else another process has ended that run, and what is
    there now may be of the job's next one, which began after Slurm was asked."""
    if not (action.name or "").isdigit():
        return True
    grants = job_dirs.read_grants(path)
    return grants == action.grants and (bool(grants) or gpu_jobs.read(path) == action.gpu_job)


def _do(settings: Settings, ledger: Ledger, action: Action) -> None:
    path = f"{job_dirs.jobs_dir(settings.run_dir)}/{action.name}"
    if action.kind in OF_DIRECTORY and not _is_still(path, action):
        return
    if action.kind is Kind.DROP_VOID:
        ledger.drop_void()
    elif action.kind is Kind.REMOVE_DIRECTORY:
        job_dirs.remove(settings.run_dir, path)
    elif action.kind is Kind.RECORD:
        if os.path.basename(path).startswith(job_dirs.ENDED):
            gpu_job_stages.end_set_aside(settings, path)
        else:
            gpu_job_stages.end(settings, path, common.now_unix_ns())
    elif not action.grants:
        return
    elif action.kind is Kind.END:
        end_grants(settings, ledger, action.grants, common.now_unix_ns(), "reconcile")
    elif action.kind is Kind.SPOOL:
        end_directory(settings, ledger, action.grants, path, "reconcile")
    elif action.kind is Kind.RESTORE_DIRECTORY:
        backend_of(action.grants[0].mode).prepare(settings, action.grants, ledger.grants())
    elif action.kind is Kind.RESTORE_ROW:
        models = {gpu.uuid: gpu.model for gpu in ledger.inventory()}
        ledger.restore([grant._replace(model=models.get(grant.gpu_uuid, "")) for grant in action.grants])
