# SPDX-License-Identifier: Apache-2.0
"""Programs with more rights than their user: preload=ldso loads the interposer into them, where it believes nobody."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance import BUILD, INTERPOSER, REAL_GPU, ROOT, make_slice

from hami_hpc.contract import constants as c

pytestmark = pytest.mark.skipif(REAL_GPU, reason="links against the simulation")
USER, OTHER = 54321, 54322
SOURCE = ROOT / "tests/native/secure/a_setuid_program_gets_no_gpu.c"


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that everybody can reach, with the libraries in it."""
    with tempfile.TemporaryDirectory(prefix="hami-secure-") as text:
        path = Path(text)
        path.chmod(0o755)
        names = ("sim/libhami-sim-kernel.so", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1")
        for library in (INTERPOSER, *(BUILD / name for name in names)):
            shutil.copy(library, path)
        yield path


def built(root: Path) -> Path:
    """The program, linked in the order in which a loader would preload: the interposer, then what is behind it."""
    include = next((ROOT / ".venv/lib").glob("python3*/site-packages/nvidia/cu13/include"))
    libraries = [
        str(root / n) for n in ("libhami-hpc.so", "libhami-sim-kernel.so", "libcuda.so.1", "libnvidia-ml.so.1")
    ]
    target = root / "program"
    command = [
        "gcc",
        "-std=gnu11",
        "-D_GNU_SOURCE",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-isystem",
        str(include),
    ]
    # An absolute path in the program itself is followed where LD_LIBRARY_PATH is not.
    link = ["-Wl,--no-as-needed", *libraries, f"-Wl,-rpath,{root}", "-o", str(target)]
    subprocess.run([*command, str(SOURCE), *link], check=True)
    return target


@pytest.mark.parametrize("kind", ["setuid", "setgid", "plain"])
def test_a_program_with_more_rights_believes_nothing_and_gets_no_gpu(kind: str, root: Path) -> None:
    machine = root / "machine"
    subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), "h200"], check=True, capture_output=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(machine)], check=True)
    uuid = re.search(r"uuid=(GPU-\S+)", (machine / "machine.conf").read_text())
    assert uuid is not None
    job = make_slice(root / "run", machine, uuid[1], job_mib=2048, cores_percent=50, uid=USER)
    os.chown(job.directory / c.FILE_USAGE, USER, USER)
    program = built(root)
    os.chown(program, 0, OTHER)
    program.chmod({"setuid": 0o4755, "setgid": 0o2755, "plain": 0o755}[kind])
    environment = job.environment(preload=False) | {c.ENV_LIMITS: str(job.limits), c.ENV_LOG: "2"}
    del environment["LD_PRELOAD"]
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", str(program)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    # Where the machine grants no rights to such programs (nosuid, no_new_privs) they are held as any other.
    granted = result.stdout.strip() == "1"
    assert not granted or kind != "plain"
    if granted:
        assert re.fullmatch(r"hami_hpc: a program with more rights than its user .*\n", result.stderr)
    else:
        assert "hami_hpc: job 4711 step 0" in result.stderr
