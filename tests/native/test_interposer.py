# SPDX-License-Identifier: Apache-2.0
"""The interposer's behaviours, one conformance program each: on the simulated driver, or on a GPU (HAMI_TEST_GPU=1)."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from conformance import BUILD, INTERPOSER, MIB, PROGRAMS, REAL_GPU, ROOT, Slice, make_slice

from hami_hpc.contract import constants as c
from hami_hpc.core.records import USAGE_FILE_SIZE

NOT_UNDER_A_PLAIN_SLICE = {
    "errors_are_the_drivers",
    "nvml_shows_the_part_of_an_instance",
    "the_edge_holds_under_threads",
    "what_fits_is_never_refused",
    "without_limits_the_gpu_stays_closed",
}
PLAIN = sorted(p.stem for p in (ROOT / "tests/native/interposer").glob("*.c") if p.stem not in NOT_UNDER_A_PLAIN_SLICE)


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path | None, str]:
    """A simulated machine with one H200 (None on a GPU node) and its GPU's UUID."""
    if REAL_GPU:
        query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        out = subprocess.run(query, capture_output=True, text=True, check=True)
        return None, out.stdout.split()[0]
    directory = tmp_path_factory.mktemp("sim")
    subprocess.run([str(BUILD / "sim/sim-machine"), str(directory), "h200"], check=True, capture_output=True)
    text = (directory / "machine.conf").read_text()
    return directory, next(word for word in text.replace("=", " ").split() if word.startswith("GPU-"))


@pytest.fixture
def slice_8g(tmp_path: Path, machine: tuple[Path | None, str]) -> Slice:
    return make_slice(tmp_path / "job", *machine, job_mib=8192)


def finished(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


def usage_numbers(made: Slice) -> dict[str, int]:
    data = (made.directory / c.FILE_USAGE).read_bytes()
    return {k: int.from_bytes(data[o : o + n], "little") for k, (o, n, _kind) in c.USAGE_FIELDS.items()}


@pytest.mark.parametrize("program", PLAIN)
def test_behaviour(program: str, slice_8g: Slice) -> None:
    finished(slice_8g.run(program))


def test_a_smaller_step_ends_at_its_own_limit(tmp_path: Path, machine: tuple[Path | None, str]) -> None:
    step = make_slice(tmp_path / "job", *machine, job_mib=8192, step_mib=2048, step_id=3)
    finished(step.run("memory_ends_at_the_limit"))


def test_two_steps_together_end_at_the_jobs_limit(tmp_path: Path, machine: tuple[Path | None, str]) -> None:
    first = make_slice(tmp_path / "job", *machine, job_mib=4096, step_mib=4096, step_id=1)
    second = make_slice(tmp_path / "job", *machine, job_mib=4096, step_mib=4096, step_id=2)
    holder = subprocess.Popen(
        [PROGRAMS / "processes_share_one_limit", "child"], env=first.environment(), stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.read(1) == b"f"  # it has filled the job
        result = second.run("memory_ends_at_the_limit")
        assert result.returncode == 1
        assert "CUDA_SUCCESS" in result.stderr  # not even a context fits
    finally:
        holder.kill()
        holder.communicate()
    finished(second.run("memory_ends_at_the_limit"))


def test_wrong_calls_get_the_drivers_own_errors(slice_8g: Slice) -> None:
    with_limits = finished(slice_8g.run("errors_are_the_drivers"))
    assert with_limits == finished(slice_8g.run("errors_are_the_drivers", preload=False))
    assert with_limits.count("\n") == 18


@pytest.mark.parametrize("damage", ["missing", "not root's", "writable", "short", "other version", "unset"])
def test_without_readable_limits_the_gpu_stays_closed(damage: str, slice_8g: Slice) -> None:
    environment = slice_8g.environment()
    record = slice_8g.limits
    if damage == "missing":
        record.unlink()
    elif damage == "not root's":
        os.chown(record, 1234, 1234)
    elif damage == "writable":
        record.chmod(0o666)
    elif damage == "short":
        record.write_bytes(record.read_bytes()[:100])
    elif damage == "other version":
        record.write_bytes(record.read_bytes()[:8] + struct.pack("<I", 99) + record.read_bytes()[12:])
    else:
        del environment[c.ENV_LIMITS]
    program = PROGRAMS / "without_limits_the_gpu_stays_closed"
    result = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("\n") == 1  # said once, in one line
    assert result.stderr.startswith("hami_hpc: ")
    assert result.stdout == ""


def test_what_a_user_writes_into_the_usage_file_harms_only_that_job(slice_8g: Slice) -> None:
    """Random content never crashes a program in the interposer; at worst the GPU stays closed or full."""
    usage = slice_8g.directory / c.FILE_USAGE
    good = usage.read_bytes()
    draw = random.Random(7)
    for _ in range(30):
        data = bytearray(good)
        for _ in range(draw.randrange(1, 200)):
            data[draw.randrange(16, USAGE_FILE_SIZE)] = draw.randrange(256)
        data[16:20] = b"\0" * 4 if draw.random() < 0.8 else data[16:20]
        usage.write_bytes(data)
        result = slice_8g.run("every_family_is_counted", timeout_s=20)
        assert result.returncode in (0, 1), result.stderr  # 1: a check of the program; never a signal


def test_killed_at_any_moment_leaves_nothing_charged(slice_8g: Slice, machine: tuple[Path | None, str]) -> None:
    """Eight processes of four threads at the edge, one killed every 50 ms: the sum stays under, nothing stays.

    HAMI_TEST_KILLS=1000 for a long run by hand.
    """
    rounds = 10 if REAL_GPU else int(os.environ.get("HAMI_TEST_KILLS", "60"))
    command = [str(PROGRAMS / "the_edge_holds_under_threads"), str(20000 + 100 * rounds)]
    workers = [subprocess.Popen(command, env=slice_8g.environment(), stderr=subprocess.PIPE) for _ in range(8)]
    try:
        time.sleep(1.0)
        for _ in range(rounds):
            time.sleep(0.05)
            assert usage_numbers(slice_8g)["peak_bytes"] <= 8192 * MIB
            victim = random.randrange(8)
            if workers[victim].poll() is None:
                workers[victim].send_signal(signal.SIGKILL)
            _, errors = workers[victim].communicate()
            assert b"not so" not in errors, errors
            workers[victim] = subprocess.Popen(command, env=slice_8g.environment(), stderr=subprocess.PIPE)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    finished(slice_8g.run("memory_ends_at_the_limit"))
    numbers = usage_numbers(slice_8g)
    assert numbers["peak_bytes"] <= 8192 * MIB
    assert numbers["oom_count"] > rounds  # it was at the edge
    assert numbers["lock"] == 0
    if machine[0]:  # by the driver's own books, too
        books = subprocess.run([BUILD / "sim/sim-state", machine[0]], check=True, capture_output=True, text=True)
        gpu = json.loads(books.stdout)["gpus"][0]
        assert gpu["peak_bytes"] <= 8192 * MIB
        assert gpu["used_bytes"] == 0
        assert gpu["processes"] == []


def test_a_job_with_more_processes_than_slots_is_told_so(slice_8g: Slice) -> None:
    """Every slot's liveness lock is held, as by so many processes."""
    with (slice_8g.directory / c.FILE_USAGE).open("r+b") as usage:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, c.SLOT_LOCK_BASE, c.USAGE_SLOT_COUNT, 0)
        fcntl.fcntl(usage, 37, lock)  # F_OFD_SETLK
        result = slice_8g.run("memory_ends_at_the_limit")
    assert result.returncode == 1
    assert "more than 2048 processes or 1024 steps of this job use the GPU at once" in result.stderr


def test_a_long_path_is_cut_and_the_line_ends(slice_8g: Slice) -> None:
    environment = slice_8g.environment() | {c.ENV_LIMITS: "/" + "x" * 3000 + "/step-0.limits"}
    program = [str(PROGRAMS / "without_limits_the_gpu_stays_closed")]
    result = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"hami_hpc: the GPU limits in .* so the GPU stays closed; .*\n", result.stderr), result.stderr


def test_it_says_nothing_on_standard_output(slice_8g: Slice) -> None:
    environment = slice_8g.environment() | {c.ENV_LOG: "2"}
    for program in ("memory_ends_at_the_limit", "nvml_shows_the_slice"):
        result = subprocess.run([PROGRAMS / program], env=environment, capture_output=True, text=True, check=True)
        assert result.stdout == ""
        assert "hami_hpc: " in result.stderr


def test_it_exports_hooks_and_nothing_else() -> None:
    out = subprocess.run(["nm", "-D", "--defined-only", INTERPOSER], capture_output=True, text=True, check=True)
    names = {line.split()[-1].split("@")[0] for line in out.stdout.splitlines()}
    own = {"dlsym", "ioctl", "hami_hint_begin", "hami_hint_end", "hami_hint_soon"}
    assert own <= names
    assert all(n in own or n.startswith(("cu", "nvml")) for n in names)
