# SPDX-License-Identifier: Apache-2.0
"""A backend that fails repeatedly is taken out of the node's features, and put back (docs/adr/057)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner
from node_testbed import Node, job_environment

from hami_hpc.agent.mode_returns import ModeReturns
from hami_hpc.cli import main
from hami_hpc.contract import constants as c
from hami_hpc.core.mode_outage import Failure, Outage, features, is_over, public, recent
from hami_hpc.doctor import node_checks
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import JobError, NodeError
from hami_hpc.isolation import share
from hami_hpc.metrics.exposition import expose
from hami_hpc.node import admin_log, boot, drain, mode_outages
from hami_hpc.node.event_reader import EventReader
from hami_hpc.slurm import node_features, placeholders
from hami_hpc.stages import detached, mode_service
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.prolog import main as prolog_main
from hami_hpc.stages.reconcile import reconcile

AVAILABLE = "vgpu_share,vgpu_mps,vgpu_type_h200"
REASON = "the driver says no"
# Keeps the active features in a file, notes each call, and fails where the file `down` exists.
SCONTROL = """\
#!/bin/sh
cd {folder} || exit 9
echo "$@" >>said
[ ! -e down ] || {{ echo "slurm_update error: Unable to contact" >&2; exit 1; }}
case $1 in
--oneliner) echo "NodeName=node1 AvailableFeatures=$(cat available) ActiveFeatures=$(cat active) Gres=x" ;;
requeue) [ ! -e interactive ] ;;
update) for word in "$@"; do case $word in activefeatures=*) echo "${{word#*=}}" >active ;; esac; done ;;
esac
"""


@dataclass
class Bed:
    """A node with modes share and mps, whose Slurm is a script."""

    node: Node
    folder: Path

    def active(self) -> str:
        return (self.folder / "active").read_text().strip()

    def said(self) -> list[str]:
        path = self.folder / "said"
        return path.read_text().splitlines() if path.exists() else []

    def environment(self, job_id: int, mode: str = "share", **more: str) -> dict[str, str]:
        given = {"SLURM_JOB_CONSTRAINTS": f"vgpu_{mode}" if mode else "", "SLURMD_NODENAME": "node1"}
        return job_environment(job_id) | given | more

    def prolog(self, job_id: int, mode: str = "share", **more: str) -> int:
        return prolog_main(self.node.arguments, self.environment(job_id, mode, **more))

    def slurm(self) -> mode_service.Slurm:
        return mode_service.Slurm("node1", str(self.folder / "scontrol"), {"PATH": "/usr/bin:/bin"})

    def outages(self) -> dict[str, Outage]:
        return {each.mode: each for each in mode_outages.read(self.node.settings.state_dir)}

    def kinds(self) -> list[str]:
        return [line.event["kind"] for line in EventReader(self.node.settings.state_dir).read() if line.event]

    def put_out(self, mode: str = "share", seconds: int = 3600, boot_id: str = "") -> None:
        now = int(time.time())
        outage = Outage(mode, now - 10, now + seconds, boot_id or boot.boot_id(), REASON)
        mode_outages.write(self.node.settings.state_dir, (outage,))
        (self.folder / "active").write_text(",".join(n for n in AVAILABLE.split(",") if n != f"vgpu_{mode}"))


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name in ("available", "active"):
        (folder / name).write_text(AVAILABLE)
    scontrol = folder / "scontrol"
    scontrol.write_text(SCONTROL.format(folder=folder))
    scontrol.chmod(0o755)
    monkeypatch.setattr(drain, "find_scontrol", lambda: str(scontrol))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(detached, "start", lambda *_arguments: None)
    node = Node.make(tmp_path / "node")
    node.config.write_text(node.config.read_text() + '[vgpu]\nmodes = ["share", "mps"]\nmode_failures = 3\n')
    return Bed(node, folder)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*_arguments: object) -> None:
        raise NodeError(REASON)

    monkeypatch.setattr(share, "prepare", prepare)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(admin_log, "to_syslog", lambda _level, message: lines.append(message))
    return lines


@pytest.mark.usefixtures("broken")
def test_the_third_failure_takes_the_mode_out_of_the_nodes_features(bed: Bed, logged: list[str]) -> None:
    for job_id in (7, 8, 9):
        assert bed.prolog(job_id) == 0, "slurmd drains the node for any other status"
        assert f"requeue {job_id}" in bed.said()
        assert REASON in (bed.node.jobs / str(job_id) / c.FILE_REFUSED).read_text()
        assert bed.active() == (AVAILABLE if job_id < 9 else "vgpu_mps,vgpu_type_h200")
    assert bed.node.grants() == {}, "nothing is held for jobs that went back"
    outage = bed.outages()["share"]
    assert (outage.until_unix_s - outage.since_unix_s, outage.reason) == (3600, REASON)
    assert bed.kinds() == ["mode_failed", "refused"] * 2 + ["mode_failed", "mode_out", "refused"]
    assert not any("state=drain" in line for line in bed.said())
    (line,) = [line for line in logged if "is out of this node's features" in line]
    assert line.endswith("Next: hami-hpc doctor; when it is well: hami-hpc mode resume share")
    assert any("AdminComment=hami_hpc: mode=share failed on this node for job 9 (3 of 3)" in s for s in bed.said())
    assert mode_outages.read_failures(bed.node.settings.state_dir) == (), "they count anew"


@pytest.mark.usefixtures("broken")
def test_failures_of_another_mode_boot_or_time_do_not_count(bed: Bed) -> None:
    now, boot_id = int(time.time()), boot.boot_id()
    others = (
        Failure("mps", now, boot_id, 1, ""),
        Failure("share", now - 1801, boot_id, 2, ""),
        Failure("share", now - 1, "another", 3, ""),
        Failure("share", now + 999, boot_id, 4, ""),
        Failure("share", now - 5, boot_id, 5, ""),
    )
    mode_outages.write_failures(bed.node.settings.state_dir, others)
    assert bed.prolog(7) == 0
    assert bed.outages() == {}
    assert bed.prolog(8) == 0
    assert list(bed.outages()) == ["share"]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    "text", ["", "{", '{"version": 2}', '{"version": 1, "rows": [{"mode": "share"}]}', "[" * 99999]
)
def test_a_damaged_file_of_failures_begins_anew(bed: Bed, text: str) -> None:
    Path(bed.node.settings.state_dir).mkdir(exist_ok=True)
    Path(mode_outages.failures_path_of(bed.node.settings.state_dir)).write_text(text)
    assert bed.prolog(7) == 0
    assert [each.job_id for each in mode_outages.read_failures(bed.node.settings.state_dir)] == [7]


@pytest.mark.usefixtures("broken")
def test_the_node_is_drained_where_slurm_cannot_keep_the_jobs_away(bed: Bed) -> None:
    """A job whose features name no mode; a setting that says so; a count that cannot be written."""
    assert bed.prolog(7, mode="") == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mode_outages, "write_failures", no_room)
        assert bed.prolog(8) == 1
    bed.node.config.write_text(bed.node.config.read_text().replace("mode_failures = 3", "mode_failures = 0"))
    assert bed.prolog(9) == 1
    assert sum("state=drain" in line for line in bed.said()) == 3
    assert bed.kinds() == ["node_drain"] * 3


def no_room(*_arguments: object) -> None:
    raise NodeError("no room")


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("fault", ["slurmctld is down", "the node has no such feature", "there is no scontrol"])
def test_a_mode_that_cannot_be_taken_out_drains_the_node(
    bed: Bed, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for job_id in (7, 8):
        bed.prolog(job_id)
    if fault == "slurmctld is down":
        (bed.folder / "down").touch()
    elif fault == "the node has no such feature":
        (bed.folder / "available").write_text("vgpu_mps")
    else:
        monkeypatch.setattr(drain, "find_scontrol", lambda: None)
    assert bed.prolog(9) == 1
    is_kept = fault != "the node has no such feature"
    assert list(bed.outages()) == (["share"] if is_kept else []), "slurmctld may have done it without an answer"
    (bed.folder / "down").unlink(missing_ok=True)
    if is_kept:
        mode_service.settle(bed.node.settings, bed.slurm(), "agent")
        assert bed.active() == "vgpu_mps,vgpu_type_h200", "the feature comes back with the end of the outage"
    assert "mode=share cannot be taken out of this node's features" in capsys.readouterr().err


def test_a_fault_of_the_job_does_not_count(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*_arguments: object) -> None:
        raise JobError("the job asked for too much")

    monkeypatch.setattr(share, "prepare", prepare)
    for job_id in range(7, 12):
        assert bed.prolog(job_id) == 0
    assert bed.outages() == {}
    assert mode_outages.read_failures(bed.node.settings.state_dir) == ()


def test_a_running_job_keeps_its_slice_when_its_prolog_fails_at_a_second_run(bed: Bed) -> None:
    assert bed.prolog(7) == 0
    grant = bed.node.grants()[7]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share, "prepare", no_room)
        assert bed.prolog(7) == 1
    assert bed.node.grants()[7] == grant


def test_jobs_that_slurm_sends_to_a_mode_that_is_out_go_back_and_others_run(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of slurmctld, which gives a node all of its features again."""
    started: list[str] = []
    monkeypatch.setattr(detached, "start", lambda module, *_arguments: started.append(module))
    bed.put_out("mps")
    assert bed.prolog(7, mode="mps") == 0
    assert "mode=mps, which is out of service on this node until" in (bed.node.jobs / "7" / c.FILE_REFUSED).read_text()
    assert (bed.said()[-1], started) == ("requeue 7", [mode_service.MODULE])
    assert bed.prolog(8) == 0
    assert list(bed.node.grants()) == [8]
    (bed.folder / "interactive").touch()
    assert bed.prolog(9, mode="mps") == 0, "its steps are refused"
    bed.put_out("share")
    assert bed.prolog(10, mode="") == 1, "Slurm cannot keep a job that names no mode away"
    assert bed.prolog(8) == 0, "a job that has its slice keeps it"


@pytest.mark.parametrize("text", ["{", '{"version": 1, "rows": [{"mode": "rm"}]}'])
def test_a_damaged_file_of_modes_blocks_no_job(bed: Bed, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(mode_outages.path_of(bed.node.settings.state_dir)).parent.mkdir(exist_ok=True)
    Path(mode_outages.path_of(bed.node.settings.state_dir)).write_text(text)
    assert bed.prolog(7) == 0
    assert list(bed.node.grants()) == [7]
    assert "is damaged" in capsys.readouterr().err
    assert epilog_main(bed.node.arguments, bed.environment(7)) == 0


def test_a_file_that_a_user_can_write_is_not_believed(bed: Bed) -> None:
    bed.put_out("share")
    Path(mode_outages.path_of(bed.node.settings.state_dir)).chmod(0o666)
    with pytest.raises(NodeError, match="is not a file that root alone can write"):
        bed.outages()
    assert bed.prolog(7) == 0
    assert list(bed.node.grants()) == [7]


def test_a_mode_comes_back_when_its_time_is_over_or_after_a_restart_of_the_node(bed: Bed) -> None:
    bed.put_out("mps")
    assert mode_service.settle(bed.node.settings, bed.slurm(), "agent") == ()
    assert bed.active() == "vgpu_share,vgpu_type_h200"
    for seconds, boot_id in ((0, ""), (3600, "another boot")):
        bed.put_out("mps", seconds, boot_id)
        (line,) = mode_service.settle(bed.node.settings, bed.slurm(), "agent")
        assert line == f"mode=mps is in this node's features again. It was out: {REASON}"
        assert (bed.active(), bed.outages()) == (AVAILABLE, {})
    assert bed.kinds() == ["mode_back"] * 2


def test_a_mode_stays_out_when_slurmctld_gave_the_node_its_features_again(bed: Bed) -> None:
    bed.put_out("mps")
    (bed.folder / "active").write_text(AVAILABLE)
    mode_service.settle(bed.node.settings, bed.slurm(), "agent")
    assert bed.active() == "vgpu_share,vgpu_type_h200"
    (bed.folder / "active").write_text("vgpu_mps,vgpu_type_h200")  # an administrator's own
    mode_service.settle(bed.node.settings, bed.slurm(), "agent", ("mps",))
    assert bed.active() == "vgpu_mps,vgpu_type_h200", "what others removed stays removed"


def test_a_mode_is_still_out_while_slurmctld_does_not_answer(bed: Bed) -> None:
    bed.put_out("mps", 0)
    (bed.folder / "down").touch()
    with pytest.raises(NodeError, match="Is slurmctld up"):
        mode_service.settle(bed.node.settings, bed.slurm(), "agent")
    assert list(bed.outages()) == ["mps"]
    (bed.folder / "down").unlink()
    assert len(mode_service.settle(bed.node.settings, bed.slurm(), "agent")) == 1


def test_the_agent_puts_a_mode_back_and_reports_a_problem_once(bed: Bed) -> None:
    lines: list[str] = []
    agent = ModeReturns(bed.node.settings, "node1", lines.append)
    agent.settle()
    assert bed.said() == [], "nothing is asked while no mode is out"
    bed.put_out("mps", 0)
    (bed.folder / "down").touch()
    agent.settle()
    agent.settle()
    assert len(lines) == 1
    (bed.folder / "down").unlink()
    agent.settle()
    assert (bed.active(), bed.outages()) == (AVAILABLE, {})


def test_reconcile_puts_a_mode_back_and_a_dry_run_says_so(bed: Bed) -> None:
    bed.put_out("mps", 0)

    def texts(dry_run: bool) -> list[str]:
        results = reconcile(bed.node.settings, frozenset, dry_run, lambda: "node1")
        return [r.action.text for r in results if "mode=" in r.action.text]

    assert len(texts(dry_run=True)) == 1
    assert list(bed.outages()) == ["mps"]
    assert len(texts(dry_run=False)) == 1
    assert (bed.active(), bed.outages(), texts(dry_run=False)) == (AVAILABLE, {}, [])
    bed.put_out("mps", 0)
    (bed.folder / "down").touch()
    results = reconcile(bed.node.settings, frozenset, False, lambda: "node1")
    assert [r.action.kind.value for r in results if "slurmctld" in r.action.text] == ["problem"]


def test_an_epilog_starts_the_return_of_a_mode_whose_time_is_over(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(detached, "start", lambda module, *_arguments: started.append(module))
    bed.put_out("mps")
    assert epilog_main(bed.node.arguments, bed.environment(7)) == 0
    assert started == []
    bed.put_out("mps", 0)
    assert epilog_main(bed.node.arguments, bed.environment(7)) == 0
    assert started == [mode_service.MODULE]


def test_the_process_of_its_own_settles(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    bed.put_out("mps", 0)
    assert mode_service.main(bed.node.arguments, {"SLURMD_NODENAME": "node1"}) == 0
    assert bed.active() == AVAILABLE
    bed.put_out("mps", 0)
    assert mode_service.main(bed.node.arguments, {"SLURMD_NODENAME": "-evil node"}) == 1
    assert "is no name of a node" in capsys.readouterr().err


def run(bed: Bed, *words: str) -> Any:
    environment = {"HAMI_HPC_CONFIG": str(bed.node.config), "HAMI_HPC_NODE": "node1"}
    return CliRunner().invoke(main, ["mode", *words], env=environment)


@pytest.mark.usefixtures("broken")
def test_mode_list_and_resume(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.prolog(7)
    (row, _) = json.loads(run(bed, "list", "--format", "json").stdout)
    assert (row["mode"], row["in_service"], row["failures"], row["reason"]) == ("share", True, 1, REASON)
    bed.put_out("share")
    result = run(bed, "list")
    assert (result.exit_code, "OUT" in result.stdout) == (3, True)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    result = run(bed, "resume", "share")
    assert (result.exit_code, result.stdout) == (
        0,
        f"mode=share is in this node's features again. It was out: {REASON}\n",
    )
    assert bed.active() == AVAILABLE
    assert run(bed, "list").exit_code == 0
    assert "failures" not in run(bed, "resume", "share").output
    assert run(bed, "resume", "share").exit_code == 1
    assert run(bed, "resume").exit_code == run(bed, "list", "mig").exit_code == 2
    mode_outages.write_failures(
        bed.node.settings.state_dir, (Failure("share", int(time.time()), boot.boot_id(), 7, "x"),)
    )
    assert Path(mode_outages.failures_path_of(bed.node.settings.state_dir)).stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (row, _) = json.loads(run(bed, "list", "--format", "json").stdout)
    assert (row["failures"], row["reason"]) == (0, ""), "they name others' jobs"
    assert "only root" in run(bed, "resume", "share").output


def test_doctor_says_what_is_out_and_whether_slurm_knows(bed: Bed) -> None:
    facts = Facts(bed.node.settings, "node1")
    assert list(node_checks.check_modes_out(facts)) == []
    (bed.folder / "active").write_text("vgpu_mps,vgpu_type_h200")
    (found,) = node_checks.check_modes_out(facts)
    assert (found.level, found.detail.split(":")[0]) == ("WARN", "vgpu_share"), "somebody else's doing"
    (bed.folder / "active").write_text(AVAILABLE)
    bed.put_out("mps")
    (found,) = node_checks.check_modes_out(facts)
    assert (found.level, found.advice.split("; ")[-1]) == ("WARN", "then hami-hpc mode resume mps")
    (bed.folder / "active").write_text(AVAILABLE)
    (found,) = node_checks.check_modes_out(facts)
    assert (found.level, "but Slurm has its feature" in found.detail) == ("FAIL", True)
    mode_outages.write(facts.settings.state_dir, ())
    mode_outages.write_failures(
        facts.settings.state_dir, (Failure("mig", int(time.time()), boot.boot_id(), 7, REASON),)
    )
    (found,) = node_checks.check_modes_out(facts)
    assert (found.level, found.detail) == ("WARN", f"1 of 3 until it is taken out of service, last: {REASON}")


def test_a_metric_names_the_modes_that_are_out(bed: Bed) -> None:
    settings = bed.node.settings
    assert "hami_hpc_mode_out" not in expose(settings.run_dir, settings.state_dir).text.decode()
    bed.put_out("mps")
    assert 'hami_hpc_mode_out{mode="mps"} 1.0' in expose(settings.run_dir, settings.state_dir).text.decode()
    Path(mode_outages.path_of(settings.state_dir)).write_text("{")
    assert "hami_hpc_mode_out" not in expose(settings.run_dir, settings.state_dir).text.decode()


def in_child(body: Callable[[], object], at_line: int) -> bool:
    """Runs `body` in a child that is killed at that line of the traced modules; returns whether it was."""
    child = os.fork()
    if child == 0:
        seen = 0

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal seen
            if not frame.f_code.co_filename.endswith(("mode_service.py", "mode_outages.py", "root_file.py")):
                return None
            if event == "line":
                seen += 1
                if seen == at_line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        try:
            os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
            sys.settrace(trace)
            body()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == signal.SIGKILL


@pytest.mark.usefixtures("broken")
def test_a_prolog_killed_at_any_line_leaves_what_the_next_one_finishes(bed: Bed) -> None:
    """The third failure: after the kill the next failing job finds the mode out, or takes it out."""
    line = 0
    while True:
        line += 1
        bed.node.clear()
        bed.node.enter_gpus()
        (bed.folder / "active").write_text(AVAILABLE)
        now, boot_id = int(time.time()), boot.boot_id()
        old = [Failure("share", now, boot_id, job_id, "") for job_id in (5, 6)]
        mode_outages.write_failures(bed.node.settings.state_dir, old)
        was_killed = in_child(lambda: bed.prolog(7), line)
        failures = len(mode_outages.read_failures(bed.node.settings.state_dir))
        assert bed.prolog(8) == 0
        if "share" not in bed.outages():  # the third failure was not counted yet when it was killed
            assert failures == 2
            assert bed.prolog(9) == 0
        assert list(bed.outages()) == ["share"]
        mode_service.settle(bed.node.settings, bed.slurm(), "agent")
        assert bed.active() == "vgpu_mps,vgpu_type_h200"
        if not was_killed:
            break
    assert line > 60


def test_the_return_of_a_mode_that_is_killed_at_any_line_is_finished_by_the_next(bed: Bed) -> None:
    line = 0
    while True:
        line += 1
        bed.put_out("mps", 0)
        was_killed = in_child(lambda: mode_service.settle(bed.node.settings, bed.slurm(), "agent"), line)
        mode_service.settle(bed.node.settings, bed.slurm(), "agent")
        assert (bed.active(), bed.outages()) == (AVAILABLE, {})
        if not was_killed:
            break
    assert line > 30


def test_features_are_changed_by_name_alone() -> None:
    available = ("a", "vgpu_mig", "vgpu_mps", "b")
    assert features(available, ("b", "vgpu_mig", "vgpu_mps"), ["mig"], []) == ["vgpu_mps", "b"]
    assert features(available, ("b",), ["mps"], ["mig", "share"]) == ["vgpu_mig", "b"]
    assert features(available, (), ["mig"], ["mig"]) == []


def test_an_outage_that_everybody_can_read_names_no_job() -> None:
    assert (
        public("job 7 is to have a MIG instance; used by job 812345")
        == "a job is to have a MIG instance; used by a job"
    )


def test_what_counts_as_over_and_recent() -> None:
    outage = Outage("mig", 100, 200, "b", "")
    assert [is_over(outage, now, "b") for now in (99, 100, 199, 200)] == [True, False, False, True]
    assert is_over(outage, 150, "c")
    failures = [Failure("mig", at, "b", 1, "") for at in range(300)]
    kept = recent(failures, 299, 1000, "b")
    assert (len(kept), kept[-1].time_unix_s) == (100, 299)


def test_scontrol_is_asked_about_one_node_by_name(bed: Bed) -> None:
    env = placeholders.environment({"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7"})
    scontrol = str(bed.folder / "scontrol")
    assert node_features.read("node1", scontrol, env) == (tuple(AVAILABLE.split(",")),) * 2
    for name in ("", "-h", "a,b", "node[1-2]", "a b"):
        with pytest.raises(NodeError, match="is no name of a node"):
            node_features.read(name, scontrol, env)
    (bed.folder / "active").write_text("(null)")
    assert node_features.read("node1", scontrol, env)[1] == ()
    with pytest.raises(NodeError, match="does not answer"):
        node_features.read("node1", "/nowhere/scontrol", env)
