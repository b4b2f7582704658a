# SPDX-License-Identifier: Apache-2.0
"""mode=mps against users who fill what they can write, against a driver that answers nonsense, and against an
administrator who removes what a daemon uses."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from harness.mounting import can_mount
from mps_testbed import PROGRAM, MpsNode
from node_testbed import UID, UUIDS
from test_mps_partitions import chunks, connected, done, end, start

from hami_hpc.node import admin_log, mounts, mps, mps_daemon, mps_directories, mps_partitions, mps_processes, programs
from hami_hpc.node.mps_daemon import MpsError, Place

needs_mounts = pytest.mark.skipif(not can_mount(), reason="mounts a small file system")
SERVER, CONTROL = mps_processes.SERVER_NAME, mps_processes.CONTROL_NAME


@pytest.fixture
def node(mps_node: MpsNode) -> MpsNode:
    return mps_node


def kill_daemon(node: MpsNode, place: Place | None = None) -> None:
    mps_processes.kill(mps_processes.daemons_at((place or node.place()).pipe, str(PROGRAM)), 5)


# What a user can write is bounded.


def fill(path: Path, mib: int = 64) -> int:
    """Writes to a file as the user does. Returns its size then."""
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mib}", "conv=notrunc"]
    subprocess.run(command, user=UID, group=UID, extra_groups=[], capture_output=True, check=False, timeout=60)
    return path.stat().st_size


@needs_mounts
def test_the_files_that_a_daemon_lets_everybody_write_fill_nothing(node: MpsNode) -> None:
    node.set_driver()
    assert start(node, 7, 25) == 0
    pipe = Path(node.place().pipe)
    for name in ("control_lock", mps_processes.PID_FILE):
        assert 0 < fill(pipe / name) <= mps_directories.PIPE_BYTES
    assert start(node, 8, 25) == 0, "with a partition, whose name is written elsewhere"
    assert chunks(node) == {7: 4, 8: 4}
    kill_daemon(node)
    assert start(node, 9, 25) == 0, "the next daemon finds room"
    assert sorted(chunks(node)) == [7, 8, 9]
    end(node, 7, 8, 9)


@needs_mounts
def test_a_daemon_that_is_replaced_is_found_by_who_has_the_directory_in_another_mount_namespace(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    pipe = node.place().pipe
    script = f"echo there; read x; CUDA_MPS_PIPE_DIRECTORY={pipe} {PROGRAM} <<< get_default_active_thread_percentage"
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "there\n"
        kill_daemon(node)
        assert node.mps_prolog(7) == 0
        assert step.communicate("go\n", timeout=20)[0] == "50.0\n"
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_nothing_of_an_earlier_daemon_is_in_the_directories_of_the_next(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    pipe, jobs = Path(node.place().pipe), Path(node.place().jobs)
    (pipe / "old").touch()
    (pipe / "folder").mkdir()
    (pipe / "folder" / "old").touch()
    (jobs / "old").touch()
    kill_daemon(node)
    assert node.mps_prolog(7) == 0
    assert not {"old", "folder"} & {path.name for path in pipe.iterdir()}
    assert [path.stat().st_mode & 0o777 for path in (pipe, Path(node.place().log), jobs)] == [0o750, 0o700, 0o700]
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def syslog(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the lines that syslog gets from now on."""
    said: list[str] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda _level, text: said.append(text))
    return said


def test_where_nothing_can_be_mounted_daemons_run_and_syslog_says_what_users_can_fill(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = syslog(monkeypatch)
    monkeypatch.setattr(mounts, "mount_bounded", lambda *_: False)
    monkeypatch.setattr(mounts, "obstacle", lambda: "CAP_SYS_ADMIN is missing (a container?)")
    node.set_driver()
    assert start(node, 7, 25) == 0
    place = node.place()
    why = f"is not bounded, a user can fill {Path(place.pipe).parent}: CAP_SYS_ADMIN is missing (a container?)"
    assert [line for line in said if " is not bounded, " in line] == [f"{at} {why}" for at in (place.log, place.pipe)]
    kill_daemon(node)
    assert start(node, 8, 25) == 0
    assert chunks(node) == {7: 4, 8: 4}
    end(node, 7, 8)


@needs_mounts
def test_files_of_earlier_daemons_that_a_user_keeps_open_leave_room_for_the_next(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mps_directories, "PIPE_INODES", mps_directories.INODES_OF_A_DAEMON + 8)
    assert node.mps_prolog(7) == 0
    kept: list[int] = []
    for _ in range(4):
        names = ("control_lock", mps_processes.PID_FILE)
        kept += [os.open(f"{node.place().pipe}/{name}", os.O_RDWR) for name in names]
        fill(Path(node.place().pipe) / "control_lock")
        kill_daemon(node)
        assert node.mps_prolog(7) == 0
        node.assert_one_daemon(7)
    for fd in kept:
        os.close(fd)
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


@pytest.mark.parametrize("multi_user", [False, True])
def test_a_daemon_has_its_files_before_its_user_is_let_in(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, multi_user: bool
) -> None:
    """Who locks its file before it does would keep it from starting. After a killed prolog the next stage lets them
    in."""
    node.write_settings(multi_user)
    place = node.place(multi_user=multi_user)

    def sees(uid: int = UID) -> bool:
        command = ["stat", f"{place.pipe}/control"]
        return subprocess.run(command, user=uid, group=uid, extra_groups=[], capture_output=True).returncode == 0

    seen: list[bool] = []
    genuine = mps_daemon.start

    def killed(program: str, place: Place, gpu_uuid: str, limits: mps_daemon.Limits) -> None:
        genuine(program, place, gpu_uuid, limits)
        seen.append(sees())
        raise KeyboardInterrupt

    monkeypatch.setattr(mps_daemon, "start", killed)
    for stage in (node.mps_prolog, node.mps_epilog):
        with pytest.raises(KeyboardInterrupt):
            node.mps_prolog(7)
        assert stage(8) == 0
        assert (sees(), sees(UID - 1)) == (True, multi_user)
        assert Path(place.pipe).stat().st_mode & 0o7022 == 0
        kill_daemon(node, place)
    assert seen == [False, False]
    monkeypatch.setattr(mps_daemon, "start", genuine)
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_what_a_user_writes_into_the_log_as_a_crash_is_few_plain_lines_in_syslog(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = syslog(monkeypatch)
    assert node.mps_prolog(7) == 0
    flood = (
        "import socket\ns = socket.socket(socket.AF_UNIX)\n"
        f"s.connect({node.place().pipe + '/control'!r})\ns.send(b'UI\\n')\n"
        "for i in range(2000):\n"
        "    s.send(b'fatal exception \\x1b[2J\\x85[2999-01-01 hami_hpc: all GPUs are lost' + 380 * b'x' + b'\\n')\n"
        "    s.recv(4096)\n"
    )
    subprocess.run(["/usr/bin/python3", "-c", flood], user=UID, timeout=60, check=True)
    assert node.mps_epilog(7) == 0
    said = [line for line in said if line.startswith("epilog")]  # a prolog tells of daemons of other tests
    assert len(said) == mps_daemon.CRASHES_MAX
    assert all(line.isprintable() and len(line) < 400 and "MPS of GPU 0: [20" in line for line in said)
    assert not any(line.startswith("epilog: job 7: MPS of GPU 0: [2999") for line in said)


# A driver that answers nonsense.


@pytest.mark.parametrize("answer", [5000 * "9", "50.0 " + 5000 * "9", "50.0 99999999999", "\0\x1b"])
def test_a_number_that_no_process_has_fails_no_stage(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: str
) -> None:
    genuine = programs.run

    def run(command: list[str], environment: Mapping[str, str], text: str, timeout_s: float) -> tuple[int | None, str]:
        status, printed = genuine(command, environment, text, timeout_s)
        return status, f"{answer}\n" if "get_server_list" in text else printed

    monkeypatch.setattr(programs, "run", run)
    assert (node.mps_prolog(7), node.mps_prolog(8)) == (0, 0)
    assert (node.mps_epilog(7), node.mps_epilog(8)) == (0, 0)
    assert "bug in hami_hpc" not in capsys.readouterr().err
    node.assert_no_mps()
    node.assert_nothing_is_held()


@pytest.mark.parametrize("command", ["get_server_list", "get_client_list"])
def test_a_daemon_that_lists_thousands_holds_up_no_epilog(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    genuine = programs.run
    asked: list[str] = []

    def run(given: list[str], environment: Mapping[str, str], text: str, timeout_s: float) -> tuple[int | None, str]:
        asked.append(text)
        if text.startswith(("get_client", "terminate", "set_active", "set_device")):
            return 0, "\n".join(map(str, range(5_000_000, 5_005_000))) if text.startswith(command) else ""
        status, printed = genuine(given, environment, text, timeout_s)
        listed = "\n".join(map(str, range(5_000_000, 5_005_000))) if command == "get_server_list" else "5000000\n"
        return status, f"{printed}\n{listed}" if "get_server_list" in text else printed

    monkeypatch.setattr(mps_processes, "numbers", frozenset)
    assert (node.mps_prolog(7), node.mps_prolog(8)) == (0, 0)
    monkeypatch.setattr(programs, "run", run)
    assert node.mps_epilog(7) == 0
    assert mps_daemon.NUMBERS_MAX < len(asked) < 3 * mps_daemon.NUMBERS_MAX
    monkeypatch.setattr(programs, "run", genuine)
    assert node.mps_epilog(8) == 0
    node.assert_no_mps()


@pytest.mark.parametrize("garbage", ["", "Unknown command", "GPU-", "GPU-7 GPU-7 \0"])
def test_a_daemon_that_lists_no_partitions_any_more_fails_no_epilog_and_sends_the_next_job_back(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], garbage: str
) -> None:
    genuine = programs.run
    is_odd = False

    def run(command: list[str], environment: Mapping[str, str], text: str, timeout_s: float) -> tuple[int | None, str]:
        status, printed = genuine(command, environment, text, timeout_s)
        return status, garbage if is_odd and text.endswith("lspart\n") else printed

    monkeypatch.setattr(programs, "run", run)
    monkeypatch.setattr("hami_hpc.stages.send_back.requeue", lambda *_: True)
    node.set_driver()
    assert (start(node, 7, 25), start(node, 8, 25)) == (0, 0)
    is_odd = True
    assert node.mps_epilog(7) == 0
    monkeypatch.setattr(mps_daemon, "answers", lambda *_: True)
    assert start(node, 9, 25) == 0, "the node stays in service"
    assert set(node.grants()) == {8}
    assert "bug in hami_hpc" not in capsys.readouterr().err
    is_odd = False
    end(node, 8, 9)


@pytest.mark.parametrize("whose", ["the program", "a folder above it", "a link to it", "a sticky folder's file"])
def test_no_program_is_run_that_a_user_can_replace(node: MpsNode, tmp_path: Path, whose: str) -> None:
    home, bin_ = tmp_path / "home", tmp_path / "home" / "bin"
    bin_.mkdir(parents=True)
    for name in (CONTROL, SERVER):
        shutil.copy(PROGRAM.with_name(name), bin_ / name)
    mps_daemon.check_program(str(bin_ / CONTROL))
    home.chmod(0o1777)
    mps_daemon.check_program(str(bin_ / CONTROL))
    if whose == "a link to it":  # it is the linked file that is run, whatever the link becomes
        os.chown(home, UID, UID)
        (tmp_path / "link").symlink_to(PROGRAM)
        mps_daemon.check_program(str(tmp_path / "link"))
        return
    if whose == "a folder above it":
        home.chmod(0o777)
    elif whose == "the program":
        (bin_ / CONTROL).chmod(0o1777)
    else:
        os.chown(bin_, UID, UID)
    with pytest.raises(MpsError, match="can be changed by others than root"):
        mps_daemon.check_program(str(bin_ / CONTROL))


# Files that are gone under a daemon.


@pytest.mark.parametrize("what", ["all of MPS", "a daemon's", "all but its program's name"])
def test_a_daemon_whose_files_were_removed_is_ended_by_reconcile(node: MpsNode, what: str) -> None:
    assert node.mps_prolog(7) == 0
    place, folder = node.place(), Path(node.settings.run_dir) / "mps"
    for path in (place.pipe, place.log, *([str(folder)] if what == "all of MPS" else [])):
        subprocess.run(["umount", "-l", path], check=False, capture_output=True)
    for path in [str(folder)] if what == "all of MPS" else [place.pipe, place.log, place.jobs]:
        shutil.rmtree(path)
    if what == "a daemon's":
        Path(place.program).unlink()
    assert node.mps_epilog(7) == 0
    assert node.controls() == ["0-65534"]
    assert mps.lost(str(PROGRAM), node.settings.run_dir) == (place,)
    assert len(done(node)) == 1
    node.assert_no_mps()
    node.assert_nothing_is_held()
    assert mps.lost(str(PROGRAM), node.settings.run_dir) == ()


def test_processes_of_others_that_name_a_place_are_no_lost_daemons(node: MpsNode) -> None:
    copy = node.root / CONTROL
    shutil.copy(shutil.which("tail") or "", copy)
    pipes = [f"{node.settings.run_dir}/mps/{name}" for name in ("0-65534", "x", "0-65534.log", "0-65534/../0-1")]
    fakes = [
        subprocess.Popen([PROGRAM, "-f", "/dev/null"], executable=copy, env={"CUDA_MPS_PIPE_DIRECTORY": pipe}, user=uid)
        for pipe in pipes
        for uid in (UID, 0)
    ]
    try:
        assert mps.lost(str(PROGRAM), node.settings.run_dir) == ()
        assert done(node) == []
        assert [fake.poll() for fake in fakes] == [None] * len(fakes)
    finally:
        for fake in fakes:
            fake.kill()
            fake.wait()


# Partitions that others use or make.


def test_chunks_that_a_program_of_no_job_keeps_from_the_only_job_are_free_with_a_new_daemon(node: MpsNode) -> None:
    """A prolog was killed after it had made the partition, and the user's programs of another time are in it."""
    node.set_driver()
    assert start(node, 7, 80) == 0
    [job] = mps.members(node.place())
    with connected(node, 7):
        (Path(node.place().jobs) / f"partition-{job.name}").unlink()
        assert start(node, 7, 80) == 0
        assert chunks(node) == {7: 12}
    assert mps_partitions.why_not(str(PROGRAM), node.settings.run_dir) == "", "partitions work on this node"
    end(node, 7)


@pytest.mark.parametrize("size", [2, 8])
def test_a_partition_that_a_user_makes_at_the_same_time_takes_partitions_from_nobody(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Whether a driver lets users make some is not documented."""
    genuine = mps_daemon.ask

    def ask_after_the_user(program: str, place: Place, command: str, timeout_s: float | None = None) -> str:
        if command.startswith("sm_partition add"):
            genuine(program, place, f"sm_partition add {UUIDS[0]} {size}")
        return genuine(program, place, command, timeout_s)

    node.set_driver(30)
    monkeypatch.setattr(mps_daemon, "ask", ask_after_the_user)
    assert start(node, 7, 25) == 0
    assert chunks(node) == {7: 8}
    assert mps_partitions.why_not(str(PROGRAM), node.settings.run_dir) == ""
    end(node, 7)


def test_the_only_job_waits_where_its_chunks_stay_taken_and_partitions_are_not_given_up(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_back: list[int] = []

    def requeue(_environment: object, job: int, _reason: str) -> bool:
        sent_back.append(job)
        return True

    def taken(*_arguments: object) -> None:
        raise mps_partitions.NoChunksError("job 7 needs 8 of the 15 chunks")

    monkeypatch.setattr("hami_hpc.stages.send_back.requeue", requeue)
    node.set_driver()
    with monkeypatch.context() as patch:
        patch.setattr(mps_partitions, "settle", taken)
        assert start(node, 7, 50) == 0, "the node stays in service"
    assert sent_back == [7]
    node.assert_no_mps()
    assert mps_partitions.why_not(str(PROGRAM), node.settings.run_dir) == ""
    assert start(node, 7, 50) == 0
    assert chunks(node) == {7: 8}
    end(node, 7)


def test_the_program_that_runs_is_the_one_that_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "checked", tmp_path / "other"):
        path.write_text(f"#!/bin/sh\necho {path.name}\n")
        path.chmod(0o755)
    link, check = tmp_path / "link", mps_daemon.check_program
    link.symlink_to("checked")

    def check_then_change(program: str) -> str:
        checked = check(program)
        (tmp_path / "other").replace(tmp_path / "link")
        return checked

    monkeypatch.setattr(mps_daemon, "check_program", check_then_change)
    assert mps_daemon.ask(str(link), mps_daemon.Place(str(tmp_path), 0, "1"), "ps") == "checked"
