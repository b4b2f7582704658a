# SPDX-License-Identifier: Apache-2.0
"""The keeper under drivers that refuse, programs that are odd, and users who write into their own records.

Shares are measured again when they miss their bounds, as in test_compute.py; what must not happen is not measured.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, compiled, put
from harness.mounting import can_mount
from test_compute import END, OPEN, SPIN, machine, measured, run, run_within, shares, slice_of, start

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these faults exist on the simulation only")
KIND = str(BUILD / "compute/work_of_a_kind")
Machine = tuple[Path, str]


def test_a_resume_that_fails_once_is_tried_again(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 30, "cap")
    run_within(15, 45, made, SPIN, 800, 1000, faults="rm_2080110b=0x1b:after=1:times=1")


def test_a_channel_that_has_just_gone_is_no_refusal(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 30, "cap")
    result = run_within(20, 40, made, SPIN, 1200, 1000, faults="rm_2080110b=0x21:times=20")
    assert "refuses" not in result.stderr
    result = run(made, SPIN, 300, 1000, faults="rm_a06c0103=0x33:after=1:times=1")
    assert "refuses" not in result.stderr


def test_the_cap_holds_while_libcuda_does_not_answer(tmp_path: Path, machine: Machine) -> None:
    """As when a launch waits for room in the queue, behind a long kernel, with its context's lock."""
    made = slice_of(tmp_path, machine, 25, "cap")
    run_within(15, 35, made, SPIN, 1500, 1000, faults="cuCtxRecordEvent=0:delay_us=1000000")


def test_a_program_ends_while_libcuda_does_not_answer_the_keeper(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 25, "cap")
    begin = time.monotonic()
    run(made, END, "exit", faults="cuCtxRecordEvent=0:delay_us=30000000")
    assert time.monotonic() - begin < 15


def test_contexts_come_and_go_while_libcuda_does_not_answer_about_another(tmp_path: Path, machine: Machine) -> None:
    """They waited for the answer: a launch that waits behind a long kernel held up whoever made a context."""
    made, program = slice_of(tmp_path, machine, 90, "cap"), BUILD / "compute/contexts_beside_a_slow_answer"
    fault = "cuCtxRecordEvent=0:delay_us=3000000:times=1"
    measured(lambda: shares(run(made, program, faults=fault))[0], lambda longest_ms: longest_ms < 1500)


@pytest.mark.parametrize("fault", ["cuCtxRecordEvent=999", "cuEventCreate=2", "missing=cuCtxRecordEvent"])
def test_where_libcuda_cannot_say_the_cap_holds(fault: str, tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 25, "cap")
    program = [SPIN, 1500, 1000] if fault != "cuEventCreate=2" else [KIND, "kernel", 1500, 0]
    run_within(15, 35, made, *program, faults=fault)


@pytest.mark.parametrize("control", ["20801238", "90cd0101", "90cd0104"])
def test_without_switch_events_the_cap_holds_and_one_line_says_so(
    control: str, tmp_path: Path, machine: Machine
) -> None:
    made = slice_of(tmp_path, machine, 25, "cap")
    result = run_within(15, 35, made, SPIN, 2500, 1000, faults=f"rm_{control}=0x1b")
    assert result.stderr.count("does not tell") <= 1


def test_the_cap_holds_in_a_pid_namespace(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 25, "cap")
    if can_mount():
        run_within(15, 35, made, "unshare", "--pid", "--fork", SPIN, 1200, 1000)
        return
    # Without CAP_SYS_ADMIN it takes a user namespace, where root's records are not trusted.
    command = ["unshare", "--user", "--map-current-user", "--pid", "--fork", SPIN, "1200", "1000"]
    result = subprocess.run(command, env=made.environment(), capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode != 0
    assert "the record is not root's own" in result.stderr


NO_THREAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	int state = 0;
	if (attributes && !pthread_attr_getdetachstate(attributes, &state) && state == PTHREAD_CREATE_DETACHED)
		return EAGAIN;
	int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
	return real(thread, attributes, run, argument);
}
"""


def test_where_no_thread_can_be_had_launches_are_gated(tmp_path: Path, machine: Machine) -> None:
    library = tmp_path / "libnothread.so"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=NO_THREAD, text=True, check=True)
    made = slice_of(tmp_path, machine, 30, "cap")
    made.extra["LD_PRELOAD"] = f"{made.environment()['LD_PRELOAD']} {library}"
    result = run_within(15, 45, made, SPIN, 1500, 1000)
    assert result.stderr.count("launches are gated instead") == 1


@pytest.mark.parametrize("thread_local_bytes", [(1 << 20) - 12000, 16 << 20])
def test_a_program_with_large_thread_local_variables_has_its_share(
    thread_local_bytes: int, tmp_path: Path, machine: Machine
) -> None:
    """As Fortran's threadprivate arrays: the C library takes them from each thread's stack."""
    library = compiled(f"__thread char large[{thread_local_bytes}];", tmp_path / "liblarge.so")
    made = slice_of(tmp_path, machine, 30, "cap")
    made.extra["LD_PRELOAD"] = f"{made.environment()['LD_PRELOAD']} {library}"
    result = run_within(15, 45, made, SPIN, 1500, 1000)
    assert "gated" not in result.stderr


CLOSES_LIBCUDA = """
import _ctypes, ctypes, time
for _ in range(2):
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    while _ctypes.dlclose(cuda._handle) == 0 and "libcuda" in open("/proc/self/maps").read() and _ < 1:
        break
    time.sleep(0.4)
"""


def test_a_program_may_close_libcuda(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 30, "cap")
    run(made, sys.executable, "-I", "-c", CLOSES_LIBCUDA)


@pytest.mark.parametrize("program", ["forks_beside_the_keeper", "contexts_under_threads", "captures_are_never_spoilt"])
def test_odd_programs_run_as_without_a_cap(program: str, tmp_path: Path, machine: Machine) -> None:
    run(slice_of(tmp_path, machine, 20, "cap"), BUILD / "compute" / program)


def test_a_thread_that_is_cancelled_while_libcuda_is_asked_holds_nobody_up(tmp_path: Path, machine: Machine) -> None:
    program = BUILD / "compute/a_cancelled_thread_holds_nobody_up"
    run(slice_of(tmp_path, machine, 20, "cap"), program, "captures", faults="cuCtxRecordEvent=0:delay_us=20000")


@pytest.mark.parametrize("what", ["stream", "context", "reset"])
def test_a_capture_whose_stream_is_destroyed_is_over(what: str, tmp_path: Path, machine: Machine) -> None:
    """It counted as under way for good, and all of the time as used: 400 requests instead of 1900."""
    names = iter("abcdefgh")

    def requests() -> float:
        made = slice_of(tmp_path, machine, 20, "cap", next(names))
        return shares(run(made, BUILD / "compute/a_capture_ends_with_its_stream", what))[0]

    measured(requests, lambda count: count > 1200)


def test_contexts_made_while_others_are_paused_are_paused_too(tmp_path: Path, machine: Machine) -> None:
    run_within(10, 35, slice_of(tmp_path, machine, 20, "cap"), KIND, "contexts", 2000, 0)


def test_a_program_may_close_all_descriptors(tmp_path: Path, machine: Machine) -> None:
    """The resource manager frees a client's channels with its descriptor. The simulated one does not see it closed, so
    a program that closes it within a call that pauses waits for ever there: rare, and tried again."""
    for attempt in range(3):
        try:
            run(slice_of(tmp_path, machine, 20, "cap", f"job{attempt}"), KIND, "descriptors", 1500, 0)
            return
        except subprocess.TimeoutExpired as error:
            late = error
    raise late


def throttled_ns(made: Slice) -> int:
    """Over all processes that ran, by the slots that they left."""
    data = (made.directory / c.FILE_USAGE).read_bytes()
    offset, size, _kind = c.USAGE_SLOT_FIELDS["throttled_ns"]
    first = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT
    bases = range(first, first + c.USAGE_SLOT_SIZE * c.USAGE_SLOT_COUNT, c.USAGE_SLOT_SIZE)
    return sum(int.from_bytes(data[base + offset : base + offset + size], "little") for base in bases)


def test_light_work_under_a_cap_is_never_held_back(tmp_path: Path, machine: Machine) -> None:
    names = iter("abcdefgh")

    def held_back_ns() -> float:
        made = slice_of(tmp_path, machine, 50, "cap", next(names))
        run(made, KIND, "light", 2000, 500)
        return throttled_ns(made)

    measured(held_back_ns, lambda ns: ns == 0)
    heavy = slice_of(tmp_path, machine, 50, "cap", "heavy")
    run(heavy, SPIN, 1000, 1000)
    assert throttled_ns(heavy) > 0  # the count is read


def test_several_processes_keep_the_jobs_cap_together(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 30, "cap")
    for _ in range(4):
        running = [start(made, SPIN, 2000, 1000) for _ in range(3)]
        total = sum(float(process.communicate(timeout=30)[0]) for process in running)
        if 20 < total < 42 or BUILD.name != "native":
            return
    pytest.fail(f"{total} % of the GPU")


@pytest.mark.quiet
def test_several_processes_get_the_whole_of_the_jobs_cap(tmp_path: Path, machine: Machine) -> None:
    """What one of them used was taken after the others had filled the budget up: 64 % instead of 75."""
    made = slice_of(tmp_path, machine, 75, "cap")

    def total() -> float:
        running = [start(made, SPIN, 2000, 1000) for _ in range(3)]
        return sum(float(process.communicate(timeout=30)[0]) for process in running)

    measured(total, lambda share: 70 < share < 80)


def test_a_stopped_program_goes_on_and_holds_nobody_up(tmp_path: Path, machine: Machine) -> None:
    victim = start(slice_of(tmp_path, machine, 10, "cap", "victim"), SPIN, 2500, 1000)
    time.sleep(0.5)
    for i in range(12):  # at any moment of its rounds
        victim.send_signal(signal.SIGSTOP)
        time.sleep(0.02 + 0.007 * i)
        if i == 6:
            run_within(OPEN, 101, slice_of(tmp_path, machine, 100, "cap", "next"), SPIN, 300, 1000)
        victim.send_signal(signal.SIGCONT)
        time.sleep(0.03)
    out, _err = victim.communicate(timeout=20)
    assert victim.returncode == 0
    assert float(out) > 0


WORDS = (0, 1, 2**64 - 1, 2**63, 2**63 - 1, 2**62)


def scribble(usage: Path, over: threading.Event) -> None:
    """Writes nonsense to the job's and every step's budget, and to the rows of all slots."""
    first = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT
    places = [c.USAGE_FIELDS["time_full_at"]]
    places += [
        (c.USAGE_SIZE + c.USAGE_STEP_FIELDS[name][0], *c.USAGE_STEP_FIELDS[name][1:])
        for name in ("time_full_at", "processes")
    ]
    row = c.USAGE_SLOT_FIELDS["step_row"]
    with usage.open("r+b", buffering=0) as out:
        for n in range(10**9):
            if over.is_set():
                return
            for offset, size, *_ in places:
                word = (WORDS[n % len(WORDS)] + n % 3) % 2 ** (8 * size)
                os.pwrite(out.fileno(), word.to_bytes(size, "little"), offset)
            if n % 50 == 0:
                for slot in range(c.USAGE_SLOT_COUNT):
                    os.pwrite(out.fileno(), b"\xff" * row[1], first + slot * c.USAGE_SLOT_SIZE + row[0])
            time.sleep(0.0005)


def test_nonsense_in_the_usage_record_stops_nobody_for_long(tmp_path: Path, machine: Machine) -> None:
    made, other = (slice_of(tmp_path, machine, 40, "cap", name) for name in ("job", "other"))
    over = threading.Event()
    writer = threading.Thread(target=scribble, args=(made.directory / c.FILE_USAGE, over))
    process = start(made, SPIN, 4000, 1000)
    time.sleep(0.5)
    writer.start()
    try:
        assert run(other, SPIN, 800, 1000).returncode == 0  # another job does not notice
    finally:
        over.set()
        writer.join()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert float(out) > 5
    run_within(25, 55, made, SPIN, 1500, 1000)


STRANGE = [
    {"cores_percent": 0},
    {"cores_percent": 4_000_000_000},
    {"turn_begin_permille": 5000, "turn_length_permille": 70000},
    {"turn_begin_permille": 999, "turn_length_permille": 1},
    {"floor_percent": 200, "latency": 9},
    {"floor_percent": 99, "latency": 1, "policy": 1},
    {"policy": 77},
    {"latency_others": 2**32 - 1},
    {"latency": 1, "latency_above": 2**32 - 1},
]


@pytest.mark.parametrize("values", STRANGE, ids=str)
def test_strange_terms_crash_and_stop_nobody(values: dict[str, int], tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 40, "cap")
    for path in (made.limits, made.directory / c.FILE_JOB_LIMITS):
        path.write_bytes(put(path.read_bytes(), values))
    assert shares(run(made, SPIN, 300, 1000))[0] > 0


def test_terms_that_root_changes_in_place_are_followed(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 100, "cap")
    record = made.directory / c.FILE_JOB_LIMITS

    def write(**values: int) -> None:
        with record.open("r+b") as out:
            out.write(put(record.read_bytes(), values))

    def half_a_turn() -> list[float]:
        write(turn_begin_permille=0, turn_length_permille=0)
        process = start(made, SPIN, 2000, 1000)
        time.sleep(0.3)
        write(latency_others=1, turn_begin_permille=0, turn_length_permille=300)
        return [float(process.communicate(timeout=20)[0])]

    for _ in range(4):
        share = half_a_turn()[0]
        if 25 < share < 70 or BUILD.name != "native":
            return
    pytest.fail(f"{share} %")


def test_hundreds_of_short_processes_leave_nothing_behind(tmp_path: Path, machine: Machine) -> None:
    made = slice_of(tmp_path, machine, 20, "cap")
    for _ in range(25):
        several = [start(made, SPIN, 1, 100) for _ in range(8)]
        assert [process.wait(timeout=20) for process in several] == [0] * 8
        for process in several:
            process.communicate()
    run_within(10, 35, made, SPIN, 1200, 1000)
