# SPDX-License-Identifier: Apache-2.0
"""Takes one GPU of this node out of service and returns it: for `hami-hpc gpu` and for the agent (docs/adr/028)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hami_hpc.core.inventory import Gpu
from hami_hpc.core.out_of_service import DrainedGpu, Holding, as_numbered
from hami_hpc.errors import NodeError
from hami_hpc.node import admin_log, drained_gpus, events, locks, mig_static
from hami_hpc.node.config import Settings
from hami_hpc.slurm import placeholders
from hami_hpc.stages import occupy

WAIT_S = 30.0
FILE_LOCK = "drained-gpus-file.lock"
FILE_LOCK_S = 10.0


def find(gpus: tuple[Gpu, ...], drained: tuple[DrainedGpu, ...], word: str) -> DrainedGpu:
    """Returns the GPU that `word` names by UUID or minor number, with the numbers that it has now; one that is not here
    any more only where no other has that number. Raises NodeError when the node has none such."""
    out = {entry.uuid: entry for entry in as_numbered(drained, gpus)}
    here = [out.pop(gpu.uuid, DrainedGpu(gpu.uuid, gpu.minor, gpu.slurm_index, "", 0)) for gpu in gpus]
    for entry in (*here, *out.values()):
        if word in (entry.uuid, str(entry.minor)):
            return entry
    known = ", ".join(f"{gpu.minor} ({gpu.uuid})" for gpu in gpus) or "none"
    raise NodeError(f"this node has no GPU {word}. Its GPUs by minor number: {known}")


def drain(settings: Settings, node: placeholders.Node, word: str, reason: str) -> str:
    """Takes the GPU out of service and returns a line about it. Raises NodeError when a part of it stays free."""
    entry = mark(settings, word, reason)
    return fill(settings, node, entry)


def mark(settings: Settings, word: str, reason: str, source: str = "gpu", xid: int = 0) -> DrainedGpu:
    """Writes the GPU, with the reason, into the file of those out of service: from now on no prolog grants it. One that
    is out of service already keeps a person's reason where the agent has another (`source` agent)."""

    def change(drained: tuple[DrainedGpu, ...]) -> tuple[DrainedGpu, tuple[DrainedGpu, ...]]:
        entry = find(occupy.inventory(settings), drained, word)
        if source == "agent" and entry.uuid in {other.uuid for other in drained}:
            return entry, drained
        entry = entry._replace(reason=reason, since_unix_s=entry.since_unix_s or int(time.time()))
        others = (other for other in drained if other.uuid != entry.uuid)
        return entry, tuple(sorted((*others, entry), key=lambda gpu: gpu.minor))

    entry, is_new = _changed(settings, change)
    if is_new:
        text = f"{name_of(entry)} is out of service: {reason}"
        admin_log.to_syslog(admin_log.WARNING, text)
        more = {"xid": xid} if xid else {}
        events.write(settings.state_dir, source, "gpu_drain", text=text, gpu_uuid=entry.uuid, **more)
    return entry


def fill(settings: Settings, node: placeholders.Node, entry: DrainedGpu) -> str:
    """Holds what is free of a GPU that is marked. Returns and raises as drain does."""
    name = name_of(entry)
    if entry.uuid in mig_static.gpus(settings.state_dir):
        raise NodeError(
            f"{name} is noted as out of service, but Slurm still gives the instances of its static MIG layout, and "
            "placeholder jobs cannot hold these: drain the node (scontrol update NodeName=... State=DRAIN Reason=...)"
        )
    run = _occupied(settings, node)
    left = run.free().get(entry.slurm_index, 0)
    if left:
        raise NodeError(
            f"{name} is out of service, but {left} shards of it are still free for Slurm: the placeholder job did not "
            f"start (squeue -n hami-hpc-drain). Jobs that Slurm starts there are refused. {_what_helps(node)}"
        )
    jobs = jobs_on(run.held, entry.slurm_index)
    return f"{name} is out of service: {entry.reason}. {len(jobs)} running job(s) go on{listed(jobs)}"


def _what_helps(node: placeholders.Node) -> str:
    reservation = node.reservation()
    if not reservation:
        return "Run this again"
    return (
        f"{node.name} is in the reservation {reservation}: let root use that too (scontrol update "
        f"reservationname={reservation} users+=root, or accounts+=), then run this again"
    )


def resume(settings: Settings, node: placeholders.Node, word: str) -> str:
    """Returns the GPU to service, and a line about it. Raises NodeError when it was in service."""

    def change(drained: tuple[DrainedGpu, ...]) -> tuple[DrainedGpu, tuple[DrainedGpu, ...]]:
        entry = find(occupy.inventory(settings), drained, word)
        return entry, tuple(other for other in drained if other.uuid != entry.uuid)

    entry, was_out = _changed(settings, change)
    name = name_of(entry)
    if was_out:
        admin_log.to_syslog(admin_log.WARNING, f"{name} is in service again")
        text = f"{name} is in service again. It was out of service: {entry.reason}"
        events.write(settings.state_dir, "gpu", "gpu_resume", text=text, gpu_uuid=entry.uuid)
    _occupied(settings, node)
    gone = [other for other in drained_gpus.read(settings.state_dir) if not was_out and word == str(other.minor)]
    more = "".join(
        f". {name_of(other)}, which had that number, is still listed as out of service: hami-hpc gpu resume "
        f"{other.uuid} takes it off the list"
        for other in gone
        if other.uuid != entry.uuid
    )
    return f"{name} is in service" + (" again" if was_out else f", as before{more}")


def name_of(entry: DrainedGpu) -> str:
    return f"GPU {entry.minor} ({entry.uuid})"


def _changed(
    settings: Settings, change: Callable[[tuple[DrainedGpu, ...]], tuple[DrainedGpu, tuple[DrainedGpu, ...]]]
) -> tuple[DrainedGpu, bool]:
    """Changes the file; of two processes one after the other. Returns the GPU, and whether the file changed."""
    try:
        lock = locks.acquire(f"{settings.run_dir}/{FILE_LOCK}", True, FILE_LOCK_S)
    except OSError as error:
        raise NodeError(f"{settings.run_dir}/{FILE_LOCK} cannot be opened: {error.strerror}") from error
    try:
        before = drained_gpus.read(settings.state_dir)
        entry, after = change(before)
        if after != before:
            drained_gpus.write(settings.state_dir, after)
        return entry, after != before
    finally:
        os.close(lock)


def _occupied(settings: Settings, node: placeholders.Node) -> occupy.Occupation:
    """Runs occupy, after the process that a prolog or epilog may have started. Raises as occupy does; HeldError with
    all of the time for which it waited."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return occupy.occupy(settings, node, max(1.0, end - time.monotonic()))
        except locks.HeldError:
            if time.monotonic() > end:
                raise locks.HeldError(f"{settings.run_dir}/{occupy.LOCK}", WAIT_S) from None


def jobs_on(held: tuple[Holding, ...], slurm_index: int) -> list[int]:
    return sorted(h.job_id for h in held if h.slurm_index == slurm_index and not h.is_placeholder)


def listed(jobs: list[int]) -> str:
    """Returns the first jobs for the end of a clause: ": 7, 8 and 3 more"; "" for none."""
    more = f" and {len(jobs) - 8} more" if len(jobs) > 8 else ""
    return f": {', '.join(map(str, jobs[:8]))}{more}" if jobs else ""
