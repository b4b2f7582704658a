# SPDX-License-Identifier: Apache-2.0
"""Keeps Slurm off the GPUs out of service: fills them with placeholder jobs, and frees the others of placeholders.

It runs in `hami-hpc gpu drain` and `resume`, and as a process of its own: started by the epilog of a job that held such
a GPU, and by the prolog that refused a job there. It is idempotent and can be killed at any line: a later run cancels
or adds what the earlier one left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import suppress
from hami_hpc.core.inventory import Gpu, make_inventory
from hami_hpc.core.out_of_service import (
    GONE,
    DrainedGpu,
    Holding,
    as_numbered,
    fixed_to_hold,
    fixed_too_many,
    free_shards,
    sizes_to_request,
)
from hami_hpc.errors import HamiError, NodeError
from hami_hpc.node import drained_gpus, locks, mig_static, nvml
from hami_hpc.node.config import Settings
from hami_hpc.slurm import placeholders
from hami_hpc.stages import common, detached

LOCK = "drained-gpus.lock"
SETTLE_S = 0.2  # between two looks at first; slurmctld starts jobs within this time where it can
LAST_PAUSE_S = 2.0
DETACHED_S = 600.0  # a process of its own tries as long as this, then leaves the rest to the next epilog or prolog
FIXED_S = 10.0  # for which one that begins waits until what is never moved is held; then what is free of it stays so
OTHERS_TURN_S = 0.1  # that a second process waits for the lock, before it leaves the work to the first


class Occupation:
    """One run: what the node's GPUs have, and what is held of them."""

    def __init__(self, settings: Settings, node: placeholders.Node) -> None:
        self.settings, self.node = settings, node
        self.gpus = inventory(settings)
        self.drained: tuple[DrainedGpu, ...] = ()
        self.held: tuple[Holding, ...] = ()
        self.looked_ns = 0
        self.lacking: tuple[int, ...] = ()  # sizes of the jobs that are missing of those that hold fixed shards
        self.fixed = {gpu.slurm_index: fixed_of(settings, gpu) for gpu in self.gpus}
        self.fixed_end = time.monotonic() + FIXED_S
        self._partition = ""

    def look(self) -> tuple[int, ...]:
        """Reads file and Slurm again; returns the sizes of the jobs to submit, () when nothing is missing."""
        self.looked_ns = time.time_ns()
        self.drained = as_numbered(drained_gpus.read(self.settings.state_dir), self.gpus)
        self.held = self.node.holdings()
        is_due = time.monotonic() < self.fixed_end
        self.lacking = fixed_to_hold(self.fixed, self.held, self.indices()) if is_due else ()
        return sizes_to_request(self.free(), self.indices())

    def partition(self) -> str:
        self._partition = self._partition or self.node.partition()
        return self._partition

    def request_fixed(self) -> None:
        """Submits the jobs that hold what GPUs out of service have of the shards that are never moved. Where slurmctld
        refuses, it has none yet (render): that keeps no shards free."""
        waiting = self.node.pending(c.GRES_FIXED)
        if sorted(waiting.values()) == sorted(self.lacking):
            return
        try:
            self.node.submit(self.lacking, self.partition(), c.GRES_FIXED)
        except NodeError as error:
            self.fixed_end = 0.0
            common.report("gpu drain", f"{error}. Jobs that are never moved may wait for room on the other GPUs")
        self.node.cancel(tuple(waiting))

    def mark_look(self) -> None:
        """Notes in the lock file when the last look began, whose jobs slurmctld now knows: see _occupy_or_wait."""
        with suppress(OSError):
            os.utime(f"{self.settings.run_dir}/{LOCK}", ns=(self.looked_ns, self.looked_ns))

    def indices(self) -> frozenset[int]:
        """Returns Slurm's numbers of the GPUs out of service."""
        return frozenset(gpu.slurm_index for gpu in self.drained) - {GONE}

    def free(self) -> dict[int, int]:
        return free_shards({gpu.slurm_index: shards_of(self.settings, gpu) for gpu in self.gpus}, self.held)

    def placeholders(self, on_drained: bool) -> list[int]:
        """Returns the running placeholders on GPUs that are, or are not, out of service."""
        indices, over = self.indices(), fixed_too_many(self.fixed, self.held, self.indices())
        ours = [holding for holding in self.held if holding.is_placeholder]
        return [h.job_id for h in ours if (h.job_id not in over if h.fixed else h.slurm_index in indices) == on_drained]

    def settle(self) -> None:
        """Cancels what waits, then the placeholders on GPUs in service, and takes the others' time limits away."""
        self.node.cancel(tuple(self.node.pending()))
        if any(self.fixed.values()):
            self.node.cancel(tuple(self.node.pending(c.GRES_FIXED)))
        self.held = self.node.holdings()
        self.node.cancel(self.placeholders(on_drained=False))
        limited = {holding.job_id for holding in self.held if not holding.is_unlimited}
        for job_id in self.placeholders(on_drained=True):
            if job_id in limited:
                self.node.keep(job_id)
        self.node.close()


def inventory(settings: Settings) -> tuple[Gpu, ...]:
    """Returns the node's GPUs as the ledger has them, which knows a GPU that the driver has lost; else from NVML."""
    ledger = common.read_ledger(settings)
    try:
        gpus = ledger.inventory()
    finally:
        ledger.close()
    return tuple(gpus) or make_inventory(nvml.read_devices(), settings.gpu_models)


def shards_of(settings: Settings, gpu: Gpu) -> int:
    """Returns the shards that Slurm has of a GPU: none of a model without settings, or with a static MIG layout.

    Raises NodeError.
    """
    if gpu.uuid in mig_static.gpus(settings.state_dir):
        return 0
    return settings.gpu_size(gpu.model).sold_shards if gpu.model in settings.gpu_models else 0


def fixed_of(settings: Settings, gpu: Gpu) -> int:
    """Returns a GPU's shards of those that are never moved: none where memory is not oversold."""
    is_counted = settings.memory_scaling > 1 and gpu.model in settings.gpu_models
    return settings.gpu_size(gpu.model).slice_shards if is_counted else 0


def occupy(
    settings: Settings, node: placeholders.Node, timeout_s: float, registered: Callable[[], None] = lambda: None
) -> Occupation:
    """Submits and cancels placeholders until nothing of a GPU out of service is free, and nothing else is held.

    Calls `registered` when slurmctld knows the jobs that are missing. They start when it may use the node: after the
    epilog that called this, before any job of a user. Returns the last state; after `timeout_s` something may be free.
    Raises NodeError when Slurm fails, HeldError when another process does this for longer than OTHERS_TURN_S.
    """
    lock = locks.acquire(f"{settings.run_dir}/{LOCK}", True, OTHERS_TURN_S)
    try:
        run = Occupation(settings, node)
        try:
            _fill(run, timeout_s, registered)
        finally:
            run.settle()
        return run
    finally:
        os.close(lock)


def _fill(run: Occupation, timeout_s: float, registered: Callable[[], None]) -> None:
    end = time.monotonic() + timeout_s
    pause_s = SETTLE_S
    sizes = run.look()
    while (sizes or run.lacking) and time.monotonic() < end:
        waiting = run.node.pending()
        if tuple(sorted(waiting.values(), reverse=True)) != sizes:
            run.node.submit(sizes, run.partition())  # before the old ones are cancelled: a job of a user could be next
            run.node.cancel(tuple(waiting))
            pause_s = SETTLE_S
        if run.lacking:
            run.request_fixed()
        run.mark_look()
        registered()
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, LAST_PAUSE_S)
        sizes = run.look()
    run.mark_look()
    registered()


def start_detached(settings: Settings, environment: Mapping[str, str], wait_s: float) -> None:
    """Starts this module as a process of its own, which outlives the stage. Waits until slurmctld knows its jobs, but
    at most `wait_s`. Never fails."""
    detached.start("hami_hpc.stages.occupy", settings, environment, wait_s)


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Runs occupy for this node. Its reader waits for one byte on standard output."""
    said: list[bool] = []

    def registered() -> None:
        if not said:
            said.append(True)
            with suppress(OSError):  # the reader may not wait any more
                os.write(1, b".")

    try:
        settings = common.load(arguments)
        node = placeholders.Node(environment.get("SLURMD_NODENAME", ""), environment)
        run = _occupy_or_wait(settings, node, registered)
        left = {index: count for index, count in run.free().items() if index in run.indices() and count} if run else {}
        if left:
            raise NodeError(
                f"placeholder jobs could not take what is free of GPUs out of service: {left} (GPU: shards)"
            )
    except (HamiError, OSError) as error:
        common.report("gpu drain", f"{error}. Jobs that Slurm starts there are refused; see hami-hpc gpu list")
        return 1
    return 0


def _occupy_or_wait(settings: Settings, node: placeholders.Node, registered: Callable[[], None]) -> Occupation | None:
    """Runs occupy. Where another process does so, waits until that one has looked again, and returns None."""
    started_ns = time.time_ns()
    end = time.monotonic() + DETACHED_S
    while True:
        try:
            return occupy(settings, node, DETACHED_S, registered)
        except locks.HeldError:
            if os.stat(f"{settings.run_dir}/{LOCK}").st_mtime_ns > started_ns or time.monotonic() > end:
                return None
