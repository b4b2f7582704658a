# SPDX-License-Identifier: Apache-2.0
"""Programs that begin, end, or have no context, at odd moments of a move of their memory, on the simulation."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from conformance import REAL_GPU, sanitizer
from swapped import STACK_MIB, Program, Swapped
from test_compute import machine
from test_swap import HOLDER, START, Machine, has_state, used_mib

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = [
    pytest.mark.skipif(REAL_GPU, reason="on a real GPU: tests/gpu/test_swapped.py"),
]

# Holds some GiB, and has a kernel of MS at its end.
ENDS = (
    START
    + """
module, kernel = P(), P()
ok(cu.cuModuleLoadData(ctypes.byref(module), b"sim"))
ok(cu.cuModuleGetFunction(ctypes.byref(kernel), module, b"sim_spin_ns"))
held = [alloc(256) for _ in range(5)]
def spin(ms):
    ns = U64(ms * 1000000)
    params = (P * 1)(ctypes.cast(ctypes.byref(ns), P))
    ok(cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, params, None))
spin(1)
print("ready")
sys.stdin.readline()
spin(int(sys.argv[1]))
print("spun")
sys.stdin.readline()
"""
)
IDLE = """
print("ready")
sys.stdin.readline()
print("on")
sys.stdin.readline()
"""
DESTROYED = START + "a = alloc(64); ok(cu.cuCtxDestroy_v2(ctx))" + IDLE
REFUSED = START.replace(
    "ok(cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0))", "assert cu.cuCtxCreate_v2(ctypes.byref(ctx), 0, 0)"
)
EXIT_HANDLER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static int (*alloc)(unsigned long long *, size_t);
static void late(void)
{
	unsigned long long a;
	printf("late %s\n", alloc(&a, 512u << 20) ? "refused" : "given");
	fflush(stdout);
}
int main(void)
{
	char line[9];
	void *ctx, *cu = dlopen("libcuda.so.1", RTLD_NOW);
	unsigned long long a;
	atexit(late);
	alloc = (int (*)(unsigned long long *, size_t))dlsym(cu, "cuMemAlloc_v2");
	if (((int (*)(unsigned))dlsym(cu, "cuInit"))(0) ||
		((int (*)(void **, unsigned, int))dlsym(cu, "cuCtxCreate_v2"))(&ctx, 0, 0) || alloc(&a, 64 << 20))
		return 1;
	printf("ready\n");
	fflush(stdout);
	return fgets(line, sizeof line, stdin) ? 0 : 2;
}
"""
# A thread that is cancelled in a copy.
CANCELLED = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *ctx, *cu;
static unsigned long long a;
static void *copy(void *kind)
{
	((int (*)(void *))dlsym(cu, "cuCtxSetCurrent"))(ctx);
	pthread_setcanceltype(kind ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, NULL);
	((int (*)(unsigned long long, const void *, size_t))dlsym(cu, "cuMemcpyHtoD_v2"))(a, "same", 4);
	return "came back";
}
int main(int argc, char **argv)
{
	char line[9];
	void *end;
	pthread_t thread;
	cu = dlopen("libcuda.so.1", RTLD_NOW);
	if (((int (*)(unsigned))dlsym(cu, "cuInit"))(0) ||
		((int (*)(void **, unsigned, int))dlsym(cu, "cuCtxCreate_v2"))(&ctx, 0, 0) ||
		((int (*)(unsigned long long *, size_t))dlsym(cu, "cuMemAlloc_v2"))(&a, 64 << 20) ||
		pthread_create(&thread, NULL, copy, argc > 1 ? argv[1] : NULL))
		return 1;
	usleep(300000);
	if (pthread_cancel(thread) || pthread_join(thread, &end))
		return 1;
	printf("%s\n", end == PTHREAD_CANCELED ? "ready" : (char *)end);
	fflush(stdout);
	return fgets(line, sizeof line, stdin) ? 0 : 2;
}
"""


# An exit handler, which runs after the interposer's, compares what is on the GPU.
COMPARES = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
enum { MIB = 256 };
static int (*copy)(void *, unsigned long long, size_t);
static unsigned long long a;
static char row[1 << 20];
static void late(void)
{
	for (size_t i = 0; i < MIB; i++) {
		if (copy(row, a + (i << 20), sizeof row) || row[0] != 7 || row[sizeof row - 1] != 7) {
			printf("MiB %zu differs\n", i);
			fflush(stdout);
			_Exit(3);
		}
	}
	printf("same\n");
	fflush(stdout);
}
int main(void)
{
	char line[9];
	void *ctx, *cu = dlopen("libcuda.so.1", RTLD_NOW);
	atexit(late);
	copy = (int (*)(void *, unsigned long long, size_t))dlsym(cu, "cuMemcpyDtoH_v2");
	if (((int (*)(unsigned))dlsym(cu, "cuInit"))(0) ||
		((int (*)(void **, unsigned, int))dlsym(cu, "cuCtxCreate_v2"))(&ctx, 0, 0) ||
		((int (*)(unsigned long long *, size_t))dlsym(cu, "cuMemAlloc_v2"))(&a, (size_t)MIB << 20) ||
		((int (*)(unsigned long long, unsigned char, size_t))dlsym(cu, "cuMemsetD8_v2"))(a, 7, (size_t)MIB << 20))
		return 1;
	printf("ready\n");
	fflush(stdout);
	return fgets(line, sizeof line, stdin) ? 0 : 2;
}
"""


@pytest.mark.parametrize(("function", "state"), [("cuMemcpyDtoHAsync", "leaving"), ("cuMemcpyHtoDAsync", "returning")])
def test_an_exit_handler_finds_memory_that_was_on_its_way(
    function: str, state: str, tmp_path: Path, machine: Machine
) -> None:
    """A move that takes longer than an exit waits for anything else."""
    (tmp_path / "compares.c").write_text(COMPARES)
    subprocess.run(["cc", "-o", tmp_path / "compares", tmp_path / "compares.c", "-ldl"], check=True)
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra["HAMI_SIM_FAULTS"] = f"{function}=0:delay_us=400000"
    with Program([str(tmp_path / "compares")], job.made.environment()) as program:
        if state == "returning":
            assert job.move(out=True)[1] == "host"
        job.order(c.SWAP_OUT if state == "leaving" else c.SWAP_IN)
        has_state(job, state)
        time.sleep(0.2)
        assert program.ask() == "same"
        program.end()


@pytest.mark.parametrize("late_s", [0.0, 0.1, 0.5, 1.05])
def test_a_program_may_end_in_the_middle_of_a_move_out(late_s: float, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(ENDS, "1000") as program:
        assert program.ask() == "spun"
        job.order(c.SWAP_OUT)
        time.sleep(late_s)
        program.end()
    assert used_mib(machine) == 0


@pytest.mark.parametrize("late_s", [0.0, 0.02, 0.1])
def test_a_program_may_end_in_the_middle_of_a_move_in(late_s: float, tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(ENDS, "1") as program:
        assert program.ask() == "spun"
        assert job.move(out=True)[1] == "host"
        job.order(c.SWAP_IN)
        time.sleep(late_s)
        program.end()
    assert used_mib(machine) == 0


def test_a_program_that_was_killed_while_away_leaves_nothing_to_the_next(tmp_path: Path, machine: Machine) -> None:
    job = Swapped.make(tmp_path / "job", *machine)
    with job.start(HOLDER, "256") as program:
        assert job.move(out=True)[1] == "host"
        program.process.kill()
        program.process.wait(10)
    job.order(c.SWAP_IN)
    with job.start(HOLDER, "256") as program:
        time.sleep(0.5)
        slot = job.slot()
        assert (slot["swap_state"], slot["swapped_bytes"]) == (c.SWAP_STATES["gpu"], 0)
        assert program.ask() == "freed"
        program.end()


@pytest.mark.parametrize("code", [DESTROYED, REFUSED + IDLE])
def test_a_program_without_a_context_is_in_nobodys_way(code: str, tmp_path: Path, machine: Machine) -> None:
    """Its context was destroyed, or the limit left no room for it."""
    job = Swapped.make(tmp_path / "job", *machine, mib=120_000 if code == DESTROYED else 64)
    with job.start(code) as program:
        assert job.move(out=True, patience_s=3)[1] == "host"
        assert job.move(out=False, patience_s=3)[1] == "gpu"
        assert program.ask() == "on"
        program.end()


def test_an_exit_handler_gets_no_memory_while_the_job_is_away(tmp_path: Path, machine: Machine) -> None:
    (tmp_path / "late.c").write_text(EXIT_HANDLER)
    subprocess.run(["cc", "-o", tmp_path / "late", tmp_path / "late.c", "-ldl"], check=True)
    job = Swapped.make(tmp_path / "job", *machine)
    with Program([str(tmp_path / "late")], job.made.environment()) as program:
        assert job.move(out=True)[1] == "host"
        assert program.ask() == "late refused"
        program.end()
    job.order(c.SWAP_IN)
    with Program([str(tmp_path / "late")], job.made.environment()) as program:
        assert program.ask() == "late given"
        program.end()


@pytest.mark.skipif(bool(sanitizer()), reason="sanitizers do not know cancelled threads")
@pytest.mark.parametrize("kind", [[], ["asynchronous"]])
def test_a_thread_that_was_cancelled_in_a_copy_keeps_no_memory_from_moving(
    kind: list[str], tmp_path: Path, machine: Machine
) -> None:
    (tmp_path / "cancelled.c").write_text(CANCELLED)
    subprocess.run(["cc", "-pthread", "-o", tmp_path / "cancelled", tmp_path / "cancelled.c", "-ldl"], check=True)
    job = Swapped.make(tmp_path / "job", *machine)
    job.made.extra["HAMI_SIM_FAULTS"] = "cuMemcpyHtoD=0:delay_us=10000000:times=1"
    with Program([str(tmp_path / "cancelled"), *kind], job.made.environment()) as program:
        assert job.move(out=True, patience_s=5)[1] == "host"
        assert job.slot()["swapped_bytes"] >> 20 == STACK_MIB + 64
        assert job.move(out=False)[1] == "gpu"
        program.tell()
        program.end()
