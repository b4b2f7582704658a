# SPDX-License-Identifier: Apache-2.0
"""Opens sessions in the cgroup of a job's extern step, as sshd does for a user whom pam_slurm_adopt has let in."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build" / "tests" / "pam" / "open_session"
MODULE = ROOT / "build" / "slurm-plugins" / "pam_hami_hpc.so"
REFUSED = 100


def build() -> None:
    subprocess.run(["make", "-s", "-C", str(ROOT / "tests/native/pam")], check=True)


def hierarchies() -> dict[str, Path]:
    """Returns where cgroups can be made here, for "v1" and "v2"."""
    found: dict[str, Path] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _device, place, kind, options = line.split()[:4]
        names = options.split(",")
        if kind == "cgroup" and "freezer" in names:
            found["v1"] = Path(place)
        elif kind == "cgroup2":
            found["v2"] = Path(place)
    return {version: place for version, place in found.items() if os.access(place, os.W_OK)}


@contextmanager
def extern_step(version: str, job: int, uid: int, step: str = "step_extern", sluid: str = "") -> Iterator[Path]:
    """Makes the cgroup that Slurm has for a job's extern step, on a node of a name that no Slurm here has. Since 26.05
    that of version 2 has the job's SLUID."""
    node = f"hami-test-{os.getpid()}"
    top = hierarchies()[version] / (f"slurm_{node}" if version == "v1" else f"{node}_slurmstepd.scope")
    middle = top / f"uid_{uid}" / f"job_{job}" if version == "v1" else top / (sluid or f"job_{job}")
    place = middle / step
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        for _ in range(100):  # a process that has ended leaves a little later
            with suppress(OSError):
                place.rmdir()
                break
            time.sleep(0.05)
        while (place := place.parent) != top.parent:
            with suppress(OSError):  # another one of this test is there
                place.rmdir()


@dataclass(frozen=True)
class Sshd:
    """PAM's service with one line for the module, in `folder`."""

    folder: Path
    user: str
    has_own_run: bool = True  # a /run of the session's own, so that the machine's stays as it is

    def command(self, cgroup: Path | None, environment: Mapping[str, str], *command: str) -> list[str]:
        """Returns the command that runs `command` in a session. Mounts of the module stay in it."""
        variables = [f"{name}={value}" for name, value in environment.items()]
        private = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", 'mount -t tmpfs none /run; exec "$@"']
        private = [*private, "sh"] if self.has_own_run else []
        opened = [str(PROGRAM), str(self.folder), self.user, str(cgroup or "-"), *variables, "--", *command]
        return [*private, *opened]

    def run(
        self, cgroup: Path | None, environment: Mapping[str, str], *command: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(cgroup, environment, *command), capture_output=True, text=True, timeout=60, check=False
        )


def make_sshd(folder: Path, user: str, *arguments: str, has_own_run: bool = True) -> Sshd:
    folder.mkdir(exist_ok=True)
    (folder / "session").write_text(f"session required {MODULE} {' '.join(arguments)}\n")
    return Sshd(folder, user, has_own_run)
