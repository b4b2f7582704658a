# SPDX-License-Identifier: Apache-2.0
"""The run directory's records: root's limits, and a usage file that its user may fill with anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.mounting import can_mount
from hypothesis import example, given, settings
from hypothesis import strategies as st
from node_testbed import ROOT, UID, Node, unmount_below

from hami_hpc.accounting.sources import usage_records as spool_reader
from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import (
    USAGE_FILE_SIZE,
    empty_usage_head,
    pack_limits,
    parse_limits,
    parse_usage,
    usage_record,
)
from hami_hpc.errors import NodeError
from hami_hpc.node import admin_log, job_dirs, mounts, usage_spool

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


def place(run_dir: str, grant: Grant) -> bool:
    return job_dirs.place(run_dir, grant, pack_limits(grant))


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


@settings(max_examples=60)
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
    assert usage == ("ok", 0, 0, 0, 0, 0, 0)


def test_a_clock_that_went_back_does_not_make_times_negative() -> None:
    data = bytearray(empty_usage_head().ljust(USAGE_FILE_SIZE, b"\0"))
    offset, width, _ = c.USAGE_FIELDS["gpu_busy_ns"]
    data[offset : offset + width] = (5).to_bytes(width, "little")
    assert parse_usage(bytes(data), LIMIT_BYTES, -5).gpu_busy_ns == 0


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    path = str(tmp_path / "run")
    job_dirs.prepare(path)
    return path


def test_place_says_whether_it_made_the_directory(run_dir: str) -> None:
    assert place(run_dir, GRANT) is True
    assert place(run_dir, GRANT) is False
    assert job_dirs.read_grant(job_dirs.job_dir(run_dir, 7)) == GRANT


def test_a_directory_of_an_earlier_run_is_replaced(run_dir: str) -> None:
    place(run_dir, GRANT._replace(created_unix_ns=1))
    assert place(run_dir, GRANT) is True
    assert job_dirs.read_grant(job_dirs.job_dir(run_dir, 7)) == GRANT
    assert job_dirs.entries(run_dir) == ("7",)


@pytest.mark.parametrize("is_directory", [True, False])
def test_whatever_lies_in_the_way_is_replaced(run_dir: str, is_directory: bool) -> None:
    path = Path(job_dirs.job_dir(run_dir, 7))
    if is_directory:
        (path / "deep" / "er").mkdir(parents=True)
    else:
        path.write_text("not a directory")
    assert place(run_dir, GRANT) is True
    assert job_dirs.entries(run_dir) == ("7",)


def test_a_limits_record_that_root_does_not_own_is_not_believed(run_dir: str) -> None:
    place(run_dir, GRANT)
    os.chown(f"{job_dirs.job_dir(run_dir, 7)}/{c.FILE_JOB_LIMITS}", 65534, -1)
    assert job_dirs.read_grant(job_dirs.job_dir(run_dir, 7)) is None


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "none"])
def test_a_usage_file_that_is_no_regular_file_is_missing_usage(run_dir: str, kind: str) -> None:
    place(run_dir, GRANT)
    directory = job_dirs.job_dir(run_dir, 7)
    path = Path(directory) / c.FILE_USAGE
    path.unlink()
    if kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    assert job_dirs.read_usage(directory, GRANT, 2 * 10**18).state == "missing"
    job_dirs.remove(run_dir, directory)
    assert job_dirs.entries(run_dir) == ()
    assert Path("/etc/passwd").stat().st_size > 0


def test_nothing_below_a_link_is_removed(run_dir: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    place(run_dir, GRANT)
    (Path(job_dirs.job_dir(run_dir, 7)) / "link").symlink_to(kept)
    job_dirs.remove(run_dir, job_dirs.job_dir(run_dir, 7))
    assert (kept / "file").read_text() == "x"
    assert job_dirs.entries(run_dir) == ()


def test_removing_an_older_grant_leaves_the_directory_of_a_newer_one(run_dir: str) -> None:
    place(run_dir, GRANT)
    job_dirs.remove_grant(run_dir, GRANT._replace(created_unix_ns=1))
    assert job_dirs.entries(run_dir) == ("7",)
    job_dirs.remove_grant(run_dir, GRANT)
    assert job_dirs.entries(run_dir) == ()


def test_a_run_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NodeError, match="not a directory that root alone can write"):
        job_dirs.prepare(str(tmp_path / "run"))


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


GROW = """
import errno, os, sys
path, size = sys.argv[1], int(sys.argv[2])
os.truncate(path, 1 << 40)
with open(path, "r+b", buffering=0) as file:
    refused = []
    for attempt in (
        lambda: os.posix_fallocate(file.fileno(), 0, size + 1),
        lambda: os.pwrite(file.fileno(), bytes(1 << 20), size),
        lambda: os.setxattr(path, "user.x", bytes(60000)),
        lambda: os.link(path, path + ".2"),
        lambda: os.mkdir(path + ".d"),
        lambda: os.open(os.path.dirname(path), os.O_RDWR | os.O_TMPFILE),
    ):
        try:
            attempt()
        except OSError as error:
            refused.append(errno.errorcode[error.errno])
        else:
            refused.append("done")
    os.truncate(path, size)
    assert os.pwrite(file.fileno(), b"x" * size, 0) == size
print(*refused)
"""


def as_user(code: str, *arguments: str) -> list[str]:
    """Runs a Python program as the jobs' user; returns the words it prints."""
    user = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups"]
    command = [*user, "/usr/bin/env", "-i", "/usr/bin/python3", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def open_run_dir() -> Iterator[str]:
    """A run directory that other users reach: pytest's own folders are root's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        job_dirs.prepare(f"{folder}/run")
        yield f"{folder}/run"
        unmount_below(Path(folder))


def test_a_user_cannot_make_the_usage_file_grow(open_run_dir: str) -> None:
    place(open_run_dir, GRANT)
    path = f"{job_dirs.job_dir(open_run_dir, 7)}/{c.FILE_USAGE}"
    if not can_mount():
        assert job_dirs.unbounded_usage(open_run_dir) is not None
        return
    assert job_dirs.unbounded_usage(open_run_dir) is None
    refused = as_user(GROW, path, str(USAGE_FILE_SIZE))
    assert refused[:2] == ["ENOSPC", "ENOSPC"]
    assert refused[2] in ("ENOSPC", "EOPNOTSUPP"), "extended attributes take memory too"
    assert refused[3:] == ["EACCES"] * 3
    assert os.statvfs(path).f_blocks * os.statvfs(path).f_frsize == USAGE_FILE_SIZE
    job_dirs.remove(open_run_dir, job_dirs.job_dir(open_run_dir, 7))
    assert job_dirs.entries(open_run_dir) == ()


def test_what_is_mounted_does_not_spread_to_other_namespaces(tmp_path: Path) -> None:
    if not can_mount():
        assert mounts.make_private(str(tmp_path), str(tmp_path / "lock")) is False
        return
    shared = tmp_path / "shared"
    shared.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", shared], check=True)
    try:
        subprocess.run(["mount", "--make-shared", shared], check=True)
        run_dir = str(shared / "run")
        job_dirs.prepare(run_dir)
        place(run_dir, GRANT)
        assert mounts.propagates(run_dir)
        assert not mounts.propagates(job_dirs.jobs_dir(run_dir))
        assert not mounts.propagates(f"{job_dirs.job_dir(run_dir, 7)}/{job_dirs.SHARED}")
        assert job_dirs.unbounded_usage(run_dir) is None
    finally:
        subprocess.run(["umount", "--lazy", shared], check=True)


def test_many_who_prepare_at_once_mount_once(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.append({str(ROOT)!r}); from hami_hpc.node import job_dirs; job_dirs.prepare(sys.argv[1])"
    )
    for number in range(5):
        run_dir = str(tmp_path / f"run{number}")
        started = [subprocess.Popen([sys.executable, "-I", "-S", "-c", code, run_dir]) for _ in range(16)]
        assert [process.wait(timeout=60) for process in started] == [0] * 16
        mounted = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{run_dir}/" in line]
        assert len(mounted) == (1 if can_mount() else 0)


def test_without_mounts_the_job_runs_and_syslog_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda _level, line: lines.append(line))
    monkeypatch.setattr(mounts, "MOUNT", "/nonexistent/mount")
    run_dir = str(tmp_path / "run")
    job_dirs.prepare(run_dir)
    assert place(run_dir, GRANT) is True
    assert len(lines) == 1
    assert "usage files are not bounded" in lines[0]
    assert "there is no /nonexistent/mount" in lines[0]
    assert job_dirs.read_usage(job_dirs.job_dir(run_dir, 7), GRANT, 2 * 10**18).state == "ok"
    assert "no tmpfs can be mounted" in (job_dirs.unbounded_usage(run_dir) or "")
    job_dirs.remove(run_dir, job_dirs.job_dir(run_dir, 7))
    assert job_dirs.entries(run_dir) == ()


def test_a_process_that_may_not_mount_knows_it(tmp_path: Path) -> None:
    """As in a container that was given no CAP_SYS_ADMIN."""
    node = Node.make(tmp_path / "node", with_gpus=False)
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from pathlib import Path; from node_testbed import Node; from hami_hpc.node import mounts\n"
        "node = Node(Path(sys.argv[3])); node.enter_gpus(); assert node.prolog(7) == 0\n"
        "assert 'CAP_SYS_ADMIN' in mounts.obstacle(); assert node.epilog(7) == 0; assert node.names() == []"
    )
    caps = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    command = [*caps, sys.executable, "-c", code, str(ROOT), str(Path(__file__).parent), str(node.root)]
    subprocess.run(command, check=True)


def test_a_usage_file_that_cannot_be_parsed_is_damaged(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> None:
        raise OverflowError("too much")

    place(run_dir, GRANT)
    monkeypatch.setattr(job_dirs, "parse_usage", fails)
    assert job_dirs.read_usage(job_dirs.job_dir(run_dir, 7), GRANT, 2 * 10**18).state == "damaged"


def test_a_directory_of_an_older_hami_hpc_shows_its_usage_and_is_removed(run_dir: str) -> None:
    place(run_dir, GRANT)
    directory = Path(job_dirs.job_dir(run_dir, 7))
    data = (directory / c.FILE_USAGE).read_bytes()
    mounts.detach(str(directory / job_dirs.SHARED))
    (directory / c.FILE_USAGE).unlink(missing_ok=True)
    (directory / job_dirs.SHARED).rmdir()
    (directory / "usage").write_bytes(data)
    assert job_dirs.read_usage(str(directory), GRANT, 2 * 10**18).state == "ok"
    job_dirs.remove(run_dir, str(directory))
    assert job_dirs.entries(run_dir) == ()


@pytest.mark.parametrize("lost", ["", "jobs", "self"])
def test_parts_of_the_run_directory_that_are_gone_are_made_again(tmp_path: Path, lost: str) -> None:
    node = Node.make(tmp_path / "node")
    unmount_below(node.root)
    shutil.rmtree(node.root / "run" / lost)
    if lost == "":
        node.enter_gpus()
    assert node.prolog(7) == 0
    node.assert_job_is_ready(7)
    assert node.epilog(7) == 0
    node.assert_nothing_is_held()


def test_a_link_in_place_of_a_job_directory_goes_and_what_it_points_at_stays(tmp_path: Path) -> None:
    node = Node.make(tmp_path / "node")
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    (kept / "inner" / "file").write_text("x")
    (kept / "file").write_text("x")
    link = node.jobs / "7"
    link.symlink_to(kept)
    job_dirs.remove(node.settings.run_dir, str(link))
    assert node.names() == []
    assert (kept / "file").read_text() == (kept / "inner" / "file").read_text() == "x"


def test_what_is_bound_below_a_job_directory_is_unmounted_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bind mount of the same file system has its device number, too."""
    if not can_mount():
        return
    directory, kept = tmp_path / "7", tmp_path / "kept"
    (directory / "bound").mkdir(parents=True)
    kept.mkdir()
    (kept / "file").write_text("x")
    subprocess.run(["mount", "--bind", kept, directory / "bound"], check=True)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(mounts, "UMOUNT", "/nonexistent/umount")
            with pytest.raises(NodeError, match="busy"):
                job_dirs.remove_tree(str(directory))
        assert (kept / "file").read_text() == "x"
        job_dirs.remove_tree(str(directory))
        assert not directory.exists()
        assert (kept / "file").read_text() == "x"
    finally:
        unmount_below(tmp_path)
