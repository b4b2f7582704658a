# SPDX-License-Identifier: Apache-2.0
"""Jobs on a real GPU for benchmarks: each a program of work.cu, or a script, with the terms of a slice or without.

REPEATS (3) is how often a figure is measured, SECONDS (3) how long a job works. HAMI_BENCH_WORK is work.cu's program,
where it is built already. HAMI_CORE=/path/to/libvgpu.so is for tenants under HAMi-core.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native")]

from conformance import Slice, make_slice  # noqa: E402

from hami_hpc.contract import constants as c  # noqa: E402
from hami_hpc.core.grant import Grant  # noqa: E402
from hami_hpc.core.turns import make_turns  # noqa: E402

REPEATS = int(os.environ.get("REPEATS", "3"))
SECONDS = float(os.environ.get("SECONDS", "3"))
FOLDER = Path(tempfile.mkdtemp(prefix="hami-bench-"))
WORK = Path(os.environ.get("HAMI_BENCH_WORK", str(FOLDER / "work")))
HAMI_CORE = os.environ.get("HAMI_CORE", "")
GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "0")  # one, by its number
UUID = subprocess.run(
    ["nvidia-smi", "-i", GPU, "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, check=True
).stdout.split()[0]
GRANT = Grant(0, 0, UUID, 0, 0, "", 0, 1, "std", "cap", "share", 1)
Numbers = dict[str, float]
serial = 0
loops = 0.0


@dataclass(frozen=True)
class Tenant:
    """One job: its work, and its terms; without cores it runs natively. Policy "HAMi-core": under that instead."""

    work: tuple[str, ...]
    cores: int = 0
    policy: str = "cap"
    fields: dict[str, int] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        if not self.cores:
            return dict(os.environ)
        if self.policy == "HAMi-core":
            return hami_core(self.cores)
        return self.slice().environment()

    def slice(self) -> Slice:
        """Makes a job with these terms."""
        global serial
        serial += 1
        made = make_slice(
            FOLDER / f"job{serial}",
            None,
            UUID,
            job_mib=12000,
            cores_percent=self.cores,
            policy=self.policy,
            fields=self.fields,
        )
        made.extra[c.ENV_ANNOUNCE] = os.environ.get(c.ENV_ANNOUNCE, "")
        return made

    def start(
        self, *more: str, seconds: float = SECONDS, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Starts it; `environment`: of a slice that it has already."""
        program = self.work[0]
        if program.endswith(".py"):
            command = [shutil.which("python3") or "python3", str(ROOT / "tests/gpu" / program), *self.work[1:], *more]
        else:
            command = work_command(program, seconds, *self.work[1:], *more)
        environment = self.environment() if environment is None else environment
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def work_command(program: str, seconds: float, *more: str) -> list[str]:
    return [str(WORK), program, str(seconds), str(loops), *more]


def prepare() -> None:
    """Builds work.cu where it is not built, and measures how long its kernels' loops take here."""
    global loops
    if not WORK.exists():
        build = ["nvcc", "-O2", "-std=c++17", "-rdc=true", "-arch=native", str(ROOT / "tests/gpu/work.cu")]
        subprocess.run([*build, "-o", str(WORK), "-lcuda", "-lcudadevrt"], check=True)
    loops = answer(subprocess.Popen([str(WORK), "calibrate"], stdout=subprocess.PIPE, text=True))["loops_per_us"]


def hami_core(cores: int) -> dict[str, str]:
    """Returns the environment that HAMi's device plugin gives a container with such a slice."""
    global serial
    serial += 1
    return os.environ | {
        "LD_PRELOAD": HAMI_CORE,
        "CUDA_DEVICE_MEMORY_LIMIT": "12000m",
        "CUDA_DEVICE_SM_LIMIT": str(cores),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(FOLDER / f"region{serial}"),
        "GPU_CORE_UTILIZATION_POLICY": "FORCE",
        "LIBCUDA_LOG_LEVEL": "0",
    }


def answer(process: subprocess.Popen[str]) -> Numbers:
    out, _ = process.communicate(timeout=180)
    if process.returncode:
        raise SystemExit(f"{process.args!r} ended with {process.returncode}")
    numbers: Numbers = json.loads(out)
    return numbers


def grants_of(tenants: Sequence[Tenant]) -> list[Grant]:
    """The tenants' grants on one GPU, whose job ids are 0, 1, ..."""
    return [
        GRANT._replace(job_id=number, cores_percent=t.cores, policy=t.policy)._replace(
            latency=t.fields.get("latency", 0),
            floor_percent=t.fields.get("floor_percent", 0),
            slo_us=t.fields.get("slo_us", 0),
        )
        for number, t in enumerate(tenants)
    ]


def told(tenants: Sequence[Tenant]) -> list[Tenant]:
    """The tenants with what root writes into their records of the others on the GPU; native ones as they are."""
    if not all(tenant.cores and tenant.policy != "HAMi-core" for tenant in tenants):
        return list(tenants)
    turns = make_turns(grants_of(tenants))
    return [replace(t, fields=t.fields | turns[number]._asdict()) for number, t in enumerate(tenants)]


def alone(tenant: Tenant) -> Numbers:
    return answer(tenant.start())


def rate(tenant: Tenant) -> float:
    return alone(tenant)["rate"]


def together(tenants: Sequence[Tenant], *more: str) -> list[Numbers]:
    begin = time.time() + 2.0 + 0.5 * len(tenants)  # contexts are made one after the other
    running = [t.start(f"begin={begin:.3f}", *more) for t in told(tenants)]
    return [answer(p) for p in running]


KERNELS = ("kernels",)
LIGHT = ("requests", "us=13", "every=1000")
LC_A = ("requests", "us=100", "every=4000", f"copy={1 << 20}")
LC_B = ("requests", "us=100", "count=20", "every=20000")
LC = {"latency": 1, "floor_percent": 5}


def beside(request: Tenant, others: Sequence[Tenant]) -> tuple[Numbers, list[Numbers]]:
    """One tenant of requests beside others that want everything."""
    begin = time.time() + 1.5 + 0.5 * len(others)
    request, *others = told([request, *others])
    long = [t.start(f"begin={begin:.3f}", seconds=SECONDS + 1) for t in others]
    time.sleep(begin - time.time())
    mine = answer(request.start(seconds=SECONDS))
    return mine, [answer(p) for p in long]


def median(of: Callable[[], float]) -> float:
    return statistics.median(of() for _ in range(REPEATS))


def row(*cells: object) -> None:
    print("| " + " | ".join(f"{x:.2f}" if isinstance(x, float) else str(x) for x in cells) + " |", flush=True)
