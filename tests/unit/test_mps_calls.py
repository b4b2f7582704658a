# SPDX-License-Identifier: Apache-2.0
"""How often stages of mode=mps start the control program, and what its answers may be."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from mps_testbed import OTHER_UID, PROGRAM, MpsNode
from node_testbed import UUIDS

from hami_hpc.node import mps_daemon, mps_processes, programs


@pytest.fixture
def node(mps_node: MpsNode) -> MpsNode:
    return mps_node


def ask(node: MpsNode, command: str) -> str:
    return mps_daemon.ask(str(PROGRAM), node.place(), command)


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes what the control program is started for."""
    started: list[str] = []
    genuine = programs.run

    def run(command: list[str], environment: Mapping[str, str], text: str, timeout_s: float) -> tuple[int | None, str]:
        if command[0] != mps_processes.CAT:  # by which processes of other tests are read
            started.append(text or " ".join(command[1:]))
        return genuine(command, environment, text, timeout_s)

    monkeypatch.setattr(programs, "run", run)
    return started


def test_each_stage_starts_the_control_program_once_besides_the_daemon(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start takes as long as a tenth of a prolog; a daemon's answers to several commands come in their order."""
    started = calls(monkeypatch)
    asked = "set_default_active_thread_percentage 50\nset_default_device_pinned_mem_limit 0 8192M\nget_server_list\n"
    assert node.mps_prolog(7) == 0
    assert started == ["-d -S", "-d", asked], "the first one of a boot asks for static partitions, too"
    for stage, job, wanted in (
        (node.mps_epilog, 7, ["quit -t 2\n"]),
        (node.mps_prolog, 7, ["-d", asked]),
        (node.mps_prolog, 8, [asked]),
        (node.mps_epilog, 7, [asked]),
        (node.mps_epilog, 8, ["quit -t 2\n"]),
    ):
        started.clear()
        assert stage(job) == 0
        assert started == wanted


def test_with_partitions_a_prolog_starts_it_three_times_more_and_an_epilog_twice(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.set_driver()
    started = calls(monkeypatch)
    asked, table = "set_default_device_pinned_mem_limit 0 8192M\nget_server_list\n", "lspart\n"
    for stage, job, wanted in (
        (node.mps_prolog, 7, ["-d -S", asked, table, table, f"sm_partition add {UUIDS[0]} 8\nlspart\n"]),
        (node.mps_prolog, 8, [asked, table, table, f"sm_partition add {UUIDS[0]} 7\nlspart\n"]),
        (node.mps_prolog, 8, [asked, table, table]),
        (node.mps_epilog, 7, [asked, table, "sm_partition rm"]),
        (node.mps_epilog, 8, ["quit -t 2\n"]),
    ):
        started.clear()
        assert stage(job) == 0
        assert [one[:15] if "_partition rm" in one else one for one in started] == wanted


@pytest.mark.parametrize("answer", ["", "50 %", "hello", "50.0 server 7"])
def test_a_driver_that_answers_otherwise_is_told_each_limit_by_itself(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    genuine = programs.run

    def run(command: list[str], environment: Mapping[str, str], text: str, timeout_s: float) -> tuple[int | None, str]:
        status, printed = genuine(command, environment, text if text.count("\n") == 1 else "", timeout_s)
        return status, printed if text.count("\n") < 2 else f"{answer}\n"

    monkeypatch.setattr(programs, "run", run)
    assert node.mps_prolog(7) == 0
    assert node.mps_prolog(8, mem_mib=4096, HAMI_HPC_CORES="25") == 0
    assert ask(node, "get_default_active_thread_percentage") == "50.0"
    assert node.mps_epilog(7) == 0
    assert ask(node, "get_default_active_thread_percentage") == "25.0"
    assert ask(node, "get_default_device_pinned_mem_limit 0") == "4096M"
    assert node.mps_epilog(8) == 0
    node.assert_no_mps()


def test_a_daemon_that_hangs_when_its_limits_are_set_is_replaced(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.mps_prolog(7) == 0
    first = node.pid()
    monkeypatch.setattr(mps_daemon, "ANSWER_S", 0.3)
    node.fault("set_default_device_pinned_mem_limit hang")
    assert node.mps_prolog(8) == 1, "so does the new one"
    node.fault()
    assert node.mps_prolog(8) == 0
    node.assert_one_daemon(7, 8)
    assert node.pid() != first
    assert (node.mps_epilog(7), node.mps_epilog(8)) == (0, 0)
    node.assert_no_mps()


def test_a_directory_in_a_daemons_directory_does_not_stop_an_epilog(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    inner = Path(node.place().pipe) / "inner"
    inner.mkdir()
    (inner / "file").touch()
    (Path(node.place().pipe) / "link").symlink_to(node.root)
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()
    assert node.config.exists()


def test_stages_work_on_a_kernel_without_descriptors_of_processes(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 5.3: what ends is looked for."""

    def missing(_pid: int, _flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    assert node.mps_prolog(7) == 0
    node.assert_one_daemon(7)
    daemons = node.daemons()
    assert mps_processes.wait(daemons, 0.1) == daemons
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_a_wait_ends_with_the_process(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    daemons = node.daemons()
    killer = threading.Timer(0.3, os.kill, (daemons[0].pid, signal.SIGKILL))
    killer.start()
    begin = time.monotonic()
    assert mps_processes.wait(daemons, 20.0) == ()
    assert time.monotonic() - begin < 10.0
    killer.join()
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_where_the_daemon_has_left_its_number_no_other_process_is_looked_at(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.mps_prolog(7) == 0
    with monkeypatch.context() as patched:
        patched.setattr(mps_processes, "processes", lambda: pytest.fail("all processes were looked at"))
        assert node.mps_prolog(8) == 0
        assert node.mps_epilog(8) == 0
    node.assert_one_daemon(7)
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


@pytest.mark.parametrize("number", ["", "1", "0", "-1", "x", "9" * 40, "{self}", None])
def test_a_number_that_is_not_the_daemons_is_not_believed(node: MpsNode, number: str | None) -> None:
    """As of a driver that leaves none (535), or of a daemon that was killed and whose number another process has."""
    assert node.mps_prolog(7) == 0
    pid, note = node.pid(), Path(node.place().pipe) / mps_processes.PID_FILE
    if number is None:
        note.unlink()
    else:
        note.write_text(number.format(self=os.getpid()))
    assert mps_processes.noted(node.place().pipe) == ()
    assert node.mps_prolog(8) == 0
    assert node.pid() == pid, "found among all processes, and kept"
    node.assert_one_daemon(7, 8)
    assert (node.mps_epilog(7), node.mps_epilog(8)) == (0, 0)
    node.assert_no_mps()


def test_the_daemon_of_another_user_is_not_taken_for_this_ones(node: MpsNode) -> None:
    assert (node.mps_prolog(7), node.mps_prolog(8, uid=OTHER_UID)) == (0, 0)
    first, other = node.pid(), node.pid(OTHER_UID)
    (Path(node.place().pipe) / mps_processes.PID_FILE).write_text(str(other))
    assert node.mps_prolog(9) == 0
    assert (node.pid(), node.pid(OTHER_UID)) == (first, other)
    assert (node.mps_epilog(7), node.mps_epilog(9)) == (0, 0)
    assert node.pid(OTHER_UID) == other
    assert node.mps_epilog(8, uid=OTHER_UID) == 0
    node.assert_no_mps()
