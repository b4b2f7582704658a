# SPDX-License-Identifier: Apache-2.0
"""The run directory's records: root's limits, and a usage file that its user may fill with anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from node_testbed import Node

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import USAGE_FILE_SIZE, empty_usage_head, pack_limits, parse_limits, parse_usage
from hami_hpc.errors import NodeError
from hami_hpc.shell import region

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
    service_class=st.sampled_from(sorted(c.CLASSES)),
    policy=st.sampled_from(sorted(c.POLICIES)),
    mode=st.sampled_from(sorted(c.MODES)),
    created_unix_ns=st.integers(0, 2**63 - 1),
    phase_percent=st.integers(0, 99),
)
GRANT = Grant(7, 65534, "GPU-1", 0, 143156, "", 8192, 50, "std", "cap", "share", 10**18)
LIMIT_BYTES, ELAPSED_NS = 8192 << 20, 10**9


@given(ANY_GRANT)
def test_a_limits_record_reads_back_as_the_grant_it_was_made_of(grant: Grant) -> None:
    record = pack_limits(grant)
    assert len(record) == c.LIMITS_SIZE
    assert parse_limits(record) == grant


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


def assert_bounded(data: bytes) -> None:
    usage = parse_usage(data, LIMIT_BYTES, ELAPSED_NS)
    assert usage.state in ("ok", "damaged")
    assert 0 <= usage.used_bytes <= LIMIT_BYTES
    assert 0 <= usage.peak_bytes <= LIMIT_BYTES
    assert 0 <= usage.oom_count < 2**63
    assert 0 <= usage.gpu_busy_ns <= ELAPSED_NS
    assert 0 <= usage.throttled_ns <= ELAPSED_NS * c.USAGE_SLOT_COUNT


@given(st.binary(max_size=3 * c.USAGE_SIZE))
def test_any_bytes_give_bounded_usage(data: bytes) -> None:
    assert_bounded(data)


@settings(max_examples=60)
@given(head=st.binary(min_size=c.USAGE_SIZE - 16, max_size=c.USAGE_SIZE - 16), seed=st.binary(min_size=1, max_size=64))
def test_any_content_behind_a_good_header_gives_bounded_usage(head: bytes, seed: bytes) -> None:
    body = head + seed * (USAGE_FILE_SIZE // len(seed) + 1)
    assert_bounded((empty_usage_head()[:16] + body)[:USAGE_FILE_SIZE])


def test_a_fresh_usage_file_reads_as_nothing_used() -> None:
    usage = parse_usage(empty_usage_head().ljust(USAGE_FILE_SIZE, b"\0"), LIMIT_BYTES, ELAPSED_NS)
    assert usage == ("ok", 0, 0, 0, 0, 0)


def test_a_clock_that_went_back_does_not_make_times_negative() -> None:
    data = bytearray(empty_usage_head().ljust(USAGE_FILE_SIZE, b"\0"))
    offset, width, _ = c.USAGE_FIELDS["gpu_busy_ns"]
    data[offset : offset + width] = (5).to_bytes(width, "little")
    assert parse_usage(bytes(data), LIMIT_BYTES, -5).gpu_busy_ns == 0


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    path = str(tmp_path / "run")
    region.prepare(path)
    return path


def test_place_says_whether_it_made_the_directory(run_dir: str) -> None:
    assert region.place(run_dir, GRANT) is True
    assert region.place(run_dir, GRANT) is False
    assert region.read_grant(region.job_dir(run_dir, 7)) == GRANT


def test_a_directory_of_an_earlier_run_is_replaced(run_dir: str) -> None:
    region.place(run_dir, GRANT._replace(created_unix_ns=1))
    assert region.place(run_dir, GRANT) is True
    assert region.read_grant(region.job_dir(run_dir, 7)) == GRANT
    assert region.entries(run_dir) == ("7",)


@pytest.mark.parametrize("is_directory", [True, False])
def test_whatever_lies_in_the_way_is_replaced(run_dir: str, is_directory: bool) -> None:
    path = Path(region.job_dir(run_dir, 7))
    if is_directory:
        (path / "deep" / "er").mkdir(parents=True)
    else:
        path.write_text("not a directory")
    assert region.place(run_dir, GRANT) is True
    assert region.entries(run_dir) == ("7",)


def test_a_limits_record_that_root_does_not_own_is_not_believed(run_dir: str) -> None:
    region.place(run_dir, GRANT)
    os.chown(f"{region.job_dir(run_dir, 7)}/{c.FILE_JOB_LIMITS}", 65534, -1)
    assert region.read_grant(region.job_dir(run_dir, 7)) is None


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "none"])
def test_a_usage_file_that_is_no_regular_file_is_missing_usage(run_dir: str, kind: str) -> None:
    region.place(run_dir, GRANT)
    path = Path(region.job_dir(run_dir, 7)) / c.FILE_USAGE
    path.unlink()
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    assert region.read_usage(str(path.parent), GRANT, 2 * 10**18).state == "missing"
    region.remove(run_dir, str(path.parent))
    assert region.entries(run_dir) == ()
    assert Path("/etc/passwd").stat().st_size > 0


def test_nothing_below_a_link_is_removed(run_dir: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    region.place(run_dir, GRANT)
    (Path(region.job_dir(run_dir, 7)) / "link").symlink_to(kept)
    region.remove(run_dir, region.job_dir(run_dir, 7))
    assert (kept / "file").read_text() == "x"
    assert region.entries(run_dir) == ()


def test_removing_an_older_grant_leaves_the_directory_of_a_newer_one(run_dir: str) -> None:
    region.place(run_dir, GRANT)
    region.remove_grant(run_dir, GRANT._replace(created_unix_ns=1))
    assert region.entries(run_dir) == ("7",)
    region.remove_grant(run_dir, GRANT)
    assert region.entries(run_dir) == ()


def test_a_run_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NodeError, match="not a directory that root alone can write"):
        region.prepare(str(tmp_path / "run"))


def test_a_umask_does_not_close_the_run_directory_to_the_jobs_user(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        node = Node.make(tmp_path / "node")
        assert node.prolog(7) == 0
    finally:
        os.umask(old)
    node.assert_job_is_ready(7)
    for path in (node.root / "run", node.jobs, node.jobs / "7", node.root / "run" / "self"):
        assert path.stat().st_mode & 0o777 == 0o755
