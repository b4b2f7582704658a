# SPDX-License-Identifier: Apache-2.0
"""A node below a temporary directory, for the tests of prolog, epilog, ledger, run directory and reconcile."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.mounting import can_mount, unmount_below

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.inventory import Device, make_inventory
from hami_hpc.core.records import USAGE_FILE_SIZE
from hami_hpc.node import job_dirs, mounts
from hami_hpc.node.config import Settings, load_settings
from hami_hpc.stages import common
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.prolog import main as prolog_main

ROOT = Path(__file__).resolve().parents[2]
GPU_MIB = 143156
UID = 65534
UUIDS = ("GPU-11111111-1111-1111-1111-111111111111", "GPU-22222222-2222-2222-2222-222222222222")
TOML = """\
version = 1
[paths]
run_dir = "{run}"
state_dir = "{state}"
[gpu_models.h200]
total_mib = 143156
[partitions.gpu]
gpu_models = ["h200"]
"""


SQUEUE = """#!/bin/sh
for word; do case $word in --jobs=*) id=${word#--jobs=}; echo "$id $id N/A" ;; esac; done
"""


def slurms_commands(folder: Path, scontrol: str) -> str:
    """Makes a scontrol of this text in `folder`, and a squeue that knows each job as one of no array. Returns the path
    of the first."""
    for name, text in (("scontrol", scontrol), ("squeue", SQUEUE)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return str(folder / "scontrol")


def names_in(folder: Path) -> list[str]:
    """Returns the sorted names in a folder; none when the folder does not exist."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def job_environment(job_id: int, mem_mib: int = 8192, gpu: str = "0", **more: str) -> dict[str, str]:
    """Returns the environment that slurmd gives the prolog of a vgpu job."""
    environment = {
        "SLURM_JOB_ID": str(job_id),
        "SLURM_JOB_UID": str(UID),
        "SLURM_JOB_GPUS": gpu,
        c.ENV_VGPU: "1",
        c.ENV_CLASS: "std",
        c.ENV_MEM_MIB: str(mem_mib),
        c.ENV_CORES: "50",
    }
    return environment | more


def pair_environment(job_id: int, **more: str) -> dict[str, str]:
    """Returns the environment of a job with two slices of 8 GiB and 50 %: sums, and the GPU of the last of them."""
    units = {c.ENV_VGPU: "2", c.ENV_MEM_MIB: "16384", c.ENV_CORES: "100", "SLURMD_NODENAME": "n1"}
    return job_environment(job_id, gpu="1") | units | more


@functools.lru_cache(maxsize=8)
def settings_of(path: str, _text: str) -> Settings:
    """Reads the settings once for each text: tests that kill a process at each line ask for them thousands of times."""
    return load_settings(path)


@dataclass(frozen=True)
class Node:
    """Settings, ledger and run directory of a node with two H200s, all below `root`."""

    root: Path

    @classmethod
    def make(cls, root: Path, run: Path | None = None, state: Path | None = None, with_gpus: bool = True) -> Node:
        """Creates a new node; `with_gpus` enters the inventory in the ledger, so that no driver is needed."""
        root.mkdir(parents=True, exist_ok=True)
        node = cls(root)
        node.config.write_text(TOML.format(run=run or root / "run", state=state or root / "state"))
        if with_gpus:
            node.enter_gpus()
        return node

    def clear(self) -> None:
        """Removes run and state directory, as if the node were new."""
        unmount_below(self.root)
        for name in ("run", "state"):
            shutil.rmtree(self.root / name, ignore_errors=True)

    @property
    def config(self) -> Path:
        return self.root / "hami-hpc.toml"

    @property
    def settings(self) -> Settings:
        return settings_of(str(self.config), self.config.read_text())

    def enter_gpus(self) -> None:
        settings = self.settings
        devices = [Device(minor, uuid, "NVIDIA H200", GPU_MIB) for minor, uuid in enumerate(UUIDS)]
        ledger = common.open_ledger(settings)
        ledger.set_inventory(make_inventory(devices, settings.gpu_models))
        ledger.close()

    def prolog(self, job_id: int, **request: str | int) -> int:
        """Runs the prolog in this process; returns its exit status."""
        return prolog_main(self.arguments, job_environment(job_id, **request))  # type: ignore[arg-type]

    def epilog(self, job_id: int, **request: str | int) -> int:
        """Runs the epilog in this process; returns its exit status."""
        return epilog_main(self.arguments, job_environment(job_id, **request))  # type: ignore[arg-type]

    @property
    def arguments(self) -> list[str]:
        return ["--config", str(self.config)]

    def start(self, stage: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Starts prolog or epilog as slurmd does: the script, with only `environment`."""
        command = [str(ROOT / "prolog" / stage), *self.arguments]
        return subprocess.Popen(command, env=dict(environment), stderr=subprocess.PIPE, text=True)

    def run(self, stage: str, environment: Mapping[str, str]) -> tuple[int, str]:
        """Runs prolog or epilog as slurmd does; returns exit status and standard error."""
        process = self.start(stage, environment)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors

    def grants(self) -> dict[int, Grant]:
        """Returns the ledger's live grants by job id."""
        ledger = common.open_ledger(self.settings)
        try:
            return {grant.job_id: grant for grant in ledger.grants()}
        finally:
            ledger.close()

    @property
    def jobs(self) -> Path:
        return Path(job_dirs.jobs_dir(self.settings.run_dir))

    def names(self) -> list[str]:
        """Returns the names in the run directory's `jobs`."""
        return names_in(self.jobs)

    def record(self, name: str = "7.json") -> dict[str, object]:
        """Returns a usage record of the spool."""
        record = json.loads((self.root / "state" / "usage" / name).read_text())
        assert isinstance(record, dict)
        return record

    def spooled(self) -> list[str]:
        """Returns the names in the usage spool."""
        return names_in(Path(self.settings.state_dir) / "usage")

    def write_usage(self, job_id: int, **values: int) -> None:
        """Writes fields of the usage head, as the job's processes do."""
        with (self.jobs / str(job_id) / c.FILE_USAGE).open("r+b") as file:
            for name, value in values.items():
                offset, width, _ = c.USAGE_FIELDS[name]
                file.seek(offset)
                file.write(value.to_bytes(width, "little"))

    def assert_job_is_ready(self, job_id: int) -> None:
        """Asserts that the job has a ledger row and a complete directory of the same grant."""
        grant = self.grants()[job_id]
        directory = self.jobs / str(job_id)
        written = job_dirs.read_grant(str(directory))
        assert written is not None
        assert written.created_unix_ns == grant.created_unix_ns
        assert (written.uid, written.gpu_uuid, written.mem_mib, written.cores_percent) == (
            UID,
            grant.gpu_uuid,
            grant.mem_mib,
            50,
        )
        names = [name for name in names_in(directory) if name != c.FILE_TIMES]
        assert names == [c.FILE_HISTORY, c.FILE_JOB_LIMITS, job_dirs.SHARED]
        assert names_in(directory / job_dirs.SHARED) == [job_dirs.USAGE_NAME]
        assert mounts.is_mount_point(str(directory / job_dirs.SHARED)) == can_mount(), "bounded where that is possible"
        limits, usage = (directory / name for name in (c.FILE_JOB_LIMITS, c.FILE_USAGE))
        assert (limits.stat().st_uid, limits.stat().st_mode & 0o777) == (0, 0o644)
        assert (usage.stat().st_uid, usage.stat().st_mode & 0o777) == (UID, 0o600)
        assert usage.stat().st_size == USAGE_FILE_SIZE

    def assert_nothing_is_held(self) -> None:
        """Asserts that the ledger has no grant and the run directory no entry."""
        assert self.grants() == {}
        assert self.names() == []
