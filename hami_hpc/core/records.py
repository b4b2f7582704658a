# SPDX-License-Identifier: Apache-2.0
"""Packs and parses the binary records of a job's directory (contract.toml, [layout.*]). Pure.

Root writes the limits record, so it is trusted once its header is valid. The user's processes write the usage file, so
none of it is trusted: every number is bounded, and no content makes a function here fail.
"""

from __future__ import annotations

import struct

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import INT64_MAX, parse_delays, quantile_us
from hami_hpc.core.grant import Grant, is_class_name
from hami_hpc.core.in_step import ON_SEVERAL_NODES
from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Fields = Mapping[str, tuple[int, int, str]]

MIB = 1 << 20
USAGE_FILE_SIZE = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT + c.USAGE_SLOT_SIZE * c.USAGE_SLOT_COUNT
_SLOTS_AT = c.USAGE_SIZE + c.USAGE_STEP_SIZE * c.USAGE_STEP_COUNT


class Usage(NamedTuple):
    """What a job used, as its own processes wrote it. `state`: ok, damaged (bounded guesses), missing or observed
    (zeros; observed: it had whole GPUs, and no interposer)."""

    state: str
    used_bytes: int
    peak_bytes: int
    oom_count: int
    gpu_busy_ns: int
    throttled_ns: int
    device_oom_count: int = 0
    request_count: int = 0
    latency_p50_us: int = 0
    latency_p99_us: int = 0
    latency_sum_ns: int = 0
    slo_miss_count: int = 0
    floor_hit_count: int = 0
    pause_count: int = 0
    first_context_unix_ns: int = 0
    first_launch_unix_ns: int = 0
    last_use_unix_ns: int = 0


MISSING_USAGE = Usage("missing", 0, 0, 0, 0, 0)
DAMAGED_USAGE = Usage("damaged", 0, 0, 0, 0, 0)
OBSERVED_USAGE = Usage("observed", 0, 0, 0, 0, 0)


def limits_file(slice_index: int) -> str:
    """Returns the name of a slice's limits record in its job's directory."""
    return c.FILE_SLICE_JOB_LIMITS.format(slice=slice_index) if slice_index else c.FILE_JOB_LIMITS


def usage_file(slice_index: int) -> str:
    """Returns the path of a slice's usage file in its job's directory."""
    return c.FILE_SLICE_USAGE.format(slice=slice_index) if slice_index else c.FILE_USAGE


def _pack(fields: Fields, size: int, values: Mapping[str, int | str]) -> bytes:
    """Returns `size` bytes with `values` at their offsets, zeros elsewhere. Raises ValueError when one does not fit."""
    record = bytearray(size)
    for name, value in values.items():
        offset, width, _kind = fields[name]
        raw = value.to_bytes(width, "little") if isinstance(value, int) else value.encode()
        if len(raw) > width - isinstance(value, str):  # text needs its final NUL
            raise ValueError(f"{name} does not fit {width} bytes")
        record[offset : offset + len(raw)] = raw
    return bytes(record)


def _number(data: bytes, fields: Fields, name: str, base: int = 0) -> int:
    offset, width, _kind = fields[name]
    return int.from_bytes(data[base + offset : base + offset + width], "little")


def pack_limits(grant: Grant, swap: int = c.SWAP_NEVER, pinned_mib: int = 0) -> bytes:
    """Returns the job's limits record of a grant, as of a job that is alone on its GPU (see node/neighbours.py).
    `swap`: whether its programs' memory may be moved; `pinned_mib`: what each process keeps page-locked for that."""
    values: dict[str, int | str] = {
        "magic": c.LIMITS_MAGIC,
        "abi_version": c.ABI_VERSION,
        "record_size": c.LIMITS_SIZE,
        "sequence": 0,
        "job_id": grant.job_id,
        "step_id": c.JOB_STEP_ID,
        "uid": grant.uid,
        "gpu_minor": grant.gpu_minor,
        "gpu_total_bytes": grant.gpu_total_mib * MIB,
        "policy": c.POLICIES[grant.policy],
        "mode": c.MODES[grant.mode],
        "created_unix_ns": grant.created_unix_ns,
        "gpu_uuid": grant.gpu_uuid,
        "class_name": grant.service_class,
        "class_priority": grant.class_priority,
        "slice_us": grant.slice_us,
        "latency": grant.latency,
        "floor_percent": grant.floor_percent,
        "slo_us": grant.slo_us,
        "slice_index": grant.slice_index,
        "slice_count": grant.slice_count,
        "in_step": grant.in_step,
        "max_processes": grant.max_processes,
        "swap": swap,
        "swap_pinned_bytes": pinned_mib * MIB,
        **size_fields(grant),
    }
    return _pack(c.LIMITS_FIELDS, c.LIMITS_SIZE, values)


def size_fields(grant: Grant) -> dict[str, int]:
    """Returns the fields of a slice's limits record that a resize changes."""
    return {
        "mem_limit_bytes": grant.mem_mib * MIB,
        "cores_percent": grant.cores_percent,
        "asked_mem_bytes": grant.asked_mem_mib * MIB,
        "asked_cores_percent": grant.asked_cores_percent,
        "most_mem_bytes": grant.most_mem_mib * MIB,
    }


def is_of_another_version(data: bytes) -> bool:
    """Returns whether these are the bytes of a limits record that another version of hami_hpc wrote."""
    magic, version = (_number(data, c.LIMITS_FIELDS, name) for name in ("magic", "abi_version"))
    return magic == c.LIMITS_MAGIC and version != c.ABI_VERSION


def parse_limits(data: bytes, model: str = "") -> Grant | None:
    """Returns the grant in a job's limits record, which does not contain the model; None for any other content."""

    def number(name: str) -> int:
        return _number(data, c.LIMITS_FIELDS, name)

    def text(name: str) -> str:
        offset, width, _kind = c.LIMITS_FIELDS[name]
        return data[offset : offset + width].split(b"\0", 1)[0].decode("ascii", "replace")

    def named(table: Mapping[str, int], name: str) -> str:
        return {value: key for key, value in table.items()}.get(number(name), "")

    if len(data) != c.LIMITS_SIZE or number("magic") != c.LIMITS_MAGIC or number("abi_version") != c.ABI_VERSION:
        return None
    uuid, service_class = text("gpu_uuid"), text("class_name")
    policy = named(c.POLICIES, "policy")
    mode = named(c.MODES, "mode")
    if number("step_id") != c.JOB_STEP_ID or not (is_class_name(service_class) and policy and mode and uuid):
        return None
    slice_index, slice_count = number("slice_index"), number("slice_count") or 1
    if number("created_unix_ns") > INT64_MAX or not slice_index < slice_count <= c.SLICES_MAX:
        return None
    return Grant(
        job_id=number("job_id"),
        uid=number("uid"),
        gpu_uuid=uuid,
        gpu_minor=number("gpu_minor"),
        gpu_total_mib=number("gpu_total_bytes") // MIB,
        model=model,
        mem_mib=number("mem_limit_bytes") // MIB,
        cores_percent=number("cores_percent"),
        service_class=service_class,
        policy=policy,
        mode=mode,
        created_unix_ns=number("created_unix_ns"),
        latency=int(number("latency") != 0),
        floor_percent=number("floor_percent"),
        class_priority=number("class_priority"),
        slice_us=number("slice_us"),
        slo_us=number("slo_us"),
        slice_index=slice_index,
        slice_count=slice_count,
        in_step=min(number("in_step"), ON_SEVERAL_NODES),
        max_processes=number("max_processes"),
        asked_mem_mib=number("asked_mem_bytes") // MIB,
        asked_cores_percent=number("asked_cores_percent"),
        most_mem_mib=number("most_mem_bytes") // MIB,
    )


def empty_usage_head() -> bytes:
    """Returns the head of a new usage file; the rest of the file is zeros."""
    values: dict[str, int | str] = {
        "magic": c.USAGE_MAGIC,
        "abi_version": c.ABI_VERSION,
        "record_size": USAGE_FILE_SIZE,
        "slot_count": c.USAGE_SLOT_COUNT,
    }
    return _pack(c.USAGE_FIELDS, c.USAGE_SIZE, values)


def parse_usage(data: bytes, mem_limit_bytes: int, elapsed_ns: int, start_unix_ns: int = 0) -> Usage:
    """Returns the usage in the bytes of a usage file, whatever they are.

    Times in ns, those of processes that died included. Bounds: memory by the job's limit, GPU time by the job's run
    time (one GPU), throttled time by run time times the number of slots, and everything by what the record can hold. A
    number beyond its bound, or an invalid header, makes the state "damaged". A point in time that is not within the
    run, which begins at `start_unix_ns`, is 0, not known; that alone is no damage, since a clock may have been set.
    """

    def number(name: str) -> int:
        return _number(data, c.USAGE_FIELDS, name)

    def within(name: str) -> int:
        unix_ns = number(name)
        return unix_ns if start_unix_ns <= unix_ns <= min(start_unix_ns + elapsed_ns, INT64_MAX) else 0

    if (
        len(data) != USAGE_FILE_SIZE
        or number("magic") != c.USAGE_MAGIC
        or number("abi_version") != c.ABI_VERSION
        or number("record_size") != USAGE_FILE_SIZE
    ):
        return DAMAGED_USAGE
    gpu_busy_ns, throttled_ns = number("gpu_busy_ns"), number("throttled_ns")
    for base in slots_in_use(data):
        gpu_busy_ns += _number(data, c.USAGE_SLOT_FIELDS, "gpu_busy_ns", base)
        throttled_ns += _number(data, c.USAGE_SLOT_FIELDS, "throttled_ns", base)
    stated = (
        number("used_bytes"),
        number("peak_bytes"),
        number("oom_count"),
        gpu_busy_ns,
        throttled_ns,
        number("device_oom_count"),
    )
    elapsed_ns = max(elapsed_ns, 0)  # negative when the clock was set back
    bounds = (mem_limit_bytes, mem_limit_bytes, INT64_MAX, elapsed_ns, elapsed_ns * c.USAGE_SLOT_COUNT, INT64_MAX)
    bounded = [min(value, max(bound, 0), INT64_MAX) for value, bound in zip(stated, bounds, strict=True)]
    delays = parse_delays(data)
    misses = min(delays.slo_miss_count, delays.request_count)
    is_sound = tuple(bounded) == stated and misses == delays.slo_miss_count
    return Usage("ok" if is_sound else "damaged", *bounded)._replace(
        request_count=delays.request_count,
        latency_p50_us=quantile_us(delays.buckets, 50),
        latency_p99_us=quantile_us(delays.buckets, 99),
        latency_sum_ns=delays.latency_sum_ns,
        slo_miss_count=misses,
        floor_hit_count=delays.floor_hit_count,
        pause_count=delays.pause_count,
        first_context_unix_ns=within("first_context_unix_ns"),
        first_launch_unix_ns=within("first_launch_unix_ns"),
        last_use_unix_ns=within("last_use_unix_ns"),
    )


def total_usage(usages: Sequence[Usage]) -> Usage:
    """Returns what the slices of a job used together: sums, but of delays the longest, and of times the first and the
    last. It is "ok" when all are, and "missing" when all are; else "damaged", since a part is not known."""
    if len(usages) == 1:
        return usages[0]
    states = {usage.state for usage in usages}
    values: dict[str, int] = {}
    for name in Usage._fields[1:]:
        numbers = [getattr(usage, name) for usage in usages]
        if name in _FIRST_OF_SLICES:
            values[name] = min([number for number in numbers if number], default=0)
        else:
            values[name] = min(max(numbers) if name in _MOST_OF_SLICES else sum(numbers), INT64_MAX)
    return Usage(states.pop() if len(states) == 1 else "damaged", **values)


_FIRST_OF_SLICES = frozenset({"first_context_unix_ns", "first_launch_unix_ns"})
_MOST_OF_SLICES = frozenset({"latency_p50_us", "latency_p99_us", "last_use_unix_ns"})


class Counts(NamedTuple):
    """What the head of a usage file states, bounded: bytes held now, and allocations refused by limit and by GPU."""

    used_bytes: int
    oom_count: int
    device_oom_count: int


def usage_words(*names: str, fields: Fields = c.USAGE_FIELDS) -> struct.Struct:
    """Returns what unpacks these numbers of a record in a usage file, which follow one another in this order."""
    text, at = "<", 0
    for offset, width, _kind in map(fields.__getitem__, names):
        text += f"{offset - at}x{'Q' if width == 8 else 'I'}"
        at = offset + width
    return struct.Struct(text)


_HEAD = usage_words("magic", "abi_version", *Counts._fields)  # the agent reads it of each job each second


def parse_usage_head(data: bytes) -> Counts | None:
    """Returns the counts in a usage file's first USAGE_SIZE bytes, or None when that is no head of this version."""
    if len(data) != c.USAGE_SIZE:
        return None
    magic, version, used, oom, device_oom = _HEAD.unpack_from(data)
    if magic != c.USAGE_MAGIC or version != c.ABI_VERSION:
        return None
    return Counts(min(used, INT64_MAX), min(oom, INT64_MAX), min(device_oom, INT64_MAX))


def slots_in_use(data: bytes) -> list[int]:
    """Returns the offsets of the slots in use. Checks one byte of all slots at a time, because most slots are free."""
    offset, width, _kind = c.USAGE_SLOT_FIELDS["state"]
    used: set[int] = set()
    for at in range(_SLOTS_AT + offset, _SLOTS_AT + offset + width):
        column = data[at :: c.USAGE_SLOT_SIZE]
        if column.strip(b"\0"):
            used.update(index for index, byte in enumerate(column) if byte)
    return [_SLOTS_AT + index * c.USAGE_SLOT_SIZE for index in sorted(used)]


class Observed(NamedTuple):
    """What the agent saw of a job from outside its processes. The fields are those of the spool's record."""

    observed_ns: int = 0
    observed_peak_bytes: int = 0
    observed_busy_ns: int = 0
    observed_energy_mj: int = 0
    observed_pcie_bytes: int = 0
    observed_nvlink_bytes: int = 0
    disturbed_count: int = 0
    gpu_fault: int = 0
    off_gpu_ns: int = 0


NOT_OBSERVED = Observed()


class StageTimes(NamedTuple):
    """When the stages of a job's start and end were, by root's own notes, ns since 1970; 0: not known."""

    prolog_began_unix_ns: int = 0
    prolog_done_unix_ns: int = 0
    first_step_unix_ns: int = 0
    epilog_began_unix_ns: int = 0


NO_TIMES = StageTimes()


def usage_record(
    grant: Grant,
    usage: Usage,
    end_unix_ns: int,
    observed: Observed = NOT_OBSERVED,
    times: StageTimes = NO_TIMES,
    gpu_count: int = 1,
    history: str = "",
    cluster: str = "",
) -> dict[str, int | str]:
    """Returns an ended job's JSON object for the usage spool: contract.toml, [spool]."""
    end_unix_ns = max(end_unix_ns, grant.created_unix_ns)  # the clock may have been set back
    values: dict[str, int | str] = {
        **grant._asdict(),
        **usage._asdict(),
        **observed._asdict(),
        **times._asdict(),
        "version": c.SPOOL_VERSION,
        "class": grant.service_class,
        "mem_mib": grant.most_mem(),
        "cores": grant.cores_percent,
        "start": grant.created_unix_ns // 1_000_000_000,
        "end": end_unix_ns // 1_000_000_000,
        "start_unix_ns": grant.created_unix_ns,
        "end_unix_ns": end_unix_ns,
        "usage": usage.state,
        "gpu_count": gpu_count,
        "history": history,
        "cluster": cluster,
    }
    return {name: values[name] for name in c.SPOOL_FIELDS}
