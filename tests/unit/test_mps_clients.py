# SPDX-License-Identifier: Apache-2.0
"""Clients of the MPS daemons of jobs: what they get, and what is said of a server that crashed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest
from mps_testbed import PROGRAM, MpsNode, client
from node_testbed import UID, UUIDS

from hami_hpc.node import mps, mps_daemon, mps_processes
from hami_hpc.stages.reconcile import reconcile


@pytest.fixture
def node(mps_node: MpsNode) -> MpsNode:
    return mps_node


def ask(node: MpsNode, command: str, uid: int = UID) -> str:
    return mps_daemon.ask(str(PROGRAM), node.place(uid), command)


def test_clients_run_with_the_smaller_of_the_daemons_and_their_own_limits(node: MpsNode) -> None:
    assert node.mps_prolog(7, mem_mib=1024) == 0
    machine = node.root.parent / "machine"
    subprocess.run([PROGRAM.parent / "sim-machine", machine, "h200"], check=True)
    base = {
        "HAMI_SIM": str(machine),
        "LD_LIBRARY_PATH": str(PROGRAM.parent),
        "CUDA_MPS_PIPE_DIRECTORY": node.place(0).pipe,
    }
    member = mps_daemon.Member(9, 1, 50, 1024)
    mps.hold(str(PROGRAM), node.place(0), UUIDS[0], member)
    try:
        for own, sms, taken in (
            ({}, 66, 1024),
            ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, 33, 1024),
            ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=64G"}, 66, 1024),
            ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=512M"}, 66, 512),
        ):
            out, errors = client(base | own, "take", "4096").communicate(timeout=30)
            numbers = json.loads(out)
            assert (numbers["sms"], numbers["taken_mib"]) == (sms, taken), errors
        holder = client(base, "hold", "64", "30")
        [server] = _until(lambda: mps_daemon.servers(str(PROGRAM), node.place(0)))
        assert _until(lambda: mps_daemon.clients(str(PROGRAM), node.place(0), server)) == (holder.pid,)
        os.kill(server, signal.SIGKILL)
        holder.kill()
        holder.communicate()
    finally:
        mps.leave(str(PROGRAM), node.place(0), member)
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_a_client_sees_its_partition_and_without_one_gets_no_context(node: MpsNode) -> None:
    """With a driver that has static SM partitions. What a client with an id of nobody is told is a guess."""
    node.set_driver()
    machine = node.root.parent / "machine"
    subprocess.run([PROGRAM.parent / "sim-machine", machine, "h200"], check=True)
    place = node.place(0)
    members = [mps_daemon.Member(job, 1, cores, 1024) for job, cores in ((1, 50), (2, 20))]
    for member in members:
        mps.hold(str(PROGRAM), place, UUIDS[0], member, static=True)
    base = {
        "HAMI_SIM": str(machine),
        "LD_LIBRARY_PATH": str(PROGRAM.parent),
        "CUDA_MPS_PIPE_DIRECTORY": place.pipe,
    }
    own, other = ({"CUDA_MPS_SM_PARTITION": member.partition} for member in mps.members(place))
    try:
        for given, name, wanted in (
            (own, "sms", 64),
            (own | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, "sms", 64),
            (other, "sms", 24),
            ({}, "status", 915),
            ({"CUDA_MPS_SM_PARTITION": f"{UUIDS[0]}/none"}, "status", 915),
        ):
            out, errors = client(base | given, "take", "2048").communicate(timeout=30)
            assert json.loads(out)[name] == wanted, errors
    finally:
        for member in members:
            mps.leave(str(PROGRAM), place, member)
    node.assert_no_mps()


def _until(look: object, within_s: float = 10) -> tuple[int, ...]:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if found := look():  # type: ignore[operator]
            return tuple(found)
        time.sleep(0.02)
    raise AssertionError("it did not come")


def terminated(node: MpsNode, monkeypatch: pytest.MonkeyPatch, *clients: int) -> list[int]:
    """Returns which of these clients an epilog ends, of those that the daemon lists."""
    assert (node.mps_prolog(7), node.mps_prolog(8)) == (0, 0)
    asked: list[str] = []
    real = mps_daemon.ask
    with monkeypatch.context() as patch:
        patch.setattr(mps_daemon, "adjust", lambda *_: (1,))
        patch.setattr(mps_daemon, "clients", lambda *_: clients)

        def ask_and_note(program: str, place: mps_daemon.Place, command: str, *more: float) -> str:
            asked.append(command)
            return real(program, place, command, *more)

        patch.setattr(mps_daemon, "ask", ask_and_note)
        assert node.mps_epilog(7) == 0
    assert node.mps_epilog(8) == 0
    words = [command.split() for command in asked if command.startswith("terminate_client 1 ")]
    return [int(pid) for _name, _server, pid in words]


def test_the_work_of_clients_whose_process_is_gone_is_ended(node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the epilog of any job of that daemon; those of jobs that run are left, and so is a number that is used
    again by whomever."""
    with subprocess.Popen(["true"]) as gone:
        pass
    assert terminated(node, monkeypatch, gone.pid, os.getpid(), 1, 0) == [gone.pid]


def test_a_client_in_a_pid_namespace_is_left_alone(node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known by the number that it has there, which is that of no process outside."""
    taken = " ".join(str(pid) for pid in mps_processes.numbers() if pid < 5000)
    script = 'while sleep 60 & do case " $0 " in *" $! "*) kill $! ;; *) break ;; esac; done; echo $!; wait'
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script, taken]
    outer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert outer.stdout is not None
        number = int(outer.stdout.readline())
        assert not os.path.lexists(f"/proc/{number}")
        assert terminated(node, monkeypatch, number) == []
    finally:
        outer.kill()
        outer.communicate()
    assert terminated(node, monkeypatch, number) == [number], "once it is gone there, too"


def test_an_epilog_goes_on_where_a_daemon_cannot_be_left(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its process waits in the driver. The job's usage and memory do not wait for it, nor does the other place."""
    assert node.mps_prolog(7) == 0
    node.write_usage(7, peak_bytes=4242)
    left: list[str] = []
    said: list[str] = []
    real = mps.leave

    def leave(program: str, place: mps_daemon.Place, member: mps_daemon.Member) -> tuple[str, ...]:
        left.append(place.user)
        if place.user == str(UID):
            raise mps_daemon.MpsError("process 5 of MPS cannot be ended")
        return real(program, place, member)

    with monkeypatch.context() as patch:
        patch.setattr(mps, "leave", leave)
        patch.setattr("hami_hpc.node.admin_log.to_syslog", lambda _level, line: said.append(line))
        assert node.mps_epilog(7) == 0
    assert left == [str(UID), mps_daemon.ALL_USERS]
    assert [line for line in said if "job 7: process 5 of MPS cannot be ended" in line and "hami-hpc reconcile" in line]
    node.assert_nothing_is_held()
    assert node.record()["peak_bytes"] == 4242
    reconcile(node.settings, frozenset, dry_run=False)
    node.assert_no_mps()


def test_a_servers_crash_is_a_line_for_the_administrator(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    place, member = node.place(), mps.members(node.place())[0]
    ask(node, f"start_server -uid {UID}")
    [server] = mps_daemon.servers(str(PROGRAM), place)
    os.kill(server, signal.SIGKILL)
    assert _until(lambda: [1] if not mps_daemon.servers(str(PROGRAM), place) else ())
    assert [line for line in mps_daemon.crashes(place, member.created_unix_ns) if f"Server {server} exited" in line]
    assert mps_daemon.crashes(place, time.time_ns() + 5 * 10**9) == ()
    assert node.mps_epilog(7) == 0
