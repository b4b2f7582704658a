# SPDX-License-Identifier: Apache-2.0
"""Measures one GPU that nobody uses, and stops at once when somebody comes (`hami-hpc baseline`)."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType

from hami_hpc.contract import constants as c
from hami_hpc.core.inventory import Device, make_inventory
from hami_hpc.errors import HamiError
from hami_hpc.node import gpu_jobs, job_dirs, nvml
from hami_hpc.node.tenants import LOOPS, NS, MeasureError, Tenants, make_slices, tenant_environment, was_limited

MIB = 1 << 20
FULL_S, QUICK_S = 9.5, 2.6  # one measurement of a GPU at most; a second one is made only where there is time for it
LINGER_S = 0.5  # for a process that has ended to be gone from NVML's list
SOON_NS = NS // 10  # from "go" to the first kernel that counts, where no cap has to settle
SETTLE_NS = NS * 2 // 5  # as SOON_NS, under a cap
CAPPED_NS = NS * 3 // 2  # 15 of the budget's rounds
MIG_ON = 1


class UsedError(HamiError):
    """Somebody uses the GPU: the message says who. No fault of the GPU."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where tenants find what they need: the folder for records, and the programs."""

    run_dir: str
    folder: str
    interposer: str
    program: str
    environment: Mapping[str, str]
    pids: set[int] = field(default_factory=set)
    numbers: Mapping[str, Collection[int]] = field(default_factory=dict)  # of each GPU: numbers_of()


class Driver:
    """NVML, open."""

    def __init__(self) -> None:
        self.module: ModuleType = nvml.open_nvml()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.module.nvmlShutdown()

    def version(self) -> str:
        return str(self.ask("nvmlSystemGetDriverVersion"))

    def ask(self, name: str, *arguments: object, **named: object) -> object:
        """Calls a function of NVML. Raises MeasureError when it fails."""
        try:
            return getattr(self.module, name)(*arguments, **named)
        except self.module.NVMLError as error:
            raise MeasureError(f"{name} failed ({error}). Check with nvidia-smi and dmesg (Xid)") from error

    def free_mib(self, uuid: str) -> float:
        handle = self.ask("nvmlDeviceGetHandleByUUID", uuid)
        memory = self.ask("nvmlDeviceGetMemoryInfo", handle, version=self.module.nvmlMemory_v2)
        return float(memory.free // MIB)  # type: ignore[attr-defined]

    def processes(self, uuid: str) -> frozenset[int]:
        handle = self.ask("nvmlDeviceGetHandleByUUID", uuid)
        rows = self.ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return frozenset(int(row.pid) for row in rows)  # type: ignore[attr-defined]

    def is_mig(self, uuid: str) -> bool:
        """Returns whether the GPU is divided by MIG; a GPU that cannot be is not."""
        try:
            handle = self.module.nvmlDeviceGetHandleByUUID(uuid)
            return bool(self.module.nvmlDeviceGetMigMode(handle)[0] == MIG_ON)
        except self.module.NVMLError:
            return False


def numbers_of(devices: Sequence[Device]) -> dict[str, frozenset[int]]:
    """Returns the numbers by which Slurm may know each GPU: its place among those that the driver shows, and its minor
    number, which is its place when none is lost."""
    return {gpu.uuid: frozenset((gpu.slurm_index, gpu.minor)) for gpu in make_inventory(devices, {})}


def check_unused(
    driver: Driver, run_dir: str, uuid: str, own: frozenset[int] = frozenset(), numbers: Collection[int] = ()
) -> None:
    """Raises UsedError when a job's directory or a process that is not one of `own` is on the GPU. `numbers` are those
    by which the prolog's note of a job with whole GPUs may name it.

    Where this runs in a process namespace NVML shows other ids than ours: then their number decides.
    """
    for name in job_dirs.entries(run_dir):
        directory = f"{job_dirs.jobs_dir(run_dir)}/{name}"
        if not name.isdigit():
            continue
        if os.path.lexists(f"{directory}/{c.FILE_WHOLE}"):
            raise UsedError(f"job {name} holds all GPUs of the node")
        grant = job_dirs.read_grant(directory)
        if grant is not None and grant.gpu_uuid == uuid:
            raise UsedError(f"job {name} holds a part of it")
        noted = gpu_jobs.read(directory) if grant is None else None
        if noted is not None and not set(noted.gpus).isdisjoint(numbers):
            raise UsedError(f"job {name} holds it")
    found = driver.processes(uuid)
    strange = found - own
    if len(found) > len(own) or (strange and not found <= strange):
        raise UsedError(f"{len(found) - len(found & own)} other process(es) use it")


def _check_soon(driver: Driver, place: Place, uuid: str) -> None:
    """As check_unused(), but waits a little for processes that have just ended, such as those of the last check."""
    end = time.monotonic() + LINGER_S
    while True:
        try:
            check_unused(driver, place.run_dir, uuid, numbers=place.numbers.get(uuid, ()))
        except UsedError:
            if time.monotonic() >= end:
                raise
            time.sleep(LINGER_S / 10)
        else:
            return


def measure_gpu(driver: Driver, device: Device, place: Place, quick: bool) -> dict[str, float]:
    """Returns the figures of a GPU (core/baseline.py). Raises UsedError and MeasureError."""
    _check_soon(driver, place, device.uuid)
    deadline = time.monotonic() + (QUICK_S if quick else FULL_S)
    free_mib = driver.free_mib(device.uuid)
    (alone,) = _work(driver, device, place, (100,), SOON_NS, NS // 2 if quick else NS * 4 // 5, deadline)
    figures = {"launch_us": alone["launch_ns"] / 1000, "alone_per_s": alone["per_s"], "free_mib": free_mib}
    if quick:
        return figures
    (capped,) = _work(driver, device, place, (25,), SETTLE_NS, CAPPED_NS, deadline)
    beside = _work(driver, device, place, (50, 50), SETTLE_NS, CAPPED_NS, deadline)
    two = [tenant["per_s"] for tenant in beside]
    both = sum(two)
    if not alone["per_s"] or not both:
        raise MeasureError("no kernel ended within a second: see dmesg (Xid)")
    return figures | {
        "context_ms": min(tenant["context_ns"] for tenant in (alone, capped, *beside)) / 1e6,
        "both_per_s": both,
        "lesser_percent": 100 * min(two) / both,
        "cap25_error": abs(100 * capped["per_s"] / alone["per_s"] - 25),
    }


def _work(
    driver: Driver, device: Device, place: Place, caps: Sequence[int], soon_ns: int, length_ns: int, deadline: float
) -> list[dict[str, float]]:
    """Lets tenants with these caps work at the same time. Returns the numbers of each, with kernels per second."""

    def look(own: frozenset[int]) -> None:
        place.pids.update(own)  # also those of the tenants before, which NVML may show for a moment
        numbers = place.numbers.get(device.uuid, ())
        check_unused(driver, place.run_dir, device.uuid, frozenset(place.pids), numbers)

    if not os.path.isfile(place.interposer):
        raise MeasureError(f"there is no interposer {place.interposer}: run hami-hpc doctor")
    limits = make_slices(place.folder, device, caps)
    environments = [tenant_environment(place.environment, place.interposer, device.uuid, path) for path in limits]
    commands = [(place.program, str(LOOPS))] * len(caps)
    try:
        with Tenants(commands, environments) as tenants:
            tenants.wait_for("ready", deadline, look)
            tenants.go(time.monotonic_ns() + soon_ns, length_ns)
            told = tenants.wait_for("kernels", deadline, look)
    except MeasureError:
        look(frozenset())  # a job that came may be the reason
        raise
    except OSError as error:
        raise MeasureError(f"{place.program} cannot be run ({error.strerror}): install hami_hpc again") from error
    if not all(was_limited(path) for path in limits):
        raise MeasureError(f"{place.interposer} did not limit the program that measures: run hami-hpc doctor")
    return [{**numbers, "per_s": numbers["kernels"] * NS / length_ns} for numbers in told]
