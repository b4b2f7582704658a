# SPDX-License-Identifier: Apache-2.0
"""Device memory of running programs that is moved to the host and back: what their processes say of it. Pure.

The processes write that themselves (docs/adr/077), so it is for people to read, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hami_hpc.contract import constants as c
from hami_hpc.core.records import USAGE_FILE_SIZE, slots_in_use, usage_words

FIRST_SLOT_AT = USAGE_FILE_SIZE - c.USAGE_SLOT_COUNT * c.USAGE_SLOT_SIZE
_SLOT_FIELDS = ("state", "pid", "used_bytes", "gpu_busy_ns", "swap_state", "swap_count", "swapped_bytes")
_SLOT = usage_words(*_SLOT_FIELDS, fields=c.USAGE_SLOT_FIELDS)
WORDS = {number: word for word, number in c.SWAP_STATES.items()}
# Why a process's memory stays on the GPU; the words are those of contract.toml, [swap_states].
REASONS = {
    "busy": "its work on the GPU does not end within 2 s, or a stream is being captured",
    "contexts": "it has several CUDA contexts",
    "shared": "it shares device memory with other processes (CUDA IPC, exported handles)",
    "room": "the host, or the job's memory limit (--mem), has no room for it",
    "driver": "the GPU's driver refuses",
    "leaving": "it is still being copied to the host",
}


# What each order makes of the record's field. An administrator's stands above Slurm's: what they moved out stays there.
# Where memory is oversold, what goes on waits for its turn.
ORDERS = {
    "out": {c.SWAP_IN: c.SWAP_OUT, c.SWAP_SUSPENDED: c.SWAP_OUT, c.SWAP_TURN: c.SWAP_OUT},
    "in": {c.SWAP_OUT: c.SWAP_IN, c.SWAP_SUSPENDED: c.SWAP_IN, c.SWAP_TURN: c.SWAP_IN},
    "suspend": {c.SWAP_IN: c.SWAP_SUSPENDED, c.SWAP_TURN: c.SWAP_SUSPENDED},
    "resume": {c.SWAP_SUSPENDED: c.SWAP_IN},
}
# Orders by which the job's memory is not on the GPU.
OFF = (c.SWAP_OUT, c.SWAP_SUSPENDED, c.SWAP_TURN, c.SWAP_WAIT)
LEFT_MIB = 1024  # at most, of each process whose memory was moved: contexts and what is libcuda's own
ON_HOST = ("host", "wanted")
AWAY = (*ON_HOST, "returning")
NO_ANSWER = "it does not answer (is it stopped?)"
UNTIL = {
    c.SWAP_OUT: "root brings it back (hami-hpc swap in)",
    c.SWAP_SUSPENDED: "Slurm resumes the job",
    c.SWAP_TURN: "it is the job's turn",
    c.SWAP_WAIT: "the GPU has room for the job",
}
PASSING = ("busy", "leaving")  # of the reasons, those that waiting changes
TRIED_S = 1.0  # after which a reason that will not go away counts


class Process(NamedTuple):
    """One process of the job: its slot, its id (in its own PID namespace), where its memory is, the bytes off the GPU,
    how often it was moved there, the GPU's time that it used, ns, and the bytes that it holds in all."""

    slot: int
    pid: int
    state: str
    bytes: int
    times: int = 0
    busy_ns: int = 0
    held_bytes: int = 0


def change(word: str, *, oversold: bool) -> dict[int, int]:
    """Returns what an order makes of each value of the record's field."""
    return {old: c.SWAP_TURN if oversold and new == c.SWAP_IN else new for old, new in ORDERS[word].items()}


def processes(data: bytes) -> list[Process]:
    """Returns the processes in the bytes of a usage file, whatever they are; those that have died are among them."""
    if len(data) != USAGE_FILE_SIZE:
        return []
    slots = ((base - FIRST_SLOT_AT) // c.USAGE_SLOT_SIZE for base in slots_in_use(data))
    found = (process(slot, data[slot_at(slot) : slot_at(slot + 1)]) for slot in slots)
    return [one for one in found if one is not None]


def slot_at(slot: int) -> int:
    """Returns where a slot begins in a usage file."""
    return FIRST_SLOT_AT + slot * c.USAGE_SLOT_SIZE


def process(slot: int, data: bytes) -> Process | None:
    """Returns the process in the bytes of one slot, whatever they are; None for a slot that is free, or cut off."""

    if len(data) != c.USAGE_SLOT_SIZE:
        return None
    state, pid, held, busy_ns, swap_state, times, swapped = _SLOT.unpack_from(data)
    return Process(slot, pid, WORDS.get(swap_state, "gpu"), swapped, times, busy_ns, held) if state else None


def is_done(found: Iterable[Process], *, out: bool) -> bool:
    """Returns whether the memory of all is where it should be; what is about to come back is nowhere."""
    return all(process.state in ON_HOST if out else process.state not in AWAY for process in found)


def is_off(order: int, used_bytes: int, process_count: int) -> bool:
    """Returns whether a job's memory is off the GPU: root ordered it, and NVML shows no more than what stays of each
    process. What the job itself says does not count."""
    return order in OFF and used_bytes <= process_count * LEFT_MIB << 20


def will_not_move(found: Iterable[Process]) -> bool:
    """Returns whether a process stays on the GPU for a reason that waiting does not change."""
    return any(process.state in REASONS and process.state not in PASSING for process in found)


def seconds_for(mib: int) -> float:
    """Returns how long a suspension waits for so much memory to leave, s: three times what an H200 needs, and some for
    the work on the GPU to end. What slurmd starts meanwhile waits too, however hostile the job is."""
    return 5 + mib / 8192


def stays(job_id: int, found: Iterable[Process]) -> str:
    """Returns which memory of a suspended job stays on the GPU and why, in one line."""
    late = [process for process in found if process.state not in ON_HOST]
    more = f", and {len(late) - 1} more" if len(late) > 1 else ""
    reason = REASONS.get(late[0].state, NO_ANSWER)
    return f"job {job_id} is suspended, and device memory of process {late[0].pid}{more} stays on the GPU: {reason}"


def line(job_id: int, found: Sequence[Process], *, out: bool, until: str) -> str:
    """Returns what was done, in one line; `until` says what brings the memory back."""
    if not found:
        return f"job {job_id} has no process on the GPU; those that come {'wait' if out else 'run'}"
    count = f"{len(found)} process{'es' if len(found) > 1 else ''}"
    if not out:
        return f"job {job_id}: the memory of {count} is on the GPU"
    mib = sum(process.bytes for process in found) >> 20
    left = sum(max(0, process.held_bytes - process.bytes) for process in found) >> 20
    return f"job {job_id}: {mib} MiB of {count} moved off the GPU, {left} MiB stay on the GPU; they wait until {until}"


def failure(job_id: int, found: Iterable[Process], *, out: bool) -> str:
    """Returns why the memory of some processes is not where it should be, in one line."""
    late = [process for process in found if (process.state not in ON_HOST if out else process.state in AWAY)]
    if not out:
        mib = sum(process.bytes for process in late) >> 20
        waits = f"{mib} MiB of {len(late)} processes"
        return f"job {job_id}: the GPU has no room yet for {waits}; they come as soon as it has"
    first = late[0]
    more = f", and {len(late) - 1} more" if len(late) > 1 else ""
    reason = REASONS.get(first.state, NO_ANSWER)
    return f"job {job_id} was not moved: process {first.pid}{more}: {reason}. It goes on as before"


def for_user(order: int, found: Sequence[Process]) -> str:
    """Returns where the memory of a running job is, in one line; "" for one whose memory was never moved."""
    times = max((process.times for process in found), default=0)
    so_far = f"moved to the host {times} time{'' if times == 1 else 's'} so far"
    away = [process for process in found if process.state in AWAY]
    mib = sum(process.bytes for process in away) >> 20
    of = f"{mib:,} MiB of {len(away)} process{'' if len(away) == 1 else 'es'}"
    if order not in UNTIL:
        if away:
            return f"{of} come back as soon as the GPU has room"
        return f"on the GPU, {so_far}" if times else ""
    if away and (mib or times):
        return f"{of} off the GPU until {UNTIL[order]}, {so_far}"
    if found and not away:
        return f"on the GPU though it should leave: process {found[0].pid}: {REASONS.get(found[0].state, NO_ANSWER)}"
    return f"programs that use the GPU wait until {UNTIL[order]}"
