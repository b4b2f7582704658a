# SPDX-License-Identifier: Apache-2.0
"""What the interposer must not do to a program, and the company it must bear: other preloads, forks, old drivers."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from conformance import BUILD, INTERPOSER, PROGRAMS, REAL_GPU, ROOT, Slice, compiled, make_slice
from hook_names import hook_names
from unprivileged import make_place

from hami_hpc.contract import constants as c

SOURCES = ROOT / "native/interposer"
pytestmark = pytest.mark.skipif(REAL_GPU, reason="shown on the simulation; tests/gpu has the frameworks")


@pytest.fixture
def made(tmp_path: Path) -> Slice:
    return simulated(tmp_path)


def simulated(directory: Path) -> Slice:
    """A slice of 8 GiB of the only GPU of a simulated machine under `directory`."""
    machine = directory / "sim"
    subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), "h200"], check=True, capture_output=True)
    uuid = re.search(r"uuid=(GPU-\S+)", (machine / "machine.conf").read_text())
    assert uuid is not None
    return make_slice(directory / "job", machine, uuid[1], job_mib=8192)


def run(
    command: list[str], environment: dict[str, str], timeout_s: float = 120, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=cwd
    )


def imports() -> set[str]:
    out = subprocess.run(["nm", "-D", "--undefined-only", INTERPOSER], capture_output=True, text=True, check=True)
    return {line.split()[-1].split("@")[0] for line in out.stdout.splitlines()}


def test_it_cannot_end_the_program_print_or_take_its_signals() -> None:
    endings = {"exit", "_exit", "_Exit", "quick_exit", "abort", "raise", "kill", "__assert_fail"}
    signals = {"signal", "sigaction", "sigaltstack", "sigprocmask", "alarm", "setitimer", "timer_create"}
    prints = {"printf", "puts", "putchar", "fprintf", "fputs", "fwrite", "stdout", "perror", "syslog"}
    process = {"umask", "chdir", "setenv", "putenv", "unsetenv", "clearenv", "setlocale", "fork", "execve", "system"}
    files = {"creat", "fopen", "mkstemp", "mkdtemp", "tmpfile", "mkdir", "unlink", "rename", "shm_open"}
    exits = {"on_exit", "at_quick_exit", "__cxa_at_quick_exit", "__cxa_thread_atexit_impl"}
    found = imports()
    assert "pthread_create" in found  # nm was read
    assert not found & (endings - {"abort"} | signals | prints | process | files | exits)
    # One exception: memory that was moved to the host and cannot be brought back.
    aborts = [path.name for path in SOURCES.rglob("*.c") for _ in re.findall(r"\babort\(", path.read_text())]
    assert aborts == ["swap.c"]
    # One handler: it waits a moment for the keeper's last count, and tells it to ask libcuda nothing more.
    calls = [line for path in SOURCES.rglob("*.c") for line in path.read_text().splitlines() if "atexit(" in line]
    assert [call.strip() for call in calls] == ["atexit(at_end);"]


HAS_NO_READER = """
import ctypes, os, signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
ends = os.pipe()
os.dup2(ends[1], 2)
os.close(ends[0])
print(ctypes.CDLL("libcuda.so.1").cuInit(0), signal.sigpending())
"""


def test_a_line_of_the_log_that_nobody_reads_ends_no_program(made: Slice) -> None:
    environment = made.environment()
    del environment[c.ENV_LIMITS]  # said in one line
    result = run([sys.executable, "-I", "-c", HAS_NO_READER], environment)
    assert (result.returncode, result.stdout) == (0, "800 set()\n")


def test_it_writes_no_file_where_programs_keep_theirs() -> None:
    """As a user whom nobody else is: whatever is made belongs to that user, and there is nothing."""
    user = 54323
    with tempfile.TemporaryDirectory(prefix="hami-files-") as text:
        place = make_place(Path(text), user, 8192, 8192)
        home = place.root / "own"
        home.mkdir()
        os.chown(home, user, user)
        (home / "mine").touch()
        os.chown(home / "mine", user, user)
        for program in ("conformance/memory_ends_at_the_limit", "compute/spin_for 200 1000"):
            result = place.run(program, records=place.genuine, script=f"cd {home}; export HOME={home} TMPDIR={home}")
            assert result.returncode == 0, result.stderr
        command = ["find", "/tmp", "/var/tmp", "/dev/shm", tempfile.gettempdir(), "-xdev", "-user", str(user)]
        found = run(command, {}).stdout.split()
        own = {str(place.genuine / c.FILE_USAGE), str(home), str(home / "mine")}
        assert {path for path in found if not path.startswith(str(place.forged.parent))} == own


def test_a_setuid_program_is_left_alone(made: Slice, tmp_path: Path) -> None:
    """The loader's doing: LD_PRELOAD by path has no effect where the user changes, so nothing of ours runs there."""
    plain, other = tmp_path / "plain", tmp_path / "setuid"
    for path in (plain, other):
        shutil.copy("/bin/cat", path)
    shutil.chown(other, 65534)
    other.chmod(0o755 | stat.S_ISUID)
    for path in [tmp_path, *tmp_path.parents[:2]]:
        path.chmod(path.stat().st_mode | 0o011)
    environment = made.environment()
    assert "libhami-hpc" in run([str(plain), "/proc/self/maps"], environment).stdout
    maps = run([str(other), "/proc/self/maps"], environment).stdout
    assert "libc.so" in maps
    changes_user = "\t65534\t" in run([str(other), "/proc/self/status"], environment).stdout  # not with nosuid
    assert ("libhami-hpc" in maps) != changes_user


SEES_THE_LIMIT = """
import ctypes, multiprocessing as mp, sys

def check(limit, results=None):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    address = ctypes.c_uint64()
    calls = [
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
        cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 30)),
        cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(limit)),
    ]
    seen = (calls, total.value)
    if results is not None:
        results.put(seen)
    return seen

if __name__ == "__main__":
    method, limit, touch = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "used"
    wanted = ([0, 0, 0, 0, 0, 2], limit)
    if touch:
        assert check(limit) == wanted, check(limit)
    context = mp.get_context(method)
    results = context.Queue()
    workers = [context.Process(target=check, args=(limit, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    seen = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert seen == [wanted] * 3, seen
"""


@pytest.mark.parametrize(("method", "parent"), [("fork", "unused"), ("spawn", "unused"), ("spawn", "used")])
def test_pythons_multiprocessing_works(method: str, parent: str, made: Slice, tmp_path: Path) -> None:
    script = tmp_path / "workers.py"
    script.write_text(SEES_THE_LIMIT)
    command = [sys.executable, "-I", str(script), method, str(made.limit_mib << 20), parent]
    result = run(command, made.environment())
    assert result.returncode == 0, result.stderr


ANOTHER_TOOL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>
int cuMemGetInfo_v2(size_t *left, size_t *total);
int cuMemGetInfo_v2(size_t *left, size_t *total)
{
	int (*next)(size_t *, size_t *) = (int (*)(size_t *, size_t *))dlsym(RTLD_NEXT, "cuMemGetInfo_v2");
	if (write(2, "tool\\n", 5) != 5)
		return 1;
	return next ? next(left, total) : 999;
}
"""


@pytest.mark.parametrize("order", ["before", "after"])
def test_another_preloaded_tool_finds_the_hooks_by_rtld_next(order: str, made: Slice, tmp_path: Path) -> None:
    tool = compiled(ANOTHER_TOOL, tmp_path / "libtool.so")
    environment = made.environment()
    ours = environment["LD_PRELOAD"].split()
    environment["LD_PRELOAD"] = " ".join([str(tool), *ours] if order == "before" else [ours[0], str(tool), *ours[1:]])
    result = run([str(PROGRAMS / "memory_ends_at_the_limit")], environment)
    assert result.returncode == 0, result.stderr
    assert ("tool" in result.stderr) == (order == "before")  # behind us it is passed by, as is any symbol behind


def test_what_the_driver_does_not_know_stays_unknown(made: Slice) -> None:
    """A hook is never given for a function that cuGetProcAddress of this driver does not have."""
    script = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
found, status = ctypes.c_void_p(1), ctypes.c_int()
assert cuda.cuInit(0) == 0
for name in (b"cuLaunchKernelEx", b"cuMemAllocManaged", b"cuMemPoolCreate"):
    rc = cuda.cuGetProcAddress_v2(name, ctypes.byref(found), 13000, ctypes.c_uint64(0), ctypes.byref(status))
    print(name.decode(), rc, bool(found.value), status.value)
"""
    faults = "missing=cuLaunchKernelEx;missing=cuMemPoolCreate"
    answers = {}
    for preload in (True, False):
        environment = made.environment(preload=preload) | {"HAMI_SIM_FAULTS": faults}
        result = run([sys.executable, "-I", "-c", script], environment)
        assert result.returncode == 0, result.stderr
        answers[preload] = result.stdout
    assert answers[True] == answers[False]
    assert "cuLaunchKernelEx 0 False 1" in answers[True] or "cuLaunchKernelEx 500 False" in answers[True]
    assert "cuMemAllocManaged 0 True 0" in answers[True]


EVERY_HOOK = """
import ctypes, sys
ours = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    room = [ctypes.byref(ctypes.create_string_buffer(4096)) for _ in range(11)]
    print(name, getattr(ours, name)(*room), flush=True)
"""


def hooks() -> list[str]:
    return hook_names("CUDA")


@pytest.mark.parametrize("driver", ["empty", "without libcuda"])
def test_a_driver_that_lacks_everything_gets_errors_and_no_crash(driver: str, made: Slice, tmp_path: Path) -> None:
    libraries = tmp_path / "lib"
    libraries.mkdir()
    if driver == "empty":
        compiled("int nothing; ", libraries / "libcuda.so.1", "-Wl,-soname,libcuda.so.1")
    environment = made.environment() | {"LD_LIBRARY_PATH": str(libraries)}
    result = run([sys.executable, "-I", "-c", EVERY_HOOK, str(INTERPOSER), *hooks()], environment)
    assert result.returncode == 0, result.stdout + result.stderr
    answers = dict(line.split() for line in result.stdout.splitlines())
    assert sorted(answers) == sorted(hooks())
    assert set(answers.values()) <= {"800", "801"}, answers  # not permitted, not supported


def test_it_asks_nothing_of_the_environment_but_what_the_contract_names() -> None:
    """Besides whether there is an MPS server. None of these changes a limit: the limits are in root's file."""
    sources = "".join(path.read_text() for path in (ROOT / "native/interposer").rglob("*.c"))
    asked = set(re.findall(r"getenv\(([^)]*)\)", sources))
    names = {f"HAMI_ENV_{name}" for name in ("ANNOUNCE", "CHECKSUMS", "LIMITS", "LOG", "SWAP_DIR")}
    assert asked == names | {'"CUDA_MPS_PIPE_DIRECTORY"'}
    assert all(getattr(c, name.removeprefix("HAMI_")).startswith("HAMI_HPC_") for name in names)


def test_the_simulated_kernel_leaves_a_forked_child_its_standard_input() -> None:
    environment = {"PATH": "/usr/bin:/bin", "LD_PRELOAD": str(BUILD / "sim/libhami-sim-kernel.so")}
    forked = "import os, sys; child = os.fork(); child or print(sys.stdin.read()); child and os.wait()"
    done = subprocess.run([sys.executable, "-c", forked], env=environment, input="kept", capture_output=True, text=True)
    assert done.stdout == "kept\n", done.stderr
