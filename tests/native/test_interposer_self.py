# SPDX-License-Identifier: Apache-2.0
"""preload=ldso as the interposer sees it: records bound to /run/hami-hpc/self win over what the environment says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance import BUILD, INTERPOSER, PROGRAMS, REAL_GPU, make_slice
from several_slices import make_job, make_machine

from hami_hpc.contract import constants as c

pytestmark = pytest.mark.skipif(REAL_GPU, reason="binds over /run, which a GPU machine's own jobs may use")
SELF = Path(c.FILE_RUN_DIR) / "self"


@pytest.fixture
def mount_point() -> Iterator[None]:
    """The directory that prolog and SPANK make once; taken away again where the machine had none."""
    made = [path for path in (SELF.parent, SELF) if not path.exists()]
    SELF.mkdir(parents=True, exist_ok=True)
    yield
    for _ in range(2):  # where nothing is mounted on / (a plain chroot), mounts cannot be kept to a namespace
        subprocess.run(["umount", "--recursive", str(SELF)], capture_output=True, check=False)
    for path in reversed(made):
        path.rmdir()


@pytest.mark.parametrize("environment", ["other limits", "none"])
def test_the_environment_cannot_change_the_limits(environment: str, tmp_path: Path, mount_point: None) -> None:
    machine = tmp_path / "sim"
    subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), "h200"], check=True, capture_output=True)
    text = (machine / "machine.conf").read_text()
    uuid = next(word for word in text.replace("=", " ").split() if word.startswith("GPU-"))
    own = make_slice(tmp_path / "own", machine, uuid, job_mib=2048, step_id=7)
    other = make_slice(tmp_path / "other", machine, uuid, job_mib=65536)
    (own.directory / "step.limits").touch()
    variables = own.environment()  # LIMIT_MIB: what the program must find
    if environment == "other limits":
        variables[c.ENV_LIMITS] = str(other.limits)
    else:
        del variables[c.ENV_LIMITS]
    preload = variables.pop("LD_PRELOAD")  # ld.so.preload's part is SPANK's, and tested there
    assert str(INTERPOSER) in preload
    program = str(PROGRAMS / "memory_ends_at_the_limit")
    mount = f"mount --bind {own.directory} {SELF}; mount --bind {own.limits} {SELF}/step.limits"
    remove = "true"
    command = own_mounts()
    if not command:  # no rights to mount: root's files themselves, for as long as it takes
        mount, remove = f"cp -a {own.directory}/. {SELF}; cp {own.limits} {SELF}/step.limits", f"rm -r {SELF}/*"
    script = f"set -e; {mount}; set +e; LD_PRELOAD='{preload}' {program}; status=$?; {remove}; exit $status"
    result = subprocess.run(
        [*command, "sh", "-c", script], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr


def test_every_slice_is_found_there(tmp_path: Path, mount_point: None) -> None:
    machine = make_machine(tmp_path / "sim", 2)
    job = make_job(tmp_path, machine, [0, 1], limits_mib=(4096, 2048), step_id=7)
    variables = job.environment()
    del variables[c.ENV_LIMITS]
    preload = variables.pop("LD_PRELOAD")
    names = [c.FILE_SELF_LIMITS, c.FILE_SELF_SLICE_LIMITS.format(slice=1)]
    bound = [(job.path("step", index), SELF / name) for index, name in enumerate(names)]
    for _record, place in bound:
        (job.first.directory / place.name).touch()
    mount = f"mount --bind {job.first.directory} {SELF}; "
    mount += "; ".join(f"mount --bind {record} {place}" for record, place in bound)
    remove = "true"
    command = own_mounts()
    if not command:
        mount = f"cp -a {job.first.directory}/. {SELF}; "
        mount += "; ".join(f"cp {record} {place}" for record, place in bound)
        remove = f"rm -r {SELF}/*"
    program = str(BUILD / "several/each_gpu_ends_at_its_own_limit")
    script = f"set -e; {mount}; set +e; LD_PRELOAD='{preload}' {program}; status=$?; {remove}; exit $status"
    result = subprocess.run(
        [*command, "sh", "-c", script], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr


def own_mounts() -> list[str]:
    """The command that runs another with mounts of its own; empty where this machine lets nobody have any."""
    mount_points = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    propagation = "private" if "/" in mount_points else "unchanged"
    command = ["unshare", "--mount", "--propagation", propagation]
    return [] if subprocess.run([*command, "true"], capture_output=True, check=False).returncode else command
