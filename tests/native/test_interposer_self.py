# SPDX-License-Identifier: Apache-2.0
"""preload=ldso as the interposer sees it: records bound to /run/hami-hpc/self win over what the environment says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance import BUILD, INTERPOSER, PROGRAMS, REAL_GPU, make_slice

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
    script = f"""
set -e
mount --bind {own.directory} {SELF}
mount --bind {own.limits} {SELF}/step.limits
LD_PRELOAD='{preload}' exec {PROGRAMS}/memory_ends_at_the_limit
"""
    mount_points = {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    propagation = "private" if "/" in mount_points else "unchanged"
    command = ["unshare", "--mount", "--propagation", propagation, "sh", "-c", script]
    result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
