# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc mps` and the doctor's checks of mode=mps, on the simulated control daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from mps_testbed import OTHER_UID, PROGRAM, MpsNode

from hami_hpc.cli import main
from hami_hpc.core.finding import Finding, Level
from hami_hpc.isolation import mps_checks, share_checks
from hami_hpc.isolation.table import backend_of
from hami_hpc.node import acl, mps, mps_daemon, mps_processes, nvml


@pytest.fixture
def node(mps_node: MpsNode) -> MpsNode:
    return mps_node


def call(node: MpsNode, *words: str) -> Result:
    return CliRunner().invoke(main, ["mps", *words, "--config", str(node.config)])


def rows(node: MpsNode) -> list[dict[str, object]]:
    found = json.loads(call(node, "status", "--format", "json").stdout)
    assert isinstance(found, list)
    return found


def test_status_shows_each_daemon_with_its_jobs_and_limits(node: MpsNode) -> None:
    empty = call(node, "status")
    assert (empty.exit_code, rows(node)) == (0, [])
    assert node.mps_prolog(7, mem_mib=2048) == 0
    assert node.mps_prolog(8, mem_mib=4096, HAMI_HPC_CORES="75") == 0
    assert node.mps_prolog(9, OTHER_UID) == 0
    one, two = sorted(rows(node), key=lambda row: str(row["user"]), reverse=True)
    assert (one["daemon"], one["state"], one["jobs"]) == ("0-65534", "answers", [7, 8])
    assert (one["percent"], one["mem_mib"], one["pids"]) == (75, 4096, [node.pid()])
    assert (two["daemon"], two["jobs"]) == ("0-65533", [9])
    table = call(node, "status")
    assert table.exit_code == 0
    assert "0-65534" in table.stdout
    assert "7,8" in table.stdout
    for job, uid in ((7, 65534), (8, 65534), (9, OTHER_UID)):
        assert node.mps_epilog(job, uid) == 0


def test_status_shows_the_chunks_of_each_job_where_it_has_a_partition(node: MpsNode) -> None:
    assert node.mps_prolog(6, OTHER_UID) == 0
    [row] = rows(node)
    assert row["chunks"] is None
    assert "CHUNKS" in call(node, "status").stdout
    assert node.mps_epilog(6, OTHER_UID) == 0
    node.set_driver()
    Path(node.settings.run_dir, "mps-no-partitions").unlink()
    assert (node.mps_prolog(7), node.mps_prolog(8, mem_mib=2048)) == (0, 0)
    [row] = rows(node)
    assert (row["state"], row["chunks"]) == ("answers", {"7": 8, "8": 7})
    assert " 8+7 " in call(node, "status").stdout
    node.fault("lspart hang")
    assert [row["state"] for row in rows(node)] == ["hangs"]
    node.fault()
    assert call(node, "restart", "0-65534").exit_code == 0
    assert [row["chunks"] for row in rows(node)] == [{"7": 8, "8": 7}]
    assert (node.mps_epilog(7), node.mps_epilog(8)) == (0, 0)
    node.assert_no_mps()


@pytest.mark.parametrize(("sent", "state"), [(signal.SIGSTOP, "hangs"), (signal.SIGKILL, "ended")])
def test_status_says_what_is_wrong_and_restart_mends_it(node: MpsNode, sent: signal.Signals, state: str) -> None:
    assert node.mps_prolog(7) == 0
    os.kill(node.pid(), sent)
    time.sleep(0.1)
    assert [row["state"] for row in rows(node)] == [state]
    assert call(node, "status").exit_code == 3
    done = call(node, "restart", "0-65534")
    assert (done.exit_code, "was restarted" in done.stdout) == (0, True), done.output
    node.assert_one_daemon(7)
    assert node.mps_epilog(7) == 0
    node.assert_no_mps()


def test_restart_ends_the_server_too(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    mps_daemon.ask(str(PROGRAM), node.place(), "start_server -uid 65534")
    [server] = mps_daemon.servers(str(PROGRAM), node.place())
    assert call(node, "restart", "0-65534").exit_code == 0
    assert mps_processes.read(server) is None
    assert node.mps_epilog(7) == 0


def test_restart_names_the_daemons_that_there_are(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    for name in ("0-1", "../x", "65534", ""):
        wrong = call(node, "restart", name)
        assert wrong.exit_code == 1, name
        assert "there are: 0-65534. See hami-hpc mps status" in wrong.stderr
    assert node.mps_epilog(7) == 0
    assert "there are: none" in call(node, "restart", "0-65534").stderr


def test_what_is_left_over_is_shown_and_not_restarted(node: MpsNode) -> None:
    member = mps_daemon.Member(5, 5, 5, 5)
    mps.hold(str(PROGRAM), node.place(), "GPU-x", member)
    wrong = call(node, "restart", "0-65534")
    assert (wrong.exit_code, "run hami-hpc reconcile" in wrong.stderr) == (1, True)
    mps.leave(str(PROGRAM), node.place(), member)
    Path(node.place().jobs).mkdir()
    assert [row["state"] for row in rows(node)] == ["left over"]
    assert call(node, "status").exit_code == 3


def test_daemons_of_another_run_directory_are_not_listed(node: MpsNode) -> None:
    assert node.mps_prolog(7) == 0
    daemon = node.pid()
    pipe, text = node.place().pipe, node.config.read_text()
    node.config.write_text(text.replace(node.settings.run_dir, f"{node.settings.run_dir}-2"))
    assert rows(node) == []
    status = call(node, "status")
    assert status.exit_code == 0, status.output
    assert status.stdout.startswith("no job of this configuration needs an MPS daemon")
    assert f"process {daemon} of uid 0 in {pipe[:64]}" in status.stdout
    node.config.write_text(text)
    assert [row["pids"] for row in rows(node)] == [[daemon]]
    assert node.mps_epilog(7) == 0


def test_wrong_command_lines_say_what_is_right(node: MpsNode) -> None:
    for words in (("restart",), ("status", "0-1"), ("restart", "0-1", "--format", "json"), ("stop",)):
        assert call(node, *words).exit_code == 2, words


def test_only_root_is_told_of_daemons(node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """They show others' jobs."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refused = call(node, "status")
    assert (refused.exit_code, "run hami-hpc mps status as root" in refused.stderr) == (1, True)


def findings(node: MpsNode, monkeypatch: pytest.MonkeyPatch, mode: int = 0) -> dict[str, Finding]:
    class NVMLError(Exception):
        pass

    library = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_COMPUTEMODE_DEFAULT=0,
        NVML_COMPUTEMODE_PROHIBITED=2,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMinorNumber=lambda handle: handle,
        nvmlDeviceGetComputeMode=lambda _handle: mode,
        nvmlShutdown=lambda: None,
    )
    monkeypatch.setattr(nvml, "open_nvml", lambda: library)
    Path(node.settings.run_dir).mkdir(exist_ok=True)
    return {one.what: one for one in backend_of("mps").check(node.settings)}


def test_the_doctor_finds_nothing_where_all_is_well(node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.mps_prolog(7) == 0
    found = findings(node, monkeypatch)
    assert {what: one.level for what, one in found.items() if what != "MPS daemons of others"} == dict.fromkeys(
        ("MPS programs", "MPS partitions", "MPS directories", "compute mode of GPU 0", "MPS daemons"), Level.OK
    )
    assert found["MPS daemons"].detail == "each job's daemon answers"
    assert node.mps_epilog(7) == 0


def test_the_doctor_says_whether_jobs_have_partitions(node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def said() -> str:
        return findings(node, monkeypatch)["MPS partitions"].detail

    assert "not tried in this boot" in said()
    assert (node.mps_prolog(7), node.mps_epilog(7)) == (0, 0)
    assert "percentages of the multiprocessors: " in said()
    assert "does not start a daemon with -S: Unrecognized option" in said()
    Path(node.settings.run_dir, "mps-no-partitions").unlink()
    node.set_driver()
    assert node.mps_prolog(7) == 0
    assert said() == "jobs have SM partitions of their own"
    assert node.mps_epilog(7) == 0
    node.write_settings(more='static_partitions = "never"')
    assert "MPS partitions" not in findings(node, monkeypatch)


@pytest.mark.parametrize(("mode", "level"), [(2, Level.FAIL), (3, Level.WARN)])
def test_the_doctor_names_compute_modes_in_the_way(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch, mode: int, level: Level
) -> None:
    found = findings(node, monkeypatch, mode)["compute mode of GPU 0"]
    assert (found.level, found.advice.startswith("nvidia-smi -c DEFAULT")) == (level, True)


def test_the_doctor_finds_missing_programs_lists_and_silent_daemons(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.mps_prolog(7) == 0
    os.kill(node.pid(), signal.SIGKILL)

    def refuse(_path: str, _uid: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(acl, "let_enter", refuse)
    found = findings(node, monkeypatch)
    assert (found["MPS daemons"].level, found["MPS daemons"].advice) == (Level.FAIL, "hami-hpc reconcile")
    assert found["MPS daemons"].detail == f"no answer in {node.place().pipe}"
    assert found["MPS directories"].level is Level.FAIL
    assert node.mps_epilog(7) == 0
    node.write_settings(program="/nonexistent/control")
    programs = findings(node, monkeypatch)["MPS programs"]
    assert programs.level is Level.FAIL
    assert programs.advice == "install the driver's package with the programs of MPS, or set control in [mps]"


def test_the_doctor_reports_daemons_of_others_and_leaves_them(node: MpsNode, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = node.root / "p"
    pipe.mkdir()
    environment = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "PATH": "/usr/bin"}
    subprocess.run([PROGRAM, "-d"], env=environment, check=True, timeout=10)
    own = mps_processes.daemons_at(str(pipe), str(PROGRAM))
    try:
        found = findings(node, monkeypatch)["MPS daemons of others"]
        assert (found.level, f"process {own[0].pid} of uid 0 in {pipe}" in found.detail) == (Level.WARN, True)
        assert not [row for row in rows(node) if row["pids"] == [own[0].pid]]
        status = call(node, "status")
        assert (status.exit_code, f"process {own[0].pid} of uid 0 in {pipe}" in status.stdout) == (0, True)
        assert "other MPS daemon(s) run here, of users or of another configuration" in status.stdout
    finally:
        mps_processes.kill(own, 5)


def test_the_interposer_is_checked_too_where_share_is_not_offered(
    node: MpsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def check(settings: object) -> Iterator[Finding]:
        asked.append(settings)
        yield from ()

    monkeypatch.setattr(share_checks, "check", check)
    findings(node, monkeypatch)
    assert asked == []
    node.write_settings(modes='["mps"]')
    findings(node, monkeypatch)
    assert len(asked) == 1
    assert mps_checks.NOBODY == 65534
