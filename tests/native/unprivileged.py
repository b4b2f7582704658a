# SPDX-License-Identifier: Apache-2.0
"""Runs conformance programs as an ordinary user, wherever the checkout lies."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from conformance import BUILD, INTERPOSER, JOB, MIB, make_slice, put

from hami_hpc.contract import constants as c


@dataclass(frozen=True)
class Place:
    """Where an ordinary user reaches all: a simulated machine, the job's genuine records, the user's own copies."""

    root: Path
    genuine: Path
    forged: Path
    environment: dict[str, str]
    uid: int

    def run(
        self, program: str, *wrapper: str, records: Path | None = None, script: str = "", uid: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`program` as the user, inside of `wrapper` (an unshare), with limits from `records`, after `script`."""
        environment = self.environment | {c.ENV_LIMITS: str((records or self.forged) / "step-0.limits")}
        user = self.uid if uid is None else uid
        inner = f'{script}\nLD_PRELOAD="$PRELOAD" exec {self.root}/{program}'
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *wrapper, "sh", "-ec", inner]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def make_open_machine(root: Path) -> tuple[Path, str]:
    """Makes a simulated machine with one GPU in `root`, and a copy of its libraries, for all users. Returns its folder
    and the GPU's UUID."""
    root.chmod(0o755)
    shutil.copytree(BUILD / "sim", root / "sim", ignore=shutil.ignore_patterns("obj", "tests"))
    machine = root / "machine"
    subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), "h200"], check=True, capture_output=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(machine)], check=True)
    uuid = re.search(r"uuid=(GPU-\S+)", (machine / "machine.conf").read_text())
    assert uuid is not None
    return machine, uuid[1]


def make_place(root: Path, uid: int, limit_mib: int, forged_mib: int) -> Place:
    """Fills the new directory `root`: a job of `uid` with `limit_mib`, and the user's copies that say `forged_mib`."""
    machine, uuid = make_open_machine(root)
    shutil.copytree(BUILD / "conformance", root / "conformance")
    shutil.copytree(BUILD / "compute", root / "compute")
    shutil.copy(INTERPOSER, root / INTERPOSER.name)
    made = make_slice(root / "run", machine, uuid, job_mib=limit_mib, uid=uid)
    os.chown(made.directory / c.FILE_USAGE, uid, uid)
    forged = root / "home" / str(JOB)
    forged.mkdir(parents=True)
    for name in (c.FILE_JOB_LIMITS, "step-0.limits"):
        record = (made.directory / name).read_bytes()
        (forged / name).write_bytes(put(record, {"mem_limit_bytes": forged_mib * MIB}))
    (forged / c.FILE_USAGE).parent.mkdir(exist_ok=True)
    shutil.copy(made.directory / c.FILE_USAGE, forged / c.FILE_USAGE)
    subprocess.run(["chown", "-R", f"{uid}:{uid}", str(forged.parent)], check=True)
    environment = {k: v.replace(str(BUILD), str(root)) for k, v in made.environment().items()}
    environment["PRELOAD"] = environment.pop("LD_PRELOAD")
    return Place(root, made.directory, forged, environment, uid)
