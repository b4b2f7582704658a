# SPDX-License-Identifier: Apache-2.0
"""The run directory's mounts: a usage file that cannot grow, and what is mounted below a job's directory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.mounting import can_mount, unmount_below
from node_testbed import ROOT, UID, Node

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import USAGE_FILE_SIZE, pack_limits
from hami_hpc.errors import NodeError
from hami_hpc.node import admin_log, job_dirs, mount_calls, mounts, usage_bounds, usage_files

GRANT = Grant(7, 65534, "GPU-1", 0, 143156, "", 8192, 50, "std", "cap", "share", 10**18)


def place(run_dir: str, grant: Grant) -> bool:
    return job_dirs.place(run_dir, (grant,), (pack_limits(grant),))


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
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        job_dirs.prepare(f"{folder}/run")
        yield f"{folder}/run"
        unmount_below(Path(folder))


def test_a_user_cannot_make_the_usage_file_grow(open_run_dir: str) -> None:
    place(open_run_dir, GRANT)
    path = f"{job_dirs.job_dir(open_run_dir, 7)}/{c.FILE_USAGE}"
    if not can_mount():
        assert usage_bounds.unbounded_usage(open_run_dir) is not None
        return
    assert usage_bounds.unbounded_usage(open_run_dir) is None
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
        assert usage_bounds.unbounded_usage(run_dir) is None
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
    monkeypatch.setattr(admin_log, "to_syslog", lambda level, line: lines.append(f"{level} {line}"))
    monkeypatch.setattr(mounts, "MOUNT", "/nonexistent/mount")
    run_dir = str(tmp_path / "run")
    job_dirs.prepare(run_dir)
    assert place(run_dir, GRANT) is True
    assert len(lines) == 1
    assert lines[0].startswith(f"{admin_log.WARNING} prolog: usage files are not bounded, a user can fill {run_dir}: ")
    assert "there is no /nonexistent/mount" in lines[0]
    assert usage_files.read_usage(job_dirs.job_dir(run_dir, 7), GRANT, 2 * 10**18).state == "ok"
    assert "no tmpfs can be mounted" in (usage_bounds.unbounded_usage(run_dir) or "")
    job_dirs.remove(run_dir, job_dirs.job_dir(run_dir, 7))
    assert job_dirs.entries(run_dir) == ()


def test_a_process_that_may_not_mount_knows_it(tmp_path: Path) -> None:
    """As in a container that was given no CAP_SYS_ADMIN."""
    node = Node.make(tmp_path / "node", with_gpus=False)
    code = (
        "import sys; sys.path[:0] = sys.argv[1:4]\n"
        "from pathlib import Path; from node_testbed import Node; from hami_hpc.node import mounts\n"
        "node = Node(Path(sys.argv[4])); node.enter_gpus(); assert node.prolog(7) == 0\n"
        "assert 'CAP_SYS_ADMIN' in mounts.obstacle(); assert node.epilog(7) == 0; assert node.names() == []"
    )
    caps = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    paths = [ROOT, ROOT / "tests/unit", ROOT / "tests/cluster", node.root]
    command = [*caps, sys.executable, "-c", code, *map(str, paths)]
    subprocess.run(command, check=True)


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
            patch.setattr(mount_calls, "detach", lambda path: None)
            patch.setattr(mounts, "UMOUNT", "/nonexistent/umount")
            with pytest.raises(NodeError, match=f"failed on {directory}/bound: Device or resource busy"):
                job_dirs.remove_tree(str(directory))
        assert (kept / "file").read_text() == "x"
        job_dirs.remove_tree(str(directory))
        assert not directory.exists()
        assert (kept / "file").read_text() == "x"
    finally:
        unmount_below(tmp_path)
