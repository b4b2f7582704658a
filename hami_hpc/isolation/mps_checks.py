# SPDX-License-Identifier: Apache-2.0
"""The checks of `hami-hpc doctor` for mode=mps: programs, directories, compute modes, daemons, the interposer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.errors import NodeError
from hami_hpc.isolation import share_checks
from hami_hpc.node import acl, mps, mps_daemon, mps_partitions, mps_processes, nvml
from hami_hpc.node.config import Settings

NOBODY = 65534


def check(settings: Settings) -> Iterator[Finding]:
    """Yields the findings of all checks. Raises NodeError when a check cannot be made."""
    if "share" not in settings.modes:  # the interposer counts the memory here too
        yield from share_checks.check(settings)
    yield from _program(settings)
    yield from _partitions(settings)
    yield from _directory(settings)
    yield from _compute_modes()
    yield from _daemons(settings)


def _program(settings: Settings) -> Iterator[Finding]:
    problem = ""
    try:
        mps_daemon.check_program(settings.mps_control)
        own = Path(settings.mps_control).resolve().parent
        folders = (own, *map(Path, mps_daemon.SYSTEM_PATH.split(":")))
        if not any(os.access(folder / mps_processes.SERVER_NAME, os.X_OK) for folder in folders):
            problem = f"{own / mps_processes.SERVER_NAME} is not there"
    except NodeError as error:
        problem = str(error)
    advice = "install the driver's package with the programs of MPS, or set control in [mps]"
    yield finding("MPS programs", not problem, problem or settings.mps_control, advice)


def _partitions(settings: Settings) -> Iterator[Finding]:
    """Says whether jobs have SM partitions of their own, as far as that was tried in this boot."""
    if not settings.mps_static:
        return
    why = ""
    with suppress(OSError):
        why = mps_partitions.why_not(settings.mps_control, settings.run_dir)
    if why:
        detail = f"jobs have percentages of the multiprocessors: {why}"
    elif any(mps_daemon.is_static(place) for place in mps.places(settings.run_dir)):
        detail = "jobs have SM partitions of their own"
    else:
        detail = "not tried in this boot: the next job's prolog asks the control program"
    yield Finding("MPS partitions", Level.OK, detail)


def _directory(settings: Settings) -> Iterator[Finding]:
    """Checks that one user alone can be let into a directory of the run directory."""
    problem = ""
    try:
        with tempfile.TemporaryDirectory(dir=settings.run_dir, prefix=".acl-") as folder:
            acl.let_enter(folder, NOBODY)
    except OSError as error:
        problem = f"{settings.run_dir}: {error.strerror}"
    advice = "mount run_dir as a tmpfs, or another file system with access control lists"
    yield finding("MPS directories", not problem, problem or "can be opened to one user", advice)


def _compute_modes() -> Iterator[Finding]:
    """Checks that programs may use each GPU; hami_hpc never changes its compute mode."""
    module = nvml.open_nvml()
    try:
        for index in range(module.nvmlDeviceGetCount()):
            handle = module.nvmlDeviceGetHandleByIndex(index)
            mode = module.nvmlDeviceGetComputeMode(handle)
            what = f"compute mode of GPU {module.nvmlDeviceGetMinorNumber(handle)}"
            if mode == module.NVML_COMPUTEMODE_DEFAULT:
                yield Finding(what, Level.OK, "default")
            elif mode == module.NVML_COMPUTEMODE_PROHIBITED:
                yield Finding(what, Level.FAIL, "prohibited: no program can use it", "nvidia-smi -c DEFAULT")
            else:
                detail = "exclusive: one MPS server at a time, so one user, and no job with another mode"
                yield Finding(what, Level.WARN, detail, "nvidia-smi -c DEFAULT, unless that is wanted")
    except module.NVMLError as error:
        raise NodeError(f"NVML failed while reading compute modes ({error}). Check with nvidia-smi") from error
    finally:
        module.nvmlShutdown()


def _daemons(settings: Settings) -> Iterator[Finding]:
    """Reports control daemons that this configuration did not start, and those of jobs that do not answer."""
    found = mps_processes.processes()
    others = mps_processes.foreign(f"{settings.run_dir}/{mps_daemon.FOLDER}", found)
    if others:
        listed = ", ".join(f"process {other.pid} of uid {other.uid} in {other.pipe}" for other in others[:8])
        advice = "end it (echo quit | nvidia-cuda-mps-control) unless a user's job or another configuration runs it"
        yield Finding("MPS daemons of others", Level.WARN, f"{listed}: left alone", advice)
    silent = [
        place.pipe
        for place in mps.places(settings.run_dir)
        if mps.members(place) and not mps_daemon.answers(settings.mps_control, place)
    ]
    detail = f"no answer in {', '.join(silent)}" if silent else "each job's daemon answers"
    yield finding("MPS daemons", not silent, detail, "hami-hpc reconcile")
