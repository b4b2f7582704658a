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

from hami_hpc.node import mps, mps_daemon


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
    member = mps.Member(9, 1, 50, 1024)
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


def _until(look: object, within_s: float = 10) -> tuple[int, ...]:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if found := look():  # type: ignore[operator]
            return tuple(found)
        time.sleep(0.02)
    raise AssertionError("it did not come")


def test_the_work_of_clients_whose_process_is_gone_is_ended(node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the epilog of any job of that daemon; those of jobs that run are left."""
    assert (node.mps_prolog(7), node.mps_prolog(8)) == (0, 0)
    with subprocess.Popen(["true"]) as gone:
        pass
    asked: list[str] = []
    real = mps_daemon.ask
    monkeypatch.setattr(mps_daemon, "servers", lambda *_: (1,))
    monkeypatch.setattr(mps_daemon, "clients", lambda *_: (gone.pid, os.getpid()))

    def ask_and_note(program: str, place: mps_daemon.Place, command: str, *more: float) -> str:
        asked.append(command)
        return real(program, place, command, *more)

    monkeypatch.setattr(mps_daemon, "ask", ask_and_note)
    assert node.mps_epilog(7) == 0
    assert [command for command in asked if command.startswith("terminate")] == [f"terminate_client 1 {gone.pid}"]
    assert node.mps_epilog(8) == 0


def test_a_servers_crash_is_a_line_for_the_administrator(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    place, member = node.place(), mps.members(node.place())[0]
    ask(node, f"start_server -uid {UID}")
    [server] = mps_daemon.servers(str(PROGRAM), place)
    os.kill(server, signal.SIGKILL)
    assert _until(lambda: [1] if not mps_daemon.servers(str(PROGRAM), place) else ())
    assert [line for line in mps.crashes(place, member.created_unix_ns) if f"Server {server} exited" in line]
    assert mps.crashes(place, time.time_ns() + 5 * 10**9) == ()
    assert node.mps_epilog(7) == 0
