# SPDX-License-Identifier: Apache-2.0
"""mode=mps: one daemon per GPU and user, from the first job to the last, with the jobs' limits."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from mps_testbed import OTHER_UID, PROGRAM, MpsNode
from node_testbed import UID, UUIDS

from hami_hpc.contract import constants as c
from hami_hpc.isolation.mps import priority_of
from hami_hpc.node import mps, mps_daemon, mps_processes
from hami_hpc.node.mps_daemon import MpsError
from hami_hpc.stages.reconcile import reconcile


@pytest.fixture
def node(mps_node: MpsNode) -> MpsNode:
    return mps_node


def ask(node: MpsNode, command: str, uid: int = UID) -> str:
    return mps_daemon.ask(str(PROGRAM), node.place(uid), command)


def test_the_first_job_starts_a_daemon_and_the_last_one_ends_it(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    node.assert_one_daemon(7)
    pid = node.pid()
    assert node.mps_prolog(8, mem_mib=4096) == 0
    node.assert_one_daemon(7, 8)
    assert node.pid() == pid, "the same daemon"
    assert node.mps_epilog(7) == 0
    node.assert_one_daemon(8)
    assert node.mps_epilog(8) == 0
    node.assert_no_mps()
    node.assert_nothing_is_held()
    assert [node.record(f"{job}.json")["mode"] for job in (7, 8)] == ["mps", "mps"]


def test_a_prolog_that_runs_twice_changes_nothing(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    pid = node.pid()
    assert node.mps_prolog(7) == 0
    assert node.pid() == pid
    node.assert_one_daemon(7)
    assert node.mps_epilog(7) == 0
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_a_daemon_of_an_older_version_gets_the_file_of_its_clients_with_the_next_job(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    path = Path(node.place().pipe, c.FILE_MPS_CLIENTS)
    path.unlink()
    assert node.mps_prolog(8) == 0
    node.assert_one_daemon(7, 8)
    path.write_bytes(b"of clients")
    os.chown(path, 0, 0)  # who made it was killed before it was the user's
    assert node.mps_prolog(9) == 0
    node.assert_one_daemon(7, 8, 9)
    assert path.read_bytes() == b"of clients", "it is in use"
    assert [node.mps_epilog(job) for job in (7, 8, 9)] == [0, 0, 0]
    node.assert_no_mps()


def test_each_user_and_each_gpu_has_a_daemon_of_its_own(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    assert node.mps_prolog(8, OTHER_UID) == 0
    assert node.mps_prolog(9, gpu="1") == 0
    assert node.controls() == ["0-65533", "0-65534", "1-65534"]
    assert node.mps_epilog(7) == 0
    assert node.controls() == ["0-65533", "1-65534"]
    assert (node.mps_epilog(8, OTHER_UID), node.mps_epilog(9, gpu="1")) == (0, 0)
    node.assert_no_mps()


def test_the_daemon_gives_a_client_what_the_largest_job_has(node: MpsNode) -> None:
    """Each job's own limits are in its environment; the daemon bounds what a user can make of that."""
    assert node.mps_prolog(7, mem_mib=2048, HAMI_HPC_CORES="25") == 0
    assert ask(node, "get_default_active_thread_percentage") == "25.0"
    assert ask(node, "get_default_device_pinned_mem_limit 0") == "2048M"
    assert node.mps_prolog(8, mem_mib=8192, HAMI_HPC_CORES="75") == 0
    assert ask(node, "get_default_active_thread_percentage") == "75.0"
    assert node.mps_epilog(8) == 0
    assert ask(node, "get_default_active_thread_percentage") == "25.0"
    assert ask(node, "get_default_device_pinned_mem_limit 0") == "2048M"
    assert node.mps_epilog(7) == 0


def test_the_daemon_has_one_gpu_and_nothing_of_the_jobs_environment(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_LOG_DIRECTORY",
        "SLURM_JOB_ID",
        "SPANK_X",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
    ):
        monkeypatch.setenv(name, "of-the-job")
    assert node.mps_prolog(7) == 0
    environment = dict(
        part.split("=", 1) for part in Path(f"/proc/{node.pid()}/environ").read_text().split("\0") if "=" in part
    )
    assert "of-the-job" not in environment.values()
    assert environment["CUDA_VISIBLE_DEVICES"] == UUIDS[0]
    path = f"{PROGRAM.resolve().parent}:{mps_daemon.SYSTEM_PATH}"
    assert environment["PATH"] == path, "where it looks for its server"
    assert node.mps_epilog(7) == 0


def test_the_jobs_directory_says_where_its_daemon_is(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    path = node.jobs / "7" / c.FILE_MPS
    assert path.read_text() == f"1 {node.place().pipe}\n"
    assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (0, 0o644)
    grant = node.grants()[7]
    assert (grant.mode, grant.policy) == ("mps", "none"), "the interposer leaves the time to MPS"
    assert node.mps_epilog(7) == 0


def test_the_priority_follows_the_class(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    grant = node.grants()[7]
    assert priority_of(grant) == 1
    assert priority_of(grant._replace(latency=1)) == 0
    assert priority_of(grant._replace(class_priority=5)) == 0
    assert node.mps_epilog(7) == 0


def test_only_the_user_can_enter_the_pipe_directory_and_nobody_the_logs(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    place = node.place()

    def can(uid: int, *command: str) -> bool:
        return subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True).returncode == 0

    assert can(UID, "ls", place.pipe)
    assert not can(OTHER_UID, "ls", place.pipe)
    assert not can(OTHER_UID, "test", "-e", f"{place.pipe}/control")
    assert not can(UID, "touch", f"{place.pipe}/x")
    assert not can(UID, "rm", "-f", f"{place.pipe}/control")
    for path in (place.log, place.jobs):
        assert not can(UID, "ls", path)
    assert node.mps_epilog(7) == 0


def test_the_log_cannot_fill_the_nodes_memory(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    size = os.statvfs(node.place().log)
    assert size.f_blocks * size.f_frsize <= 1 << 20
    with suppress(OSError), Path(node.place().log, "x").open("wb") as file:
        file.write(bytes(2 << 20))
    assert node.mps_prolog(8) == 0
    node.assert_one_daemon(7, 8)
    assert (node.mps_epilog(7), node.mps_epilog(8)) == (0, 0)
    node.assert_no_mps()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_hung_daemon_is_replaced_and_its_jobs_are_kept(node: MpsNode, sent: signal.Signals) -> None:
    assert node.mps_prolog(7) == 0
    first = node.pid()
    os.kill(first, sent)
    assert node.mps_prolog(8) == 0
    node.assert_one_daemon(7, 8)
    assert node.pid() != first
    assert (node.mps_epilog(7), node.mps_epilog(8)) == (0, 0)
    node.assert_no_mps()


def test_a_daemon_that_hangs_on_quit_is_killed(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    node.fault("quit hang")
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()
    node.assert_nothing_is_held()


@pytest.mark.parametrize("fault", ["start hang", "start die"])
def test_a_daemon_that_does_not_start_fails_the_prolog_and_leaves_nothing(
    node: MpsNode, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mps_daemon, "START_S", 0.5)
    node.fault(fault)
    assert node.mps_prolog(7) == 1
    assert "nvidia-cuda-mps-control for GPU 0" in capsys.readouterr().err
    assert node.daemons() == ()
    node.fault()
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()
    node.assert_nothing_is_held()


def test_a_daemon_that_dies_when_it_is_asked_is_replaced(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    node.fault("set_default_active_thread_percentage die")
    assert node.mps_prolog(8) == 1
    node.fault()
    assert node.mps_prolog(8) == 0
    node.assert_one_daemon(7, 8)
    assert (node.mps_epilog(7), node.mps_epilog(8)) == (0, 0)
    node.assert_no_mps()


def test_a_program_that_is_missing_or_not_roots_is_named(node: MpsNode, capsys: pytest.CaptureFixture[str]) -> None:
    for program, text in (("/nonexistent/x", "No such file"), (node.root / "x", "can be changed by others")):
        if program == node.root / "x":
            (node.root / "x").write_text("")
            (node.root / "x").chmod(0o777)
        node.write_settings(program=program)
        assert node.mps_prolog(7) == 1
        assert text in capsys.readouterr().err
        assert node.mps_epilog(7) == 0
    node.assert_nothing_is_held()


def test_a_daemon_outlives_another_path_of_its_program_and_ends_with_its_last_job(node: MpsNode) -> None:
    """As after an update of the driver's package, or of `control` in the settings: its clients go on."""
    old = node.root / "old"
    old.mkdir()
    for path in (PROGRAM, PROGRAM.with_name(mps_processes.SERVER_NAME)):
        shutil.copy(path, old)
    node.write_settings(program=old / PROGRAM.name)
    assert node.mps_prolog(7) == 0
    (daemon,) = node.daemons()
    assert daemon.program == str(old / PROGRAM.name)
    node.write_settings()
    assert node.mps_prolog(8) == 0
    assert node.daemons() == (daemon,), "one daemon, and the same one"
    assert {member.job_id for member in mps.members(node.place())} == {7, 8}
    assert node.mps_epilog(7) == 0
    assert node.mps_epilog(8) == 0
    node.assert_no_mps()


def test_no_program_that_others_can_change_is_run_after_the_prolog_either(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    program = node.root / mps_processes.CONTROL_NAME
    program.write_text(f"#!/bin/sh\ntouch {node.root}/ran\n")
    program.chmod(0o777)
    node.write_settings(program=program)
    texts = [result.error for result in reconcile(node.settings, lambda: frozenset((7,)), dry_run=False)]
    assert any("can be changed by others than root" in str(text) for text in texts)
    assert node.mps_epilog(7) == 0
    assert not (node.root / "ran").exists()
    node.assert_no_mps()


def test_a_run_directory_whose_path_is_too_long_is_named(node: MpsNode, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MpsError, match="too long a path for the sockets"):
        mps.hold(
            str(PROGRAM), node.place()._replace(run_dir=str(_deep(node.root))), UUIDS[0], mps_daemon.Member(7, 1, 5, 5)
        )


def _deep(root: Path) -> Path:
    deep = root / ("d" * 90)
    deep.mkdir()
    return deep


def test_a_foreign_daemon_is_left_alone(node: MpsNode, tmp_path: Path) -> None:
    pipe = node.root / "foreign"
    pipe.mkdir()
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "PATH": os.environ["PATH"]}
    subprocess.run([PROGRAM, "-d"], env=environment, check=True, timeout=10)
    found = mps_processes.daemons_at(str(pipe), str(PROGRAM))
    try:
        place = node.place()
        node.mps_prolog(6)
        node.mps_epilog(6)
        lines = mps.hold(str(PROGRAM), place, UUIDS[0], mps_daemon.Member(7, 1, 50, 64))
        assert [line for line in lines if str(found[0].pid) in line and "left alone" in line]
        mps.leave(str(PROGRAM), place, mps_daemon.Member(7, 1, 50, 64))
        reconcile(node.settings, frozenset, dry_run=False)
        assert mps_processes.daemons_at(str(pipe), str(PROGRAM)) == found
    finally:
        mps_processes.kill(found, 5)


def test_two_prologs_and_an_epilog_at_once_leave_one_daemon_or_none(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    for turn in range(8):
        first, second = 100 + 2 * turn, 101 + 2 * turn
        stages = [
            node.start("epilog", sim(node) | node.environment(first - 2 if turn else 7)),
            node.start("prolog", sim(node) | node.environment(first)),
            node.start("prolog", sim(node) | node.environment(second)),
        ]
        errors = [stage.communicate(timeout=60)[1] for stage in stages]
        assert [stage.returncode for stage in stages] == [0, 0, 0], errors
        assert node.mps_epilog(second) == 0
        node.assert_one_daemon(first)
    ends = [node.start("epilog", sim(node) | node.environment(100 + 2 * 7)) for _ in range(3)]
    assert [end.communicate(timeout=60)[1] for end in ends] == ["", "", ""]
    node.assert_no_mps()
    node.assert_nothing_is_held()


def sim(node: MpsNode) -> dict[str, str]:
    return {"HAMI_SIM": str(node.root.parent / "sim"), "PATH": "/usr/bin:/bin"}


def test_many_jobs_of_one_user_that_come_and_go_leave_nothing(node: MpsNode) -> None:
    place, failures = node.place(), []
    assert node.mps_prolog(7) == 0

    def come_and_go(job: int) -> None:
        for turn in range(10):
            member = mps_daemon.Member(job, turn + 1, 10, 64)
            try:
                mps.hold(str(PROGRAM), place, UUIDS[0], member)
                if not mps_daemon.answers(str(PROGRAM), place):
                    failures.append(f"job {job}: no answer while it holds its daemon")
                mps.leave(str(PROGRAM), place, member)
            except Exception as error:
                failures.append(repr(error))

    assert node.mps_epilog(7) == 0
    threads = [threading.Thread(target=come_and_go, args=(1000 + n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    node.assert_no_mps()


def test_one_server_for_all_users_where_the_site_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with MpsNode.running(multi_user=True) as node:
        monkeypatch.setenv("HAMI_SIM", str(node.root.parent / "sim"))
        assert (node.mps_prolog(7), node.mps_prolog(8, OTHER_UID)) == (0, 0)
        assert node.controls() == ["0-all"]
        clients = Path(node.settings.run_dir, mps_daemon.FOLDER, "0-all", c.FILE_MPS_CLIENTS).stat()
        assert (clients.st_uid, stat.S_IMODE(clients.st_mode)) == (0, 0o666)
        assert "-M" in Path(f"/proc/{node.daemons()[0].pid}/cmdline").read_text().split("\0")
        assert node.mps_epilog(7) == 0
        assert node.controls() == ["0-all"]
        node.write_settings(multi_user=False)  # changed while job 8 runs
        assert node.mps_epilog(8, OTHER_UID) == 0
        node.assert_no_mps()


def test_jobs_of_an_earlier_boot_do_not_keep_a_daemon(node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.mps_prolog(7) == 0
    [marker] = Path(node.place().jobs).iterdir()
    marker.write_text("another-boot 50 8192\n")
    Path(node.place().jobs, "5-5").write_text("another-boot 50 8192\n")
    assert mps.members(node.place()) == ()
    assert node.mps_prolog(8) == 0
    node.assert_one_daemon(8)
    assert node.mps_epilog(8) == 0
    node.assert_no_mps()


def test_a_requeued_job_whose_epilog_never_came_has_one_place(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    assert node.mps_prolog(7, mem_mib=4096) == 0  # its next run
    node.assert_one_daemon(7)
    assert len(mps.members(node.place())) == 1
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_a_requeued_job_on_another_gpu_leaves_no_daemon(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    assert node.mps_prolog(7, gpu="1") == 0
    assert node.controls() == [f"1-{UID}"]
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()
