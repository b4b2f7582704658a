# SPDX-License-Identifier: Apache-2.0
"""mode=mps against users who write what a user can write, and against full, read-only and stolen directories."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness.mounting import can_mount
from mps_testbed import PROGRAM, MpsNode, client
from node_testbed import UID, UUIDS
from watcher_testbed import watched_node

from hami_hpc.node import acl, locks, mps, mps_daemon, mps_processes
from hami_hpc.node.mps_daemon import MpsError
from hami_hpc.stages.reconcile import reconcile

MEMBER = mps_daemon.Member(7, 1, 50, 1024)


@pytest.fixture
def node(mps_node: MpsNode) -> MpsNode:
    return mps_node


def as_user(node: MpsNode, command: str, uid: int = UID) -> str:
    """What the daemon answers to its user."""
    environment = {"CUDA_MPS_PIPE_DIRECTORY": node.place().pipe}
    done = subprocess.run(
        [PROGRAM],
        input=f"{command}\n",
        env=environment,
        capture_output=True,
        text=True,
        timeout=10,
        user=uid,
        check=False,
    )
    return done.stdout


def test_the_user_changes_no_limit_and_ends_no_daemon(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    for command in (
        "set_default_active_thread_percentage 100",
        "set_default_device_pinned_mem_limit 0 99G",
        "quit",
        "start_server -uid 0",
    ):
        assert "rivilege" in as_user(node, command), command
    assert mps_daemon.ask(str(PROGRAM), node.place(), "get_default_active_thread_percentage") == "50.0"
    node.assert_one_daemon(7)
    assert node.mps_epilog(7) == 0


def test_a_user_who_stops_their_server_holds_up_no_prolog_and_no_epilog(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    as_user(node, f"start_server -uid {UID}")
    [server] = [process for process in node.daemons() if process.is_server]
    assert server.uid == UID
    os.kill(server.pid, signal.SIGSTOP)
    begin = time.monotonic()
    assert node.mps_prolog(8) == 0
    assert (node.mps_epilog(7), node.mps_epilog(8)) == (0, 0)
    assert time.monotonic() - begin < 15
    node.assert_no_mps()


def test_many_connections_are_bounded_in_the_log_and_the_daemon_is_replaced_if_need_be(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    flood = (
        "import os, socket\n"
        "for _ in range(20000):\n"
        "    s = socket.socket(socket.AF_UNIX)\n"
        "    s.settimeout(1)\n"
        f"    s.connect({node.place().pipe + '/control'!r})\n"
        "    s.close()\n"
    )
    subprocess.run(["/usr/bin/python3", "-c", flood], user=UID, timeout=60, check=False, capture_output=True)
    size = sum(path.stat().st_size for path in Path(node.place().log).iterdir())
    assert size <= 1 << 20
    assert node.mps_prolog(8) == 0
    node.assert_one_daemon(7, 8)
    assert (node.mps_epilog(7), node.mps_epilog(8)) == (0, 0)
    node.assert_no_mps()


def test_programs_of_a_user_that_look_like_a_daemon_are_none(node: MpsNode) -> None:
    """Their own copy, of the right name, with the right argument and pipe directory: neither trusted nor killed."""
    assert node.mps_prolog(7) == 0
    place, folder = node.place(), node.root / "mine"
    folder.mkdir()
    copy = folder / mps_processes.CONTROL_NAME
    shutil.copy(shutil.which("tail") or "", copy)
    copy.chmod(0o755)
    environment = {"CUDA_MPS_PIPE_DIRECTORY": place.pipe}
    fake = subprocess.Popen([PROGRAM, "-f", "/dev/null"], executable=copy, env=environment, user=UID)
    roots = subprocess.Popen([PROGRAM, "-f", "/dev/null"], executable=copy, env=environment)
    time.sleep(0.2)
    try:
        assert [process.pid for process in mps_processes.daemons_at(place.pipe, str(PROGRAM))] == [node.pid()]
        assert mps_daemon.answers(str(PROGRAM), place)
        assert node.mps_epilog(7) == 0
        assert (fake.poll(), roots.poll()) == (None, None), "not ours, so they are not ended"
        node.assert_nothing_is_held()
    finally:
        for process in (fake, roots):
            process.kill()
            process.wait()


def test_what_a_user_writes_into_a_pipe_directorys_name_is_shown_in_one_plain_line(
    node: MpsNode, tmp_path: Path
) -> None:
    copy = node.root / mps_processes.CONTROL_NAME
    shutil.copy(shutil.which("tail") or "", copy)
    text = "/x\n\x1b[2Jhami_hpc: prolog: all is well\udcff" + 9000 * "y"
    with subprocess.Popen(
        [PROGRAM, "-f", "/dev/null"], executable=copy, env={"CUDA_MPS_PIPE_DIRECTORY": text}, user=UID
    ) as fake:
        time.sleep(0.2)
        try:
            [other] = [one for one in mps_processes.foreign("/z") if one.pid == fake.pid]
            assert other.pipe.startswith("/x??[2Jhami_hpc: prolog: all is well?yyy")
            assert len(other.pipe) <= mps_processes.PIPE_MAX
            lines = mps.hold(str(PROGRAM), node.place(), UUIDS[0], MEMBER)
            assert all(line.isprintable() and len(line) < 1000 for line in lines)
        finally:
            fake.kill()
            mps.leave(str(PROGRAM), node.place(), MEMBER)


def test_a_process_with_a_pid_that_was_used_before_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        process = mps_processes.Process(sleeper.pid, 1, 0, False, str(PROGRAM), "/x")
        assert mps_processes.kill((process,), 0.1) == ()
        assert sleeper.poll() is None
        sleeper.kill()


def test_a_directory_that_somebody_else_made_is_not_used(node: MpsNode, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(node.settings.run_dir) / "mps"
    folder.mkdir()
    os.chown(folder, UID, UID)
    assert node.mps_prolog(7) == 1
    assert "is not a directory that only root can write" in capsys.readouterr().err
    shutil.rmtree(folder)
    assert node.mps_prolog(7) == 0
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_without_access_lists_nobody_is_let_in(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_path: str, _uid: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(acl, "let_enter", refuse)
    assert node.mps_prolog(7) == 1
    assert "on a file system with access control lists" in capsys.readouterr().err
    assert node.daemons() == ()
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_a_lock_that_a_stopped_process_holds_is_waited_for_and_no_more(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.mps_prolog(7) == 0
    monkeypatch.setattr(mps, "LOCK_S", 0.2)
    fd = locks.acquire(f"{node.place().pipe}.lock", exclusive=True, timeout_s=1)
    assert node.mps_prolog(8) == 1
    assert "another process has held it" in capsys.readouterr().err
    assert node.mps_epilog(7) == 0, "set aside, for reconcile"
    os.close(fd)
    results = reconcile(node.settings, frozenset, dry_run=False)
    assert [result.error for result in results if result.error] == []
    node.assert_no_mps()
    node.assert_nothing_is_held()


@pytest.mark.skipif(not can_mount(), reason="mounts a small file system")
@pytest.mark.parametrize("option", ["ro", "size=4k"])
def test_a_full_or_read_only_disk_fails_the_prolog_and_leaks_no_daemon(
    node: MpsNode, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert node.mps_prolog(6) == 0  # the folder is there
    assert node.mps_epilog(6) == 0
    folder = Path(node.settings.run_dir) / "mps"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0711,{option}", "none", folder], check=True)
    if option != "ro":
        (folder / "full").write_bytes(b"x" * 4096)
    try:
        assert node.mps_prolog(7) == 1
        assert "see df, mount and ls -ld" in capsys.readouterr().err
        assert node.daemons() == ()
        assert node.mps_epilog(7) == 0
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    assert node.mps_prolog(7) == 0
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()
    node.assert_nothing_is_held()


def test_a_disk_that_becomes_read_only_while_a_job_runs_leaves_its_end_to_reconcile(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.mps_prolog(7) == 0
    unlink = os.unlink

    def read_only(path: str, **more: int) -> None:
        if "/mps/" in str(path):
            raise OSError(30, "Read-only file system", path)
        unlink(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", read_only)
        assert node.mps_epilog(7) == 0
    node.assert_one_daemon(7)
    assert [r.error for r in reconcile(node.settings, frozenset, dry_run=False) if r.error] == []
    node.assert_no_mps()
    node.assert_nothing_is_held()


def test_another_user_cannot_become_a_client(node: MpsNode) -> None:
    """So nobody takes the server's turn, and nobody's fault is another's."""
    machine = node.root.parent / "machine"
    subprocess.run([PROGRAM.parent / "sim-machine", machine, "h200"], check=True)
    subprocess.run(["chmod", "-R", "a+rwX", machine], check=True)
    assert node.mps_prolog(7) == 0
    base = {"HAMI_SIM": str(machine), "LD_LIBRARY_PATH": str(PROGRAM.parent)}
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": node.place().pipe}
    own = client(base | pipe, "sms", uid=UID).communicate(timeout=30)[0]
    other = client(base | pipe, "sms", uid=UID - 1).communicate(timeout=30)[0]
    assert '"sms": 66' in own
    assert '"sms": 132' in other, "without MPS"
    assert node.mps_epilog(7) == 0


def test_the_agent_does_not_report_the_server_of_a_jobs_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched_node(tmp_path) as bench, subprocess.Popen(["sleep", "60"], user=UID) as process:
        bench.hold(process.pid, 100)
        monkeypatch.setattr(mps_processes, "is_jobs_server", lambda *_arguments: True)
        bench.look(8)
        assert bench.kinds() == []
        monkeypatch.setattr(mps_processes, "is_jobs_server", lambda *_arguments: False)
        bench.look(8)
        assert bench.kinds() == ["no_job"]
        process.kill()


def test_hold_raises_where_the_directory_is_a_file(node: MpsNode) -> None:
    (Path(node.settings.run_dir) / "mps").write_text("")
    with pytest.raises(MpsError, match="not a directory"):
        mps.hold(str(PROGRAM), node.place(), UUIDS[0], MEMBER)
    (Path(node.settings.run_dir) / "mps").unlink()
