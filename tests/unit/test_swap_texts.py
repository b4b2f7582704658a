# SPDX-License-Identifier: Apache-2.0
"""What `hami-hpc swap` says of a job's processes, from the usage file that their user can write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_hpc.contract import constants as c
from hami_hpc.core import swap
from hami_hpc.core.records import USAGE_FILE_SIZE

FIRST = USAGE_FILE_SIZE - c.USAGE_SLOT_COUNT * c.USAGE_SLOT_SIZE


def file_of(*slots: tuple[int, dict[str, int]]) -> bytes:
    data = bytearray(USAGE_FILE_SIZE)
    for index, values in slots:
        for name, value in ({"state": 1} | values).items():
            offset, width, _kind = c.USAGE_SLOT_FIELDS[name]
            at = FIRST + index * c.USAGE_SLOT_SIZE + offset
            data[at : at + width] = value.to_bytes(width, "little")
    return bytes(data)


def process(state: str, mib: int = 0, pid: int = 7) -> swap.Process:
    return swap.Process(0, pid, state, mib << 20)


def test_each_slot_in_use_is_a_process() -> None:
    host = {"pid": 41, "swap_state": c.SWAP_STATES["host"], "swapped_bytes": 3 << 30, "used_bytes": 4 << 30}
    found = swap.processes(file_of((5, host), (2047, {"pid": 42, "swap_state": c.SWAP_STATES["busy"]})))
    assert found == [swap.Process(5, 41, "host", 3 << 30, held_bytes=4 << 30), swap.Process(2047, 42, "busy", 0)]
    assert swap.processes(file_of((0, {"swap_state": 4_000_000_000}))) == [swap.Process(0, 0, "gpu", 0)]
    assert swap.processes(b"HAMIUSE1") == []


@given(st.binary(max_size=c.USAGE_SLOT_SIZE * 3), st.integers(0, c.USAGE_SLOT_COUNT - 3))
def test_whatever_a_user_writes_is_read(text: bytes, index: int) -> None:
    data = bytearray(USAGE_FILE_SIZE)
    at = FIRST + index * c.USAGE_SLOT_SIZE
    data[at : at + len(text)] = text
    found = swap.processes(bytes(data))
    assert len(found) <= 3
    assert swap.line(1, found, out=True, until="then")
    if not swap.is_done(found, out=True):
        assert swap.failure(1, found, out=True)


def test_it_is_done_when_all_are_where_they_should_be() -> None:
    both = [process("host", 100), process("gpu")]
    assert not swap.is_done(both, out=True)
    assert not swap.is_done(both, out=False)
    assert swap.is_done(both[:1], out=True)
    assert swap.is_done([process("busy")], out=False), "it is on the GPU"
    assert [swap.is_done([process("returning")], out=out) for out in (True, False)] == [False, False]
    assert swap.is_done([], out=True)


def test_lines() -> None:
    two = [process("host", 100)._replace(held_bytes=700 << 20), process("host", 24)]
    assert swap.line(7, two, out=True, until="hami-hpc swap in 7") == (
        "job 7: 124 MiB of 2 processes moved off the GPU, 600 MiB stay on the GPU; they wait until hami-hpc swap in 7"
    )
    assert swap.line(7, two[:1], out=False, until="") == "job 7: the memory of 1 process is on the GPU"
    assert swap.line(7, [], out=True, until="") == "job 7 has no process on the GPU; those that come wait"
    assert swap.line(7, [], out=False, until="") == "job 7 has no process on the GPU; those that come run"
    assert swap.failure(7, two, out=False) == (
        "job 7: the GPU has no room yet for 124 MiB of 2 processes; they come as soon as it has"
    )


@pytest.mark.parametrize("state", [word for word in c.SWAP_STATES if word in swap.REASONS])
def test_each_reason_is_said_in_words(state: str) -> None:
    said = swap.failure(7, [process("host"), process(state, pid=33), process("gpu")], out=True)
    assert said == f"job 7 was not moved: process 33, and 1 more: {swap.REASONS[state]}. It goes on as before"


def test_of_a_suspended_job_what_stays_is_named() -> None:
    said = swap.stays(7, [process("host"), process("shared", pid=33), process("gpu")])
    begin = "job 7 is suspended, and device memory of process 33, and 1 more stays on the GPU: "
    assert said == begin + swap.REASONS["shared"]
    assert swap.stays(7, [process("gpu")]).endswith(
        "of process 7 stays on the GPU: it does not answer (is it stopped?)"
    )


@pytest.mark.parametrize("state", c.SWAP_STATES)
def test_waiting_is_of_no_use_for_what_does_not_change(state: str) -> None:
    assert swap.will_not_move([process("host"), process(state)]) == (state in {"contexts", "shared", "room", "driver"})


def test_a_suspension_waits_longer_for_more_and_never_long() -> None:
    assert swap.seconds_for(0) == 5
    assert swap.seconds_for(8192) == 6
    assert 10 < swap.seconds_for(100 * 1024) < 20  # an H200 takes 5.4


def test_an_administrators_order_stands_above_slurms() -> None:
    never, on_gpu, out, suspended = c.SWAP_NEVER, c.SWAP_IN, c.SWAP_OUT, c.SWAP_SUSPENDED

    def said(before: int, *words: str) -> int:
        for word in words:
            before = swap.ORDERS[word].get(before, before)
        return before

    assert said(on_gpu, "suspend") == suspended
    assert said(on_gpu, "suspend", "suspend", "resume") == on_gpu
    assert said(on_gpu, "resume") == on_gpu
    assert said(on_gpu, "out", "suspend", "resume") == out, "Slurm does not undo what an administrator said"
    assert said(on_gpu, "suspend", "out", "resume") == out
    assert said(on_gpu, "suspend", "in", "resume") == on_gpu
    assert [said(never, word) for word in swap.ORDERS] == [never] * 4


def test_a_process_that_says_nothing_may_be_stopped() -> None:
    said = swap.failure(7, [process("gpu")], out=True)
    assert said == "job 7 was not moved: process 7: it does not answer (is it stopped?). It goes on as before"


@pytest.mark.parametrize(
    ("order", "found", "text"),
    [
        (c.SWAP_NEVER, [], ""),
        (c.SWAP_IN, [process("gpu")], ""),
        (c.SWAP_IN, [process("gpu")._replace(times=1)], "on the GPU, moved to the host 1 time so far"),
        (c.SWAP_IN, [process("returning", 2048)], "2,048 MiB of 1 process come back as soon as the GPU has room"),
        (
            c.SWAP_SUSPENDED,
            [process("host", 1024), process("host", 1)._replace(times=3)],
            "1,025 MiB of 2 processes off the GPU until Slurm resumes the job, moved to the host 3 times so far",
        ),
        (
            c.SWAP_OUT,
            [process("host", 5)._replace(times=1)],
            "5 MiB of 1 process off the GPU until root brings it back (hami-hpc swap in), "
            "moved to the host 1 time so far",
        ),
        (c.SWAP_OUT, [], "programs that use the GPU wait until root brings it back (hami-hpc swap in)"),
        (
            c.SWAP_SUSPENDED,
            [process("shared", pid=41)],
            "on the GPU though it should leave: process 41: "
            "it shares device memory with other processes (CUDA IPC, exported handles)",
        ),
        (
            c.SWAP_SUSPENDED,
            [process("gpu", pid=41)],
            f"on the GPU though it should leave: process 41: {swap.NO_ANSWER}",
        ),
        (4711, [process("gpu")], ""),
    ],
)
def test_the_user_is_told_where_the_memory_is(order: int, found: list[swap.Process], text: str) -> None:
    assert swap.for_user(order, found) == text
