# SPDX-License-Identifier: Apache-2.0
"""Jobs with several slices on a simulated machine: what prolog and SPANK write for them, and their programs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance import BUILD, JOB, MIB, Slice, make_slice, put

from hami_hpc.contract import constants as c

PROGRAMS = BUILD / "several"


@dataclass(frozen=True)
class Machine:
    directory: Path | None  # of the simulation; None: this machine's own GPUs
    uuids: tuple[str, ...]  # by NVML's index


def make_machine(directory: Path, gpus: int) -> Machine:
    command = [str(BUILD / "sim/sim-machine"), str(directory), *["h200"] * gpus]
    subprocess.run(command, check=True, capture_output=True)
    words = (directory / "machine.conf").read_text().replace("=", " ").split()
    uuids = tuple(word for word in words if word.startswith("GPU-"))
    assert len(uuids) == gpus
    return Machine(directory, uuids)


@dataclass(frozen=True)
class Job:
    """A job with a slice on each of `gpus` (indices of the machine's), in the order of the slices."""

    first: Slice
    machine: Machine
    gpus: tuple[int, ...]
    limits_mib: tuple[int, ...]

    def path(self, name: str, index: int) -> Path:
        """`job`, `step` or `usage` of one slice."""
        names = {
            "job": (c.FILE_JOB_LIMITS, c.FILE_SLICE_JOB_LIMITS),
            "step": (c.FILE_STEP_LIMITS, c.FILE_SLICE_STEP_LIMITS),
            "usage": (c.FILE_USAGE, c.FILE_SLICE_USAGE),
        }[name]
        return self.first.directory / names[index > 0].format(step_id=self.first.step_id, slice=index)

    def environment(self, visible: Sequence[int] | None = None, **more: str) -> dict[str, str]:
        """`visible`: CUDA_VISIBLE_DEVICES; without it the job sees its own GPUs."""
        shown = self.gpus if visible is None else visible
        limits = [self.limits_mib[self.gpus.index(gpu)] if gpu in self.gpus else 0 for gpu in shown]
        return (
            self.first.environment()
            | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, shown)), "LIMITS_MIB": ",".join(map(str, limits))}
            | more
        )

    def run(
        self, program: str, *arguments: object, visible: Sequence[int] | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        command = [program if "/" in program else str(PROGRAMS / program), *map(str, arguments)]
        environment = self.environment(visible, **more)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def start(
        self, program: str, *arguments: object, visible: Sequence[int] | None = None, **more: str
    ) -> subprocess.Popen[str]:
        command = [program if "/" in program else str(PROGRAMS / program), *map(str, arguments)]
        environment = self.environment(visible, **more)
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def usage(self, index: int) -> dict[str, int]:
        data = self.path("usage", index).read_bytes()
        return {k: int.from_bytes(data[o : o + n], "little") for k, (o, n, _kind) in c.USAGE_FIELDS.items()}

    def change(self, index: int, values: Mapping[str, int], names: Sequence[str] = ("job", "step")) -> None:
        for name in names:
            path = self.path(name, index)
            path.write_bytes(put(path.read_bytes(), values))


def make_job(
    directory: Path,
    machine: Machine,
    gpus: Sequence[int],
    *,
    limits_mib: Sequence[int] | int = 4096,
    cores: Sequence[int] | int = 100,
    step_id: int = 0,
    policy: str = "cap",
) -> Job:
    mib = [limits_mib] * len(gpus) if isinstance(limits_mib, int) else limits_mib
    percent = [cores] * len(gpus) if isinstance(cores, int) else cores
    made = []
    for index, gpu in enumerate(gpus):
        own = make_slice(
            directory if index == 0 else directory / f"of-{index}",
            machine.directory,
            machine.uuids[gpu],
            job_mib=mib[index],
            cores_percent=percent[index],
            step_id=step_id,
            fields={"slice_index": index, "slice_count": len(gpus), "gpu_minor": gpu},
            policy=policy,
        )
        made.append(own)
    job = Job(made[0], machine, tuple(gpus), tuple(mib))
    for index, own in enumerate(made[1:], 1):
        (own.directory / c.FILE_JOB_LIMITS).rename(job.path("job", index))
        own.limits.rename(job.path("step", index))
        (own.directory / c.FILE_USAGE).rename(job.path("usage", index))
    return job


__all__ = ["JOB", "MIB", "PROGRAMS", "Job", "Machine", "make_job", "make_machine"]
