# SPDX-License-Identifier: Apache-2.0
"""hami-hpc-measure, the tenant of `hami-hpc baseline`, under records that node/tenants.py writes; on the simulation."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from conformance import BUILD, INTERPOSER, REAL_GPU, sanitizer
from test_compute import machine, measured

from hami_hpc.core.inventory import Device
from hami_hpc.node.tenants import LOOPS, NS, MeasureError, Tenants, make_slices, measuring, tenant_environment

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU or bool(sanitizer()), reason="its preloads are those of an installed node")
PROGRAM = str(BUILD / "hami-hpc-measure")
KERNEL = str(BUILD / "sim/libhami-sim-kernel.so")


def simulated(machine: tuple[Path, str]) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(BUILD / "sim"), "HAMI_SIM": str(machine[0]), "LD_PRELOAD": KERNEL}


def rates(machine: tuple[Path, str], run_dir: Path, caps: Sequence[int], **more: str) -> list[float]:
    """Percent of the GPU that tenants with these caps had, measured at the same time."""
    run_dir.mkdir(exist_ok=True)
    device = Device(0, machine[1], "NVIDIA H200", 143155)
    with measuring(str(run_dir)) as folder:
        environments = [
            tenant_environment(simulated(machine) | more, str(INTERPOSER), machine[1], limits)
            for limits in make_slices(folder, device, caps)
        ]
        with Tenants([(PROGRAM, str(LOOPS))] * len(caps), environments) as tenants:
            deadline = time.monotonic() + 20
            tenants.wait_for("ready", deadline, lambda own: None)
            tenants.go(time.monotonic_ns() + NS // 2, NS)
            told = tenants.wait_for("kernels", deadline, lambda own: None)
    return [numbers["kernels"] * 0.1012 for numbers in told]  # 1.01 ms each


def test_tenants_have_what_their_caps_say(machine: tuple[Path, str], tmp_path: Path) -> None:
    (alone,) = measured(lambda: rates(machine, tmp_path / "run", (100,)), lambda found: 80 < found[0] < 102)
    assert alone > 0
    measured(lambda: rates(machine, tmp_path / "run", (25,)), lambda found: 21 < found[0] < 27)
    measured(
        lambda: rates(machine, tmp_path / "run", (50, 50)),
        lambda found: 85 < sum(found) < 102 and min(found) > 38,
    )
    assert not (tmp_path / "run" / "baseline").exists()


def test_nobody_else_can_write_a_tenants_records_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with measuring(str(tmp_path)) as folder:
            limits = make_slices(folder, Device(0, "GPU-1", "NVIDIA H200", 143155), (50, 50))
            paths = [Path(folder), *Path(folder).rglob("*")]
            assert not [path for path in paths if path.stat().st_mode & 0o022]
            assert [Path(path).exists() for path in limits] == [True, True]
    finally:
        os.umask(before)


def test_without_the_interposer_it_measures_too(machine: tuple[Path, str]) -> None:
    with Tenants([(PROGRAM, str(LOOPS))], [simulated(machine)]) as tenants:
        deadline = time.monotonic() + 20
        (first,) = tenants.wait_for("ready", deadline, lambda own: None)
        assert first["context_ns"] > 0
        assert first["launch_ns"] > 2000, "the simulation's kernel takes as long"
        tenants.go(time.monotonic_ns(), NS // 2)
        (told,) = tenants.wait_for("kernels", deadline, lambda own: None)
    assert told["kernels"] > 250


def test_kernels_take_as_long_as_the_clock_says(machine: tuple[Path, str], tmp_path: Path) -> None:
    path = machine[0] / "machine.conf"
    path.write_text(path.read_text().replace("clock_mhz=1980", "clock_mhz=990"))
    measured(lambda: rates(machine, tmp_path / "run", (100,)), lambda found: 40 < found[0] < 51)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ("cuInit=100", "cuInit failed (CUDA error 100)"),
        ("cuModuleLoadData=218", "cuModuleLoadData failed (CUDA error 218)"),
        ("cuLaunchKernel=700:after=300", "cuLaunchKernel failed (CUDA error 700)"),
        ("cuDevicePrimaryCtxRetain=2", "cuDevicePrimaryCtxRetain failed (CUDA error 2)"),
    ],
)
def test_what_the_driver_refuses_is_named(machine: tuple[Path, str], tmp_path: Path, faults: str, message: str) -> None:
    with pytest.raises(MeasureError) as error:
        rates(machine, tmp_path / "run", (100,), HAMI_SIM_FAULTS=faults)
    assert message in str(error.value)


def test_a_driver_that_hangs_ends_at_the_deadline(machine: tuple[Path, str]) -> None:
    environment = simulated(machine) | {"HAMI_SIM_FAULTS": "cuCtxSynchronize=0:delay_us=30000000"}
    begun = time.monotonic()
    with (
        Tenants([(PROGRAM, "1")], [environment]) as tenants,
        pytest.raises(MeasureError, match="did not answer in time"),
    ):
        tenants.wait_for("ready", time.monotonic() + 0.5, lambda own: None)
    assert time.monotonic() - begun < 5
    assert tenants.processes[0].returncode == -signal.SIGKILL


def test_it_ends_with_its_parent(machine: tuple[Path, str]) -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.argv[1], '1'], stdin=subprocess.PIPE);"
        "print(p.pid, file=sys.stderr, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, PROGRAM]
    pipe = subprocess.PIPE
    parent = subprocess.Popen(command, env=simulated(machine), stdin=pipe, stdout=pipe, stderr=pipe)
    assert parent.stdout is not None
    assert parent.stderr is not None
    pid = int(parent.stderr.readline())
    while b"ready" not in parent.stdout.readline():
        pass
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 5
    while Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_wrong_words_and_a_missing_driver_are_told() -> None:
    for words in ((), ("x",), ("0",), ("1", "2"), ("1x",)):
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.startswith("usage: hami-hpc-measure")) == (2, True)
    if shutil.which("nvidia-smi") is None:
        done = subprocess.run([PROGRAM, "1"], env={}, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "libcuda.so.1" in done.stderr


def test_the_environment_names_one_gpu_and_keeps_what_else_is_needed() -> None:
    before = {
        "CUDA_VISIBLE_DEVICES": "3",
        "HAMI_HPC_LOG": "2",
        "NVIDIA_X": "1",
        "PATH": "/bin",
        "LD_PRELOAD": "/a.so:/b.so",
    }
    after = tenant_environment(before, "/i.so", "GPU-1", "/run/1/step-0.limits")
    assert after == {
        "PATH": "/bin",
        "LD_PRELOAD": "/i.so /a.so /b.so",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_CACHE_DISABLE": "1",
        "HAMI_HPC_LIMITS": "/run/1/step-0.limits",
    }
