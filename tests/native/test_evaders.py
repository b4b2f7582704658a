# SPDX-License-Identifier: Apache-2.0
"""Programs that take more of the GPU than their job has, in spite of the interposer, and what NVML shows of them.

Each program of evaders/ says how it does so. That they succeed is what the agent (docs/security.md) is for: it sees
from outside what these tests see by NVML. `honest` is the control: whatever it does, NVML never shows more for its
processes than its job has, nor more than the job's usage record accounts for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conformance import BUILD, INTERPOSER, MIB, REAL_GPU, Slice, make_slice, sanitizer

from hami_hpc.contract import constants as c

pytestmark = pytest.mark.skipif(REAL_GPU or bool(sanitizer()), reason="simulated kernels; not built with sanitizers")
EVADERS = BUILD / "evaders"
WATCH = Path(__file__).with_name("watch_account.py")
# Those whose work the interposer does not see, and whether it is loaded in them all the same.
OUTSIDE = {"static": False, "own_loader": False, "raw": True, "preloaded_first": True, "dlmopen": True}
LIMIT_MIB, WANTED_MIB, CONTEXT_MIB, SHARE = 1024, 4096, 512, 20

# Prints what NVML lists on the first GPU, and of each process the time that it had the GPU in the seconds named by the
# argument, in percent.
LISTING = """
import json, sys, time, pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
begin = int(time.time() * 1e6)
time.sleep(float(sys.argv[1]))
held = {p.pid: p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(d)}
try:
    used = {s.pid: s.smUtil for s in n.nvmlDeviceGetProcessUtilization(d, begin)}
except n.NVMLError_NotFound:
    used = {}  # nobody ran
print(json.dumps([held, used]))
"""


@pytest.fixture
def job(tmp_path: Path) -> Slice:
    """A job of 1 GiB and a fifth of the time, capped, alone on a simulated machine."""
    return make_job(tmp_path, LIMIT_MIB, SHARE)


def make_job(directory: Path, mib: int, cores_percent: int) -> Slice:
    machine = directory / "sim"
    subprocess.run([str(BUILD / "sim/sim-machine"), str(machine), "h200"], check=True, capture_output=True)
    uuid = re.search(r"uuid=(GPU-\S+)", (machine / "machine.conf").read_text())
    assert uuid is not None
    return make_slice(directory / "job", machine, uuid[1], job_mib=mib, cores_percent=cores_percent)


def outside_python(job: Slice, *command: object) -> Any:
    """What a Python program prints as JSON that sees the same GPU from outside of the job."""
    env = {name: value for name, value in job.environment(preload=False).items() if name != "LD_PRELOAD"}
    words = [sys.executable, *map(str, command)]
    run = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def accounted(job: Slice) -> int:
    offset, size, _kind = c.USAGE_FIELDS["used_bytes"]
    return int.from_bytes((job.directory / c.FILE_USAGE).read_bytes()[offset : offset + size], "little")


def processes_with_a_slot(job: Slice) -> set[int]:
    """The processes that the interposer put into the job's usage record."""
    data = (job.directory / c.FILE_USAGE).read_bytes()
    slots_at = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT
    offset, size, _kind = c.USAGE_SLOT_FIELDS["pid"]
    at = range(slots_at + offset, len(data), c.USAGE_SLOT_SIZE)
    return {int.from_bytes(data[i : i + size], "little") for i in at} - {0}


@contextmanager
def running(job: Slice, program: str, mib: int, percent: int = 100) -> Iterator[subprocess.Popen[str]]:
    """The program, holding what it wants."""
    if not (EVADERS / program).exists() and program == "static":
        pytest.skip("no static libc on this machine")
    process = subprocess.Popen(
        [str(EVADERS / program), str(mib), "300", str(percent)],
        env=job.environment() | {"TMPDIR": str(job.directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line != f"holds {mib} MiB, outside of the interposer\n":
            process.kill()
            pytest.fail(process.communicate()[1])
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("program", [*OUTSIDE, "edited_counters"])
def test_an_evader_holds_what_its_job_has_not_and_nvml_shows_it(program: str, job: Slice) -> None:
    with running(job, program, WANTED_MIB) as process:
        held, _ = outside_python(job, "-c", LISTING, 0)
        assert held == {str(process.pid): (WANTED_MIB + CONTEXT_MIB) * MIB}
        assert accounted(job) <= LIMIT_MIB * MIB


def time_used(job: Slice, process: subprocess.Popen[str], least: int, most: int) -> bool:
    """Whether NVML shows between `least` and `most` percent in 2 s, once in three times: the machine may be busy."""
    for _ in range(3):
        _, used = outside_python(job, "-c", LISTING, 2)
        assert set(used) <= {str(process.pid)}
        if least <= used.get(str(process.pid), 0) <= most:
            return True
    return False


@pytest.mark.parametrize("program", [*OUTSIDE, "edited_counters"])
def test_who_has_the_interposer_loaded_may_still_be_outside_of_it(program: str, job: Slice) -> None:
    """Whether it is mapped tells two of them; that the process has no slot in the record tells all but the last."""
    with running(job, program, 64) as process:
        mapped = INTERPOSER.name in Path(f"/proc/{process.pid}/maps").read_text()
        assert mapped == OUTSIDE.get(program, True)
        assert processes_with_a_slot(job) == (set() if program in OUTSIDE else {process.pid})


@pytest.mark.parametrize("program", OUTSIDE)
def test_an_evader_has_more_time_than_its_job_and_nvml_shows_it(program: str, job: Slice) -> None:
    """Of the GPU's time it takes what it wants, here all; the capped share is a fifth."""
    with running(job, program, 64) as process:
        assert time_used(job, process, 2 * SHARE, 100)


def test_an_evader_can_be_modest(job: Slice) -> None:
    with running(job, "raw", 64, percent=10) as process:
        assert time_used(job, process, 1, 15)


def test_edited_counters_buy_memory_and_no_time(job: Slice) -> None:
    with running(job, "edited_counters", WANTED_MIB) as process:
        assert time_used(job, process, 0, 2 * SHARE - 1)


def test_the_watch_sees_what_an_evader_holds_beyond_its_account(job: Slice) -> None:
    with running(job, "raw", WANTED_MIB):
        seen = outside_python(job, WATCH, job.directory / c.FILE_USAGE, 0.5)
    assert seen["above"] == seen["samples"] > 0
    assert seen["excess"] == seen["bracketed"] == (WANTED_MIB + CONTEXT_MIB) * MIB


def test_the_loaders_copy_reads_no_list_of_preloads_and_does_not_stay(job: Slice) -> None:
    with running(job, "own_loader", 64) as process:
        assert not list(job.directory.glob("loader.*"))
        loader = Path(f"/proc/{process.pid}/exe").read_bytes()
        assert b"/etc/ld.so.cache" in loader
        assert b"/etc/ld.so.preload" not in loader


@contextmanager
def honest(job: Slice) -> Iterator[subprocess.Popen[str]]:
    """The program and all that it forks, as a process group of their own, which is killed at the end."""
    process = subprocess.Popen(
        [str(EVADERS / "honest"), str(job.limit_mib), "600"],
        env=job.environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
        if process.poll() is not None:
            pytest.fail(process.communicate()[1])
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("how", ["running", "stopped"])
def test_an_honest_job_never_holds_more_than_is_accounted_for(how: str, tmp_path: Path) -> None:
    """The job's limit is exactly what the program wants at most, so the dead must be found at once.

    While it runs the record is read a moment after NVML, and the job may have freed memory in between: at one moment,
    all of its processes stopped, there is no such time.
    """
    job = make_job(tmp_path, WANTED_MIB, 100)
    with honest(job) as process:
        group = [process.pid] if how == "stopped" else []
        seen = outside_python(job, WATCH, job.directory / c.FILE_USAGE, 6, *group)
    assert seen["samples"] >= 20
    assert WANTED_MIB // 2 * MIB <= seen["peak"] <= WANTED_MIB * MIB  # it was watched at work
    if how == "stopped":
        assert seen["excess"] <= 0
    else:
        assert seen["above"] < 0.05 * seen["samples"]
    state = subprocess.run([BUILD / "sim/sim-state", job.machine], check=True, capture_output=True, text=True)  # type: ignore[list-item]
    (gpu,) = json.loads(state.stdout)["gpus"]
    assert gpu["peak_bytes"] <= WANTED_MIB * MIB
    assert gpu["used_bytes"] == 0
    assert gpu["reclaimed_processes"] > 10
