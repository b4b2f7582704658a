# SPDX-License-Identifier: Apache-2.0
"""The run directory: how a job's directory appears, what is believed in it, and how it goes."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.mounting import unmount_below
from node_testbed import Node, names_in

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.records import pack_limits
from hami_hpc.errors import NodeError
from hami_hpc.node import ended_dirs, gpu_jobs, job_dirs, mounts, sluids, usage_bounds, usage_files

GRANT = Grant(7, 65534, "GPU-1", 0, 143156, "", 8192, 50, "std", "cap", "share", 10**18)


def place(run_dir: str, grant: Grant) -> bool:
    return job_dirs.place(run_dir, (grant,), (pack_limits(grant),))


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


@pytest.mark.parametrize("before", [None, b"old\n"])
def test_a_file_that_differs_is_given_to_the_directory_that_is_there_and_its_usage_stays(
    run_dir: str, before: bytes | None
) -> None:
    """An epilog that was killed had removed it, or the run has another MIG instance since."""
    place(run_dir, GRANT)
    directory = Path(job_dirs.job_dir(run_dir, 7))
    usage, changed = directory / c.FILE_USAGE, directory / c.FILE_MPS
    usage.write_bytes(b"used" + usage.read_bytes()[4:])
    if before is not None:
        changed.write_bytes(before)
    assert job_dirs.place(run_dir, (GRANT,), (pack_limits(GRANT),), {c.FILE_MPS: b"1 /pipe\n"}) is False
    assert changed.read_bytes() == b"1 /pipe\n"
    assert usage.read_bytes()[:4] == b"used"
    assert not list(directory.glob(f"{job_dirs.NEW}*"))


def test_a_sluid_is_noted_where_slurm_names_cgroups_by_it_and_found_again(run_dir: str) -> None:
    place(run_dir, GRANT)
    assert sluids.jobs_by_sluid(run_dir) == {}
    sluids.note(run_dir, 7, "s00H5T7VE3QKG3")
    sluids.note(run_dir, 7, "s00H5T7VE3QKG4")
    assert sluids.jobs_by_sluid(run_dir) == {"s00H5T7VE3QKG4": 7}
    path = Path(job_dirs.job_dir(run_dir, 7)) / c.FILE_SLUID
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"s00H5T7VE3QKG4\n", 0o644)
    with pytest.raises(NodeError, match="jobs/8/sluid cannot be written: without it sessions by ssh are not limited"):
        sluids.note(run_dir, 8, "s00H5T7VE3QKG5")
    os.chown(path, 65534, 65534)
    assert sluids.jobs_by_sluid(run_dir) == {}, "not root's"


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
    assert usage_files.read_usage(directory, GRANT, 2 * 10**18).state == "missing"
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
    ended_dirs.remove_grant(run_dir, GRANT._replace(created_unix_ns=1))
    assert job_dirs.entries(run_dir) == ("7",)
    ended_dirs.remove_grant(run_dir, GRANT)
    assert job_dirs.entries(run_dir) == ()


def test_a_run_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NodeError, match="not a directory that only root can write"):
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


def test_a_usage_file_that_cannot_be_parsed_is_damaged(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> None:
        raise OverflowError("too much")

    place(run_dir, GRANT)
    monkeypatch.setattr(usage_files, "parse_usage", fails)
    assert usage_files.read_usage(job_dirs.job_dir(run_dir, 7), GRANT, 2 * 10**18).state == "damaged"


def test_a_directory_of_an_older_hami_hpc_shows_its_usage_and_is_removed(run_dir: str) -> None:
    place(run_dir, GRANT)
    directory = Path(job_dirs.job_dir(run_dir, 7))
    data = (directory / c.FILE_USAGE).read_bytes()
    mounts.detach(str(directory / job_dirs.SHARED))
    (directory / c.FILE_USAGE).unlink(missing_ok=True)
    (directory / job_dirs.SHARED).rmdir()
    (directory / "usage").write_bytes(data)
    assert usage_files.read_usage(str(directory), GRANT, 2 * 10**18).state == "ok"
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


@pytest.mark.parametrize(
    ("uid", "mode", "text"),
    [(1000, 0o755, r"uid 1000, mode 0755"), (0, 0o775, r"uid 0, mode 0775"), (0, 0o757, r"uid 0, mode 0757")],
)
@pytest.mark.parametrize("part", ["", "/jobs", "/self"])
def test_a_run_directory_that_another_can_write_is_refused(
    run_dir: str, part: str, uid: int, mode: int, text: str
) -> None:
    unmount_below(Path(run_dir).parent)
    os.chown(run_dir + part, uid, -1)
    Path(run_dir + part).chmod(mode)
    with pytest.raises(NodeError, match=f"{run_dir}{part} is not a directory that only root can write .{text}"):
        job_dirs.prepare(run_dir)


def test_who_is_not_root_is_told_so(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NodeError, match=f"^{run_dir} belongs to root: run this as root"):
        job_dirs.prepare(run_dir)


def test_of_two_who_make_a_directory_one_finds_that_of_the_other(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build = job_dirs._build

    def another_is_first(run_dir: str, job_id: int, files: dict[str, bytes], fill: Callable[[str], None] | None) -> str:
        monkeypatch.undo()
        assert place(run_dir, GRANT) is True
        return build(run_dir, job_id, files, fill)

    monkeypatch.setattr(job_dirs, "_build", another_is_first)
    assert place(run_dir, GRANT) is False
    assert job_dirs.entries(run_dir) == ("7",)


def test_a_directory_that_cannot_appear_is_told_and_nothing_half_made_stays(
    run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(source: str, target: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", source, None, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", read_only)
        with pytest.raises(NodeError, match=r"making the run directory of job 7 failed on .*: Read-only file system"):
            place(run_dir, GRANT)
    assert job_dirs.entries(run_dir) == ()
    (Path(job_dirs.job_dir(run_dir, 7)) / "x").mkdir(parents=True)
    tried: list[str] = []
    monkeypatch.setattr(job_dirs, "remove", lambda _run_dir, path: tried.append(path))
    with pytest.raises(NodeError, match=f"{run_dir}/jobs/7 was removed 20 times and appeared again"):
        place(run_dir, GRANT)
    assert tried == [f"{run_dir}/jobs/7"] * job_dirs.ATTEMPTS
    assert job_dirs.entries(run_dir) == ("7",)


def test_a_refusal_lies_alone_and_for_everybody_to_read_and_replaces_what_was_there(run_dir: str) -> None:
    place(run_dir, GRANT)
    job_dirs.place_refusal(run_dir, 7, "why")
    directory = Path(job_dirs.job_dir(run_dir, 7))
    assert names_in(directory) == [c.FILE_REFUSED]
    assert (directory / c.FILE_REFUSED).read_text() == "why\n"
    assert (directory / c.FILE_REFUSED).stat().st_mode & 0o777 == 0o644
    job_dirs.place_refusal(run_dir, 7, "another")
    assert (directory / c.FILE_REFUSED).read_text() == "another\n"
    assert job_dirs.entries(run_dir) == ("7",)


def test_a_mark_of_whole_gpus_is_made_once_for_each_message(run_dir: str) -> None:
    mark = Path(job_dirs.job_dir(run_dir, 7)) / c.FILE_WHOLE
    seen = []
    for message in ("all of it", "all of it", "all"):
        gpu_jobs.place_whole(run_dir, 7, message)
        assert mark.read_text() == f"{message}\n"
        seen.append((mark.stat().st_ino, mark.stat().st_ctime_ns))
    assert seen[0] == seen[1] != seen[2]
    os.chown(mark, 65534, -1)
    gpu_jobs.place_whole(run_dir, 7, "all")
    assert mark.stat().st_uid == 0, "not believed: root did not write it"
    assert job_dirs.entries(run_dir) == ("7",)


def test_what_is_set_aside_has_its_jobs_id_and_time_in_its_name(run_dir: str) -> None:
    place(run_dir, GRANT)
    aside = f"{run_dir}/jobs/.ended-7-{10**18}"
    assert ended_dirs.ended_dir(run_dir, GRANT) == aside
    ended_dirs.set_aside(run_dir, GRANT)
    ended_dirs.set_aside(run_dir, GRANT)
    assert job_dirs.entries(run_dir) == (Path(aside).name,)
    assert ended_dirs.ended_unix_ns(aside) == Path(aside).stat().st_ctime_ns
    place(run_dir, GRANT)
    with pytest.raises(NodeError, match="setting aside the run directory of job 7 failed on"):
        ended_dirs.set_aside(run_dir, GRANT)
    bad = ended_dirs.set_bad(run_dir, Path(aside).name)
    assert bad.startswith(f".bad-ended-7-{10**18}-")
    assert job_dirs.entries(run_dir) == (bad, "7")
    place(run_dir, GRANT._replace(job_id=8))
    assert job_dirs.ended_grants(run_dir) == (GRANT,), "not those of jobs that are here"
    assert ended_dirs.set_bad(run_dir, "gone").startswith(".bad-gone-")
    (Path(run_dir) / "jobs" / "a").write_text("")
    with pytest.raises(NodeError, match="setting aside a/b failed on"):
        ended_dirs.set_bad(run_dir, "a/b")


def test_held_are_the_grants_of_this_boot_in_the_order_of_their_ids(
    run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "has_file_system", lambda path: path == f"{run_dir}/jobs/9/{job_dirs.SHARED}")
    grants = [GRANT._replace(job_id=job_id, created_unix_ns=time) for job_id, time in ((7, 5), (10, 4), (8, 3), (9, 3))]
    for grant in grants:
        place(run_dir, grant)
    (Path(run_dir) / "jobs" / "x").mkdir()
    assert [grant.job_id for grant in job_dirs.held_grants(run_dir, 4)] == [7, 9, 10]


def test_what_cannot_be_listed_or_built_is_told_and_nothing_half_made_stays(
    run_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "the file")

    with monkeypatch.context() as patch:
        patch.setattr(job_dirs, "_create_usage", full)
        with pytest.raises(NodeError, match="making the run directory of job 7 failed on the file: No space left"):
            place(run_dir, GRANT)
    assert job_dirs.entries(run_dir) == ()
    assert job_dirs.entries(f"{run_dir}/nowhere") == ()
    (Path(run_dir) / "other").mkdir()
    (Path(run_dir) / "other" / "jobs").write_text("")
    with pytest.raises(NodeError, match=f"{run_dir}/other/jobs cannot be listed: Not a directory"):
        job_dirs.entries(f"{run_dir}/other")


def test_a_file_that_goes_while_a_directory_is_removed_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "7"
    directory.mkdir()
    (directory / "file").write_text("")
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["gone", *listdir(path)])
    job_dirs.remove_tree(str(directory))
    assert not directory.exists()
    job_dirs.remove_tree(str(directory))


def test_jobs_without_a_file_system_of_their_own_are_named(run_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for job_id in range(10, 20):
        place(run_dir, GRANT._replace(job_id=job_id))
    (Path(run_dir) / "jobs" / "10" / c.FILE_JOB_LIMITS).unlink()
    ended_dirs.set_aside(run_dir, GRANT._replace(job_id=19))
    monkeypatch.setattr(mounts, "obstacle", lambda: None)
    monkeypatch.setattr(mounts, "is_mount_point", lambda _path: False)
    assert usage_bounds.unbounded_usage(run_dir) == (
        "the usage file of job 11, 12, 13, 14, 15, 16, 17, 18 has no tmpfs of its own; see syslog"
    )


def test_a_directory_that_goes_while_it_is_emptied_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "7"
    directory.mkdir()
    rmdir = os.rmdir

    def twice(path: str) -> None:
        rmdir(path)
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", twice)
    job_dirs.remove_tree(str(directory))
    assert not directory.exists()


def test_a_run_directory_that_cannot_be_made_says_what_failed_and_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = f"{tmp_path}/file/run"
    with pytest.raises(NodeError, match=rf"^making the run directory failed on {path}: Not a directory\. "):
        job_dirs.prepare(path)
