# SPDX-License-Identifier: Apache-2.0
"""A node whose jobs have mode=mps, with the simulated control daemon and CUDA processes as its clients."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sim_testbed
from harness.mounting import folder_in_memory
from node_testbed import ROOT, UID, UUIDS, Node, job_environment

from hami_hpc.contract import constants as c
from hami_hpc.node import mps, mps_processes
from hami_hpc.node.mps_daemon import Place
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.prolog import main as prolog_main

PROGRAM = (sim_testbed.SIM / "nvidia-cuda-mps-control").resolve()  # as /proc shows it, also by a linked build
CLIENT = ROOT / "tests/gpu/mps_client.py"
OTHER_UID = 65533
FEATURE = "vgpu_mps"
AUTO = 'static_partitions = "auto"'
CHUNKS = 15  # of an H200: 132 multiprocessors in chunks of 8, and 12 that are in none


@dataclass(frozen=True)
class MpsNode(Node):
    """A node that offers mode=mps. Its folder is short: a socket's path has at most 107 bytes."""

    @classmethod
    @contextmanager
    def running(cls, multi_user: bool = False) -> Iterator[MpsNode]:
        """Yields a new node, and ends its daemons at the end."""
        sim_testbed.build()
        with folder_in_memory("m-") as folder:
            folder.chmod(0o755)
            node = cls(Node.make(folder / "n").root)
            node.write_settings(multi_user)
            (folder / "sim").mkdir(mode=0o755)
            try:
                yield node
            finally:
                assert not list(end_all(folder)), "daemons are left"

    def write_settings(
        self, multi_user: bool = False, modes: str = '["share", "mps"]', program: object = PROGRAM, more: str = AUTO
    ) -> None:
        base = self.config.read_text().partition("[vgpu]")[0]
        flag = "true" if multi_user else "false"
        self.config.write_text(
            f'{base}[vgpu]\nmodes = {modes}\nmode_failures = 0\n[mps]\ncontrol = "{program}"\nmulti_user = {flag}\n'
            f"{more}\n"
        )

    def set_driver(self, chunks: int = CHUNKS) -> None:
        """Gives the simulated control program static SM partitions, as that of driver 590 and later has them: of a GPU
        with 132 multiprocessors in chunks of 8."""
        (self.root.parent / "sim" / "mps-static").write_text(f"{chunks} 8 132\n")

    def place(self, uid: int = UID, gpu: int = 0, multi_user: bool = False) -> Place:
        return mps.place_of(self.settings.run_dir, gpu, uid, multi_user)

    def environment(self, job_id: int, uid: int = UID, **request: str | int) -> dict[str, str]:
        given = job_environment(job_id, **request)  # type: ignore[arg-type]
        return given | {"SLURM_JOB_UID": str(uid), "SLURM_JOB_CONSTRAINTS": FEATURE}

    def mps_prolog(self, job_id: int, uid: int = UID, **request: str | int) -> int:
        return prolog_main(self.arguments, self.environment(job_id, uid, **request))

    def mps_epilog(self, job_id: int, uid: int = UID, **request: str | int) -> int:
        return epilog_main(self.arguments, self.environment(job_id, uid, **request))

    def daemons(self) -> tuple[mps_processes.Process, ...]:
        """Returns the daemons and servers of this node."""
        folder = f"{self.settings.run_dir}/"
        return tuple(process for process in mps_processes.processes() if process.pipe.startswith(folder))

    def controls(self) -> list[str]:
        """Returns the names of the places whose daemon runs."""
        return sorted(p.pipe.rpartition("/")[2] for p in self.daemons() if not p.is_server)

    def settled_controls(self, wanted: list[str]) -> list[str]:
        """Returns controls() once it is `wanted`, or as it is after 5 s: a daemon is two processes while it begins."""
        end = time.monotonic() + 5
        while (found := self.controls()) != wanted and time.monotonic() < end:
            time.sleep(0.01)
        return found

    def files(self) -> list[str]:
        """Returns what is in the folder of MPS, but for locks, which stay."""
        folder = Path(self.settings.run_dir) / "mps"
        return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") if folder.exists() else []

    def assert_no_mps(self) -> None:
        assert (self.daemons(), self.files()) == ((), [])

    def assert_one_daemon(self, *jobs: int) -> None:
        """Asserts that the user has one daemon on GPU 0, which answers, for these jobs."""
        from hami_hpc.node import mps_daemon

        place = self.place()
        assert self.controls() == ["0-65534"]
        assert {member.job_id for member in mps.members(place)} == set(jobs)
        assert mps_daemon.answers(str(PROGRAM), place)
        clients = os.lstat(f"{place.pipe}/{c.FILE_MPS_CLIENTS}")
        assert (clients.st_uid, stat.S_IFMT(clients.st_mode), stat.S_IMODE(clients.st_mode)) == (
            UID,
            stat.S_IFREG,
            0o600,
        )

    def pid(self, uid: int = UID) -> int:
        return mps_processes.daemons_at(self.place(uid).pipe, str(PROGRAM))[0].pid

    def fault(self, *lines: str) -> None:
        """Gives the simulated daemons faults, from their next command on."""
        (self.root.parent / "sim" / "mps").write_text("".join(f"{line}\n" for line in lines))


def end_all(folder: Path) -> Iterator[str]:
    """Kills what is left of a node's daemons; yields those that a test was to have ended."""
    left = tuple(process for process in mps_processes.processes() if process.pipe.startswith(f"{folder}/"))
    yield from (f"{process.pid} in {process.pipe}" for process in mps_processes.kill(left, 5))


def client(environment: dict[str, str], *arguments: str, uid: int = 0) -> subprocess.Popen[str]:
    """Starts a CUDA process on the simulation."""
    kept = {name: os.environ[name] for name in ("PATH",)}
    python = "/usr/bin/python3" if uid else sys.executable
    return subprocess.Popen(
        [python, str(CLIENT), *arguments],
        env=kept | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        user=uid,
        group=uid,
        extra_groups=[],
    )


GPU_UUID = UUIDS[0]
