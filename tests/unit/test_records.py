# SPDX-License-Identifier: Apache-2.0
"""The region's records: root's limits, and a usage file that its user may fill with anything."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hami_hpc.accounting.sources import usage_records as spool_reader
from hami_hpc.contract import constants as c
from hami_hpc.core.delays import INT64_MAX
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import (
    USAGE_FILE_SIZE,
    Counts,
    Usage,
    empty_usage_head,
    pack_limits,
    parse_limits,
    parse_usage,
    parse_usage_head,
    usage_record,
)
from hami_hpc.node import usage_spool

ANY_GRANT = st.builds(
    Grant,
    job_id=st.integers(0, 2**32 - 1),
    uid=st.integers(0, 2**32 - 1),
    gpu_uuid=st.from_regex(r"\A(GPU|MIG)-[0-9a-f-]{1,80}\Z"),
    gpu_minor=st.integers(0, 255),
    gpu_total_mib=st.integers(1, 2**24),
    model=st.just(""),
    mem_mib=st.integers(1, 2**24),
    cores_percent=st.integers(1, 100),
    service_class=st.from_regex(r"[a-z][a-z0-9_]{0,14}", fullmatch=True),
    policy=st.sampled_from(sorted(c.POLICIES)),
    mode=st.sampled_from(sorted(c.MODES)),
    created_unix_ns=st.integers(0, 2**63 - 1),
    latency=st.integers(0, 1),
    floor_percent=st.integers(0, 99),
    class_priority=st.integers(0, c.CLASS_PRIORITY_MAX),
    slice_us=st.integers(0, c.CLASS_SLICE_US_MAX),
    slo_us=st.integers(0, c.SLO_US_MAX),
    slice_index=st.just(0),
    slice_count=st.integers(1, c.SLICES_MAX),
    in_step=st.integers(0, 2),
    max_processes=st.integers(0, c.USAGE_SLOT_COUNT),
    asked_mem_mib=st.integers(0, 1 << 40),
    asked_cores_percent=st.integers(0, 100),
    most_mem_mib=st.integers(0, 1 << 40),
)
GRANT = Grant(7, 65534, "GPU-1", 0, 143156, "", 8192, 50, "std", "cap", "share", 10**18)
LIMIT_BYTES, ELAPSED_NS = 8192 << 20, 10**9


@given(ANY_GRANT)
def test_a_limits_record_reads_back_as_the_grant_it_was_made_of(grant: Grant) -> None:
    record = pack_limits(grant)
    assert len(record) == c.LIMITS_SIZE
    assert parse_limits(record) == grant


def with_numbers(**values: int) -> bytes:
    record = bytearray(pack_limits(GRANT))
    for name, value in values.items():
        offset, width, _kind = c.LIMITS_FIELDS[name]
        record[offset : offset + width] = value.to_bytes(width, "little")
    return bytes(record)


def test_a_record_of_an_older_version_is_of_the_only_slice() -> None:
    assert parse_limits(with_numbers(slice_count=0)) == GRANT


@pytest.mark.parametrize(("index", "count"), [(1, 0), (1, 1), (2, 2), (0, 17), (16, 17), (2**32 - 1, 2**32 - 1)])
def test_a_slice_that_its_job_cannot_have_is_no_record(index: int, count: int) -> None:
    assert parse_limits(with_numbers(slice_index=index, slice_count=count)) is None


@given(st.binary(max_size=2 * c.LIMITS_SIZE))
def test_other_bytes_are_no_limits_record(data: bytes) -> None:
    assert parse_limits(data) is None


@given(st.integers(0, c.LIMITS_SIZE - 1), st.integers(1, 255))
def test_a_limits_record_with_a_wrong_byte_is_refused_or_read_without_an_exception(at: int, flip: int) -> None:
    data = bytearray(pack_limits(GRANT))
    data[at] ^= flip
    found = parse_limits(bytes(data))
    assert found is None or isinstance(found, Grant)


def test_a_uuid_longer_than_its_field_is_an_error_and_never_cut() -> None:
    with pytest.raises(ValueError, match="gpu_uuid"):
        pack_limits(GRANT._replace(gpu_uuid="G" * 96))


def assert_bounded(data: bytes, elapsed_ns: int) -> None:
    usage = parse_usage(data, LIMIT_BYTES, elapsed_ns)
    assert usage.state in ("ok", "damaged")
    assert 0 <= usage.used_bytes <= LIMIT_BYTES
    assert 0 <= usage.peak_bytes <= LIMIT_BYTES
    assert 0 <= usage.gpu_busy_ns <= max(elapsed_ns, 0)
    assert 0 <= usage.throttled_ns <= max(elapsed_ns, 0) * c.USAGE_SLOT_COUNT
    record = usage_record(GRANT, usage, GRANT.created_unix_ns + elapsed_ns)
    assert all(0 <= value < 2**63 for value in record.values() if isinstance(value, int))
    assert json.loads(usage_spool.to_json(record)) == record
    spool_reader.parse_record(json.dumps(record))


YEAR_NS = 366 * 86400 * 10**9
ELAPSED = st.integers(-YEAR_NS, 100 * YEAR_NS)  # negative when the clock was set back; to 10**18 + 100 years


@given(st.binary(max_size=3 * c.USAGE_SIZE), ELAPSED)
def test_any_bytes_give_bounded_usage(data: bytes, elapsed_ns: int) -> None:
    assert_bounded(data, elapsed_ns)


@settings(max_examples=60, deadline=None)  # half a megabyte each: a busy machine takes long now and then
@given(
    head=st.binary(min_size=c.USAGE_SIZE - 16, max_size=c.USAGE_SIZE - 16),
    seed=st.binary(min_size=1, max_size=64),
    elapsed_ns=ELAPSED,
)
@example(head=bytes(c.USAGE_SIZE - 16), seed=b"\xff", elapsed_ns=53 * 86400 * 10**9)
def test_any_content_behind_a_good_header_gives_bounded_usage(head: bytes, seed: bytes, elapsed_ns: int) -> None:
    body = head + seed * (USAGE_FILE_SIZE // len(seed) + 1)
    assert_bounded((empty_usage_head()[:16] + body)[:USAGE_FILE_SIZE], elapsed_ns)


def test_a_fresh_usage_file_reads_as_nothing_used() -> None:
    usage = parse_usage(empty_usage_head().ljust(USAGE_FILE_SIZE, b"\0"), LIMIT_BYTES, ELAPSED_NS)
    assert usage == Usage("ok", 0, 0, 0, 0, 0, 0)


def test_a_clock_that_went_back_does_not_make_times_negative() -> None:
    data = bytearray(empty_usage_head().ljust(USAGE_FILE_SIZE, b"\0"))
    offset, width, _ = c.USAGE_FIELDS["gpu_busy_ns"]
    data[offset : offset + width] = (5).to_bytes(width, "little")
    assert parse_usage(bytes(data), LIMIT_BYTES, -5).gpu_busy_ns == 0


def field(name: str, value: int | bytes, record: bytes, fields: object = None, base: int = 0) -> bytes:
    """The record with another value in one field."""
    offset, width, _ = (c.LIMITS_FIELDS if fields is None else fields)[name]  # type: ignore[index]
    raw = value if isinstance(value, bytes) else value.to_bytes(width, "little")
    return record[: base + offset] + raw.ljust(width, b"\0") + record[base + offset + width :]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("magic", c.LIMITS_MAGIC + 1),
        ("abi_version", c.ABI_VERSION + 1),
        ("step_id", 0),
        ("class_name", b""),
        ("class_name", b"Gold"),
        ("class_name", b"a b"),
        ("class_name", b"9"),
        ("class_name", b"x" * 16),
        ("policy", 99),
        ("mode", 99),
        ("gpu_uuid", b""),
        ("created_unix_ns", INT64_MAX + 1),
    ],
)
def test_a_limits_record_with_any_one_of_these_wrong_is_none(name: str, value: int | bytes) -> None:
    assert parse_limits(field(name, value, pack_limits(GRANT))) is None


def test_a_limits_record_is_refused_by_its_length_before_anything_in_it_is_read() -> None:
    record = pack_limits(GRANT)
    for data in (record + b"\0", record[:-1], record[:1], b"", record * 2):
        assert parse_limits(data) is None
    assert parse_limits(record, "h200") == GRANT._replace(model="h200")
    latest = GRANT._replace(created_unix_ns=INT64_MAX)
    assert parse_limits(pack_limits(latest)) == latest


def test_the_limits_record_lies_as_the_contract_says() -> None:
    grant = GRANT._replace(gpu_minor=3, policy="burst", service_class="be")
    grant = grant._replace(latency=1, floor_percent=5, class_priority=77, slice_us=1234, slo_us=10_000)
    grant = grant._replace(max_processes=3)
    record = pack_limits(grant)
    expected = {
        "magic": c.LIMITS_MAGIC,
        "abi_version": c.ABI_VERSION,
        "record_size": c.LIMITS_SIZE,
        "sequence": 0,
        "job_id": 7,
        "step_id": c.JOB_STEP_ID,
        "uid": 65534,
        "gpu_minor": 3,
        "mem_limit_bytes": 8192 << 20,
        "gpu_total_bytes": 143156 << 20,
        "cores_percent": 50,
        "class_name": int.from_bytes(b"be", "little"),
        "class_priority": 77,
        "slice_us": 1234,
        "policy": c.POLICIES["burst"],
        "mode": c.MODES["share"],
        "created_unix_ns": 10**18,
        "latency": 1,
        "floor_percent": 5,
        "slo_us": 10_000,
        "max_processes": 3,
        "latency_others": 0,
        "latency_above": 0,
        "turn_begin_permille": 0,
        "turn_length_permille": 0,
    }
    for name, value in expected.items():
        offset, width, _ = c.LIMITS_FIELDS[name]
        assert int.from_bytes(record[offset : offset + width], "little") == value, name


def test_bytes_that_are_no_ascii_in_a_uuid_are_read_all_the_same() -> None:
    found = parse_limits(field("gpu_uuid", b"GPU-\xff\0hidden", pack_limits(GRANT)))
    assert found is not None
    assert found.gpu_uuid == "GPU-\ufffd"
    width = c.LIMITS_FIELDS["gpu_uuid"][1]
    full = parse_limits(field("gpu_uuid", b"G" * width, pack_limits(GRANT)))
    assert full is not None
    assert full.gpu_uuid == "G" * width


def test_a_uuid_fits_its_field_with_one_byte_to_spare_and_a_number_to_its_last() -> None:
    longest = GRANT._replace(gpu_uuid="G" * (c.LIMITS_FIELDS["gpu_uuid"][1] - 1), job_id=2**32 - 1)
    assert parse_limits(pack_limits(longest)) == longest
    with pytest.raises(ValueError, match="gpu_uuid does not fit"):
        pack_limits(GRANT._replace(gpu_uuid="G" * c.LIMITS_FIELDS["gpu_uuid"][1]))


FRESH = empty_usage_head().ljust(USAGE_FILE_SIZE, b"\0")
DAMAGED = Usage("damaged", 0, 0, 0, 0, 0, 0)


def used(**values: int) -> bytes:
    data = FRESH
    for name, value in values.items():
        data = field(name, value, data, c.USAGE_FIELDS)
    return data


def test_the_head_of_a_usage_file_lies_as_the_contract_says() -> None:
    expected = {
        "magic": c.USAGE_MAGIC,
        "abi_version": c.ABI_VERSION,
        "record_size": USAGE_FILE_SIZE,
        "slot_count": c.USAGE_SLOT_COUNT,
    }
    assert len(empty_usage_head()) == c.USAGE_SIZE
    for name, value in expected.items():
        offset, width, _ = c.USAGE_FIELDS[name]
        assert int.from_bytes(FRESH[offset : offset + width], "little") == value, name


@pytest.mark.parametrize("name", ["magic", "abi_version", "record_size"])
def test_a_usage_file_with_any_one_of_its_head_wrong_is_damaged(name: str) -> None:
    assert parse_usage(field(name, 3, used(peak_bytes=5), c.USAGE_FIELDS), LIMIT_BYTES, ELAPSED_NS) == DAMAGED
    assert parse_usage(used(peak_bytes=5) + b"\0", LIMIT_BYTES, ELAPSED_NS) == DAMAGED
    assert parse_usage(used(peak_bytes=5)[:-1], LIMIT_BYTES, ELAPSED_NS) == DAMAGED


VALUES = {
    "used_bytes": LIMIT_BYTES,
    "peak_bytes": LIMIT_BYTES,
    "oom_count": INT64_MAX,
    "gpu_busy_ns": ELAPSED_NS,
    "throttled_ns": ELAPSED_NS * c.USAGE_SLOT_COUNT,
    "device_oom_count": INT64_MAX,
}


@pytest.mark.parametrize(("name", "most"), VALUES.items())
def test_each_number_is_taken_up_to_its_own_bound_and_cut_there(name: str, most: int) -> None:
    width = c.USAGE_FIELDS[name][1]
    most = min(most, 2 ** (8 * width) - 1)
    zeros = dict.fromkeys(VALUES, 0)
    found = parse_usage(used(**{name: most}), LIMIT_BYTES, ELAPSED_NS)
    assert found == Usage("ok", **zeros | {name: most})
    if most < 2 ** (8 * width) - 1:
        found = parse_usage(used(**{name: most + 1}), LIMIT_BYTES, ELAPSED_NS)
        assert found == Usage("damaged", **zeros | {name: most})


def test_a_limit_and_a_time_that_nobody_has_bound_everything_by_what_a_record_holds() -> None:
    found = parse_usage(used(used_bytes=2**64 - 1, throttled_ns=2**64 - 1), 2**70, INT64_MAX)
    assert found == Usage("damaged", INT64_MAX, 0, 0, 0, INT64_MAX, 0)
    assert parse_usage(used(used_bytes=1), -1, ELAPSED_NS) == DAMAGED


@pytest.mark.parametrize("slot", [0, 1, c.USAGE_SLOT_COUNT - 1])
def test_the_time_of_a_slot_counts_when_its_state_is_not_zero(slot: int) -> None:
    base = USAGE_FILE_SIZE - c.USAGE_SLOT_SIZE * (c.USAGE_SLOT_COUNT - slot)
    data = used(gpu_busy_ns=10, throttled_ns=20)
    for name, value in (("gpu_busy_ns", 1), ("throttled_ns", 2)):
        data = field(name, value, data, c.USAGE_SLOT_FIELDS, base)
    assert parse_usage(data, LIMIT_BYTES, ELAPSED_NS)[4:6] == (10, 20)
    width = c.USAGE_SLOT_FIELDS["state"][1]
    for state in (0x58 << 8 * byte for byte in range(width)):
        in_use = field("state", state, data, c.USAGE_SLOT_FIELDS, base)
        assert parse_usage(in_use, LIMIT_BYTES, ELAPSED_NS) == Usage("ok", 0, 0, 0, 11, 22, 0)
    assert parse_usage(field("state", 257, data, c.USAGE_SLOT_FIELDS, base), LIMIT_BYTES, ELAPSED_NS)[4] == 11


def test_every_slot_counts_whatever_its_state_is() -> None:
    data = FRESH
    for slot in range(c.USAGE_SLOT_COUNT):
        base = USAGE_FILE_SIZE - c.USAGE_SLOT_SIZE * (slot + 1)
        width = c.USAGE_SLOT_FIELDS["state"][1]
        data = field("state", b" " * width, data, c.USAGE_SLOT_FIELDS, base)
        if slot < 3:
            data = field("gpu_busy_ns", 5, data, c.USAGE_SLOT_FIELDS, base)
    assert parse_usage(data, LIMIT_BYTES, ELAPSED_NS).gpu_busy_ns == 15


def test_the_head_of_a_usage_file_gives_its_counts_bounded() -> None:
    head = empty_usage_head()
    assert parse_usage_head(head) == Counts(0, 0, 0)
    for number, name in enumerate(Counts._fields):
        offset, width, _kind = c.USAGE_FIELDS[name]
        for value, expected in ((5, 5), (2**64 - 1, 2**63 - 1)):
            data = head[:offset] + value.to_bytes(width, "little") + head[offset + width :]
            counts = parse_usage_head(data)
            assert counts is not None
            assert counts[number] == expected
            assert sum(counts) == expected
    assert parse_usage_head(head[:-1]) is None
    assert parse_usage_head(head + b"\0") is None
    for name in ("magic", "abi_version"):
        offset = c.USAGE_FIELDS[name][0]
        assert parse_usage_head(head[:offset] + bytes([head[offset] ^ 1]) + head[offset + 1 :]) is None


def test_requests_and_pauses_in_a_usage_record_become_quantiles_and_counts() -> None:
    buckets = [0] * c.LATENCY_BUCKETS
    buckets[0], buckets[10], buckets[20] = 50, 49, 1
    raw = b"".join(count.to_bytes(8, "little") for count in buckets)
    data = field("latency_buckets", raw, used(latency_sum_ns=9, slo_miss_count=3), c.USAGE_FIELDS)
    data = field("pause_count", 4, field("floor_hit_count", 5, data, c.USAGE_FIELDS), c.USAGE_FIELDS)
    usage = parse_usage(data, LIMIT_BYTES, ELAPSED_NS)
    assert usage == Usage(
        "ok", 0, 0, 0, 0, 0, 0, request_count=100, latency_p50_us=64, latency_p99_us=64 * 32, latency_sum_ns=9,
        slo_miss_count=3, floor_hit_count=5, pause_count=4,
    )  # fmt: skip
    forged = parse_usage(field("slo_miss_count", 101, data, c.USAGE_FIELDS), LIMIT_BYTES, ELAPSED_NS)
    assert (forged.state, forged.slo_miss_count) == ("damaged", 100), "more misses than requests"
    record = usage_record(GRANT._replace(slo_us=10_000), usage, 10**18)
    assert (record["slo_us"], record["request_count"], record["latency_p99_us"]) == (10_000, 100, 2048)


def test_sizes_in_a_limits_record_are_whole_mib() -> None:
    data = field("gpu_total_bytes", (6 << 20) - 1, field("mem_limit_bytes", (5 << 20) + 7, pack_limits(GRANT)))
    found = parse_limits(data)
    assert found is not None
    assert (found.mem_mib, found.gpu_total_mib) == (5, 5)


def test_the_usage_record_of_an_ended_job_is_this_one() -> None:
    start, end = 1_700_000_000_999_999_999, 1_700_000_007_999_999_998
    grant = GRANT._replace(model="h200", created_unix_ns=start)
    assert usage_record(grant, Usage("ok", 1, 2, 3, 4, 5, 6), end) == c.SPOOL_DEFAULTS | {
        "version": 1,
        "job_id": 7,
        "uid": 65534,
        "class": "std",
        "mode": "share",
        "gpu_uuid": "GPU-1",
        "model": "h200",
        "mem_mib": 8192,
        "cores": 50,
        "start": 1_700_000_000,
        "end": 1_700_000_007,
        "start_unix_ns": start,
        "end_unix_ns": end,
        "usage": "ok",
        "peak_bytes": 2,
        "oom_count": 3,
        "device_oom_count": 6,
        "gpu_busy_ns": 4,
        "throttled_ns": 5,
    }
    assert usage_record(grant, DAMAGED, 5)["end_unix_ns"] == start, "never before its start"
