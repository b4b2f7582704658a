# SPDX-License-Identifier: Apache-2.0
"""A mode that is out of the node's features: how it comes back, who says so, and what a kill leaves (docs/adr/056)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from forked import fork, killing, points
from mode_testbed import AVAILABLE, REASON, Bed, bed, broken

from hami_hpc.agent import mode_returns
from hami_hpc.cli import main
from hami_hpc.core.mode_outage import Failure, Outage, features, is_over, public, recent
from hami_hpc.doctor import node_checks
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import NodeError
from hami_hpc.metrics.exposition import expose
from hami_hpc.node import boot, mode_outages
from hami_hpc.slurm import node_features, placeholders
from hami_hpc.stages import detached, mode_service
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.reconcile import reconcile

__all__ = ["bed", "broken"]  # fixtures


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
    agent = mode_returns.make(bed.node.settings, "node1", lines.append)
    agent.once()
    assert bed.said() == [], "nothing is asked while no mode is out"
    bed.put_out("mps", 0)
    (bed.folder / "down").touch()
    agent.once()
    agent.once()
    assert len(lines) == 1
    (bed.folder / "down").unlink()
    agent.once()
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
    started: list[tuple[str, str]] = []

    def start(module: str, _settings: object, environment: Mapping[str, str], _wait_s: float) -> None:
        started.append((module, environment["SLURMD_NODENAME"]))

    monkeypatch.setattr(detached, "start", start)
    bed.put_out("mps")
    assert epilog_main(bed.node.arguments, bed.environment(7)) == 0
    assert started == []
    bed.put_out("mps", 0)
    assert epilog_main(bed.node.arguments, bed.environment(7)) == 0
    assert started == [(mode_service.MODULE, "node1")]


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
    child = fork()
    if child == 0:
        traced = ("mode_service.py", "mode_outages.py", "root_file.py")
        try:
            os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
            sys.settrace(killing(at_line, lambda code: code.co_filename.endswith(traced)))
            body()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == signal.SIGKILL


@pytest.mark.own_process
@pytest.mark.usefixtures("broken")
def test_a_prolog_killed_at_any_line_leaves_what_the_next_one_finishes(bed: Bed) -> None:
    """The third failure: after the kill the next failing job finds the mode out, or takes it out."""
    for line in points():
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


@pytest.mark.own_process
def test_the_return_of_a_mode_that_is_killed_at_any_line_is_finished_by_the_next(bed: Bed) -> None:
    for line in points():
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
