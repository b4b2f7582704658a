# SPDX-License-Identifier: Apache-2.0
"""Gives the slices of a running job another size, on this node (docs/adr/076). Run by root: by SPANK for the job's own
user (srun --vgpu-resize), and by `hami-hpc resize`.

Of more memory the ledger comes first, of less the records do. What a killed run left, the next prolog, epilog or
reconcile makes as the ledger has it, which is never less than the records said.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from hami_hpc.core import resize as rules
from hami_hpc.core.grant import Grant
from hami_hpc.core.sizes import gpu_size
from hami_hpc.errors import HamiError, JobError, NodeError
from hami_hpc.isolation.table import backend_of
from hami_hpc.node import drain, events, job_dirs, neighbours, usage_files
from hami_hpc.node.config import Settings
from hami_hpc.node.ledger import Ledger
from hami_hpc.slurm import job_shards, placeholders
from hami_hpc.stages import common
from hami_hpc.stages.prolog import find_gpus

STAGE = "resize"
LOOKS = 3  # at records that others change too


def resize(
    settings: Settings, job_id: int, uid: int | None, size: rules.Size, environment: Mapping[str, str], dry_run: bool
) -> str:
    """Resizes all slices of the job on this node, or none. Returns one line that says what they have.

    `uid` is the user who asks, who must be the job's; None: root. `environment` has Slurm's name of this node and its
    slurm.conf. Raises JobError when the job cannot have that size, NodeError when this node cannot do it.
    """
    _check_is_own(job_dirs.read_grants(job_dirs.job_dir(settings.run_dir, job_id), owner=0), job_id, uid)
    shards = _shards(job_id, environment)  # may take seconds, in which nobody waits for the ledger
    ledger = common.open_ledger(settings)
    try:
        old = ledger.grants_of(job_id)
        _check_is_own(old, job_id, uid)
        gpus = _gpus(settings, ledger, old, shards)
        new = tuple(rules.resized(grant, size, gpu) for grant, gpu in zip(old, gpus, strict=True))
        _check_used(settings, new)
        rules.check_growth(old, new, ledger.grants(), settings.memory_scaling)
        if dry_run:
            return _line(old, new, "could have")
        new = _enter(settings, ledger, new)
        _see_to_records(settings, ledger, new)
    finally:
        ledger.close()
    for grant in new if _sizes(new) != _sizes(old) else ():
        _write_event(settings, grant)
    return _line(old, new, "has")


def _check_is_own(grants: Sequence[Grant], job_id: int, uid: int | None) -> None:
    """Raises JobError when the slices are not those of the user's job, or of another mode than can be resized."""
    if not grants or (uid is not None and grants[0].uid != uid):
        raise JobError(f"job {job_id} has no vGPU of yours on this node, so nothing was changed")
    rules.check_mode(grants[0])


def _shards(job_id: int, environment: Mapping[str, str]) -> dict[int, int]:
    """Returns the job's shards of each of this node's GPUs, by Slurm's index. Raises NodeError."""
    scontrol, node = drain.find_scontrol(), environment.get("SLURMD_NODENAME", "")
    if scontrol is None or not node:
        what = "scontrol was not found" if scontrol is None else "this node's name in Slurm is not known"
        raise NodeError(f"{what}, so slurmctld cannot be asked for the shards of job {job_id}; nothing was changed")
    try:
        return job_shards.read(scontrol, placeholders.environment(environment), job_id, node)
    except NodeError as error:
        raise NodeError(
            f"slurmctld does not say how many shards job {job_id} holds ({error}); nothing was changed"
        ) from error


def _gpus(settings: Settings, ledger: Ledger, grants: Sequence[Grant], shards: Mapping[int, int]) -> list[rules.Gpu]:
    """Returns the GPU of each slice, with the shards that the job holds of it. Raises NodeError."""
    job_id = grants[0].job_id
    gpus = {gpu.uuid: gpu for gpu in find_gpus(ledger, settings, job_id, tuple(shards))}
    missing = [grant for grant in grants if grant.gpu_uuid not in gpus]
    if missing:
        raise NodeError(
            f"slurmctld has no shards of job {job_id} on its GPU {missing[0].gpu_minor}; nothing was changed. "
            "Administrator: run hami-hpc reconcile"
        )
    own = [gpus[grant.gpu_uuid] for grant in grants]
    return [
        rules.Gpu(
            shards=settings.gpu_size(gpu.model).slice_shards,
            held=shards[gpu.slurm_index],
            shard_mib=settings.shard_mib,
            mib=gpu_size(gpu.total_mib, settings.memory_scaling, settings.shard_mib).slice_mib,
        )
        for gpu in own
    ]


def _check_used(settings: Settings, grants: Sequence[Grant]) -> None:
    """Raises JobError when the job uses more memory than `grants` allow. What its user wrote is bounded by what it had;
    who lies there is over the grant, which the agent finds."""
    directory = job_dirs.job_dir(settings.run_dir, grants[0].job_id)
    for grant in grants:
        rules.check_used(grant, usage_files.read_usage(directory, grant, common.now_unix_ns()).used_bytes)


def _enter(settings: Settings, ledger: Ledger, grants: Sequence[Grant]) -> tuple[Grant, ...]:
    """Enters the new size, and returns the slices. Raises as resize() does, with nothing changed.

    Less memory is written into the records before it is entered: what is killed between is undone later, and never
    completed when the job uses more again. More is entered first, so that it is completed.
    """
    backend = backend_of(grants[0].mode)

    def lower(old: tuple[Grant, ...], new: tuple[Grant, ...]) -> None:
        rules.check_growth(old, new, ledger.grants(), settings.memory_scaling)
        if new[0].mem_mib >= old[0].mem_mib:
            return
        try:
            neighbours.write_sizes(settings.run_dir, new)
            _check_used(settings, new)  # what was allocated after the first look and before the record said less
        except BaseException as error:
            with contextlib.suppress(OSError, neighbours.SkippedRecordError):
                neighbours.write_sizes(settings.run_dir, old)
            if isinstance(error, (OSError, neighbours.SkippedRecordError)):
                job_id = new[0].job_id
                raise NodeError(f"the limits records of job {job_id} cannot be changed ({error})") from error
            raise

    try:
        return ledger.resize(grants, lambda new, live: backend.admit(new, live, settings.memory_scaling), lower)
    except NodeError:
        common.tell_neighbours(STAGE, settings, ledger)  # a row that could not be written, after the records were
        raise


def _see_to_records(settings: Settings, ledger: Ledger, grants: Sequence[Grant]) -> None:
    """Writes the records of this job, and the turns of all. Raises NodeError when one of this job was left alone."""
    job_id = grants[0].job_id
    directory = job_dirs.job_dir(settings.run_dir, job_id)
    for _ in range(LOOKS):
        common.tell_neighbours(STAGE, settings, ledger)
        with ledger.held_still() as live:  # another resize may have been next
            entered = [_key(one) for one in live if one.job_id == job_id]
            if not entered:
                raise NodeError(f"job {job_id} ended meanwhile: nothing was changed")
            if [_key(one) for one in job_dirs.read_grants(directory, owner=0)] == entered:
                return
    raise NodeError(f"the limits records in {directory} were not changed, see syslog. Run: hami-hpc reconcile")


def _sizes(grants: Sequence[Grant]) -> list[tuple[int, int]]:
    return [(grant.mem_mib, grant.cores_percent) for grant in grants]


def _key(grant: Grant) -> tuple[int, int, int]:
    return grant.created_unix_ns, grant.mem_mib, grant.cores_percent


def _line(old: Sequence[Grant], new: Sequence[Grant], has: str) -> str:
    first, before = new[0], old[0]
    each = f" on each of {len(new)} GPUs" if len(new) > 1 else f" of GPU {first.gpu_minor}"
    return (
        f"job {first.job_id} {has} {first.mem_mib} MiB and {first.cores_percent} %{each} "
        f"(before: {before.mem_mib} MiB and {before.cores_percent} %)"
    )


def _write_event(settings: Settings, grant: Grant) -> None:
    events.write(
        settings.state_dir,
        STAGE,
        "resize",
        text=f"job {grant.job_id} has {grant.mem_mib} MiB and {grant.cores_percent} % of GPU {grant.gpu_minor} now",
        job_id=grant.job_id,
        uid=grant.uid,
        gpu_uuid=grant.gpu_uuid,
        start_unix_ns=grant.created_unix_ns,
        mem_mib=grant.mem_mib,
        cores=grant.cores_percent,
    )


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Resizes a job for SPANK: --job ID --uid UID --size [dry-run,]mem=16G,cores=60 [--config PATH]. Prints one line
    for the user. Returns the exit status: 0, or 1 when nothing was changed."""
    try:
        options = dict(zip(arguments[::2], arguments[1::2], strict=True))
        job_id, uid, text = int(options.pop("--job")), int(options.pop("--uid")), options.pop("--size")
        config = [word for pair in options.items() for word in pair]
    except (KeyError, ValueError):
        print(f"{STAGE}: the arguments are not those of hami_hpc's SPANK plugin: install one version of both")
        return 1
    try:
        size = rules.parse_size(text.removeprefix(rules.DRY_RUN))
        print(resize(common.load(config), job_id, uid, size, environment, text.startswith(rules.DRY_RUN)))
        return 0
    except HamiError as error:
        print(error.message.removeprefix("hami_hpc: "))
    except Exception as error:
        print(common.report(STAGE, f"job {job_id}: {common.error_text(error)}"))
    return 1
