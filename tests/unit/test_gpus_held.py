# SPDX-License-Identifier: Apache-2.0
"""Jobs with whole GPUs: one whose GPU is others' is sent back, and nothing else keeps one from starting."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_testbed import UUIDS, Node, job_environment
from slices_testbed import Controller, refusal, replace_controller, rows

from hami_hpc.contract import constants as c
from hami_hpc.core.out_of_service import DrainedGpu
from hami_hpc.errors import NodeError
from hami_hpc.node import drain, drained_gpus, job_dirs
from hami_hpc.node.event_reader import EventReader
from hami_hpc.stages.epilog import main as epilog_main
from hami_hpc.stages.prolog import main as prolog_main

SLICE, WHOLE = 7, 9
FORGED_LINE = "   Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:60(IDX:0)"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node where job SLICE has a slice of GPU 0."""
    made = Node.make(tmp_path / "node")
    assert made.prolog(SLICE) == 0
    return made


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    made = replace_controller(monkeypatch, tmp_path / "slurm", 0.3, 0.3)
    made.has_here(SLICE, WHOLE, row=f"{WHOLE} {WHOLE} N/A")
    return made


def environment(gpus: str) -> dict[str, str]:
    units = ("HAMI_HPC_VGPU", c.ENV_CLASS, c.ENV_MEM_MIB, c.ENV_CORES)
    made = {name: value for name, value in job_environment(WHOLE).items() if name not in units}
    return made | {"SLURM_JOB_GPUS": gpus, "SLURMD_NODENAME": "n1"}


def start(node: Node, controller: Controller, gpus: str = "0", gres: str = "gpu:1(IDX:0)") -> str:
    """Runs the prolog of job WHOLE, which never fails. Returns the text with which its steps are refused, or ""."""
    controller.shows(WHOLE, gres)
    assert prolog_main(node.arguments, environment(gpus)) == 0
    return refusal(node, WHOLE)


def refused(node: Node) -> list[tuple[object, ...]]:
    """Of each event that says that a job was refused: who wrote it, the job, and what was done."""
    shown = [line.event for line in EventReader(node.settings.state_dir).read() if line.event]
    return [(one["source"], one["job_id"], one["action"]) for one in shown if one["kind"] == "refused"]


def test_a_whole_gpu_of_which_another_job_has_a_slice_is_not_the_jobs(
    node: Node, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    text = start(node, controller)
    assert f"job {WHOLE} was given GPU 0 ({UUIDS[0]}) as a whole, of which job {SLICE} has a slice" in text
    assert "Slurm before 23.11.5" in text
    asked = controller.questions()
    assert asked[-1] == f"requeue incomplete {WHOLE}"
    assert any("AdminComment=hami_hpc: job 9 was given GPU 0" in line for line in asked)
    assert capsys.readouterr().err.strip().endswith("submit any other again. It was requeued")
    assert refused(node) == [("prolog", WHOLE, "requeued")]
    assert [grant.job_id for grant in rows(node)] == [SLICE]
    assert epilog_main(node.arguments, environment("0")) == 0
    assert not (node.jobs / str(WHOLE)).exists()


def test_a_name_that_looks_like_an_answer_of_slurmctld_does_not_hide_that_the_gpu_is_others(
    node: Node, controller: Controller
) -> None:
    assert f"of which job {SLICE} has a slice" in start(node, controller, gres="gpu:1(IDX:0)\n  " + FORGED_LINE)


def test_of_an_array_whose_last_task_has_its_id_that_task_alone_is_sent_back(
    node: Node, controller: Controller
) -> None:
    controller.has_here(SLICE, WHOLE, row=f"{WHOLE} {WHOLE} 3")
    assert f"of which job {SLICE} has a slice" in start(node, controller)
    update, requeue = controller.questions()[-2:]
    assert update.startswith(f"update JobId={WHOLE}_3 AdminComment=hami_hpc: job {WHOLE} was given GPU 0")
    assert requeue == f"requeue incomplete {WHOLE}_3"


def test_a_job_that_cannot_be_requeued_has_its_steps_refused(
    node: Node, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.write('case $* in *requeue*) exit 1;; *) cat "${0%/*}/answer";; esac')
    assert "submit any other again" in start(node, controller)
    assert refused(node) == [("prolog", WHOLE, "steps refused")]
    assert capsys.readouterr().err.strip().endswith("submit any other again. Its steps will be refused")


def test_a_prolog_that_does_not_know_its_node_or_has_no_scontrol_sends_nobody_back(
    node: Node, controller: Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.shows(WHOLE, "gpu:1(IDX:0)")
    nameless = {name: value for name, value in environment("0").items() if name != "SLURMD_NODENAME"}
    assert prolog_main(node.arguments, nameless) == 0
    monkeypatch.setattr(drain, "find_scontrol", lambda: None)
    assert prolog_main(node.arguments, environment("0")) == 0
    assert refusal(node, WHOLE) == ""
    assert controller.questions() == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("gpus", "gres"),
    [("1", "gpu:h200:1(IDX:1)"), ("0", "shard:60(IDX:0)"), ("0,1", "gpu:1(IDX:1),shard:60(IDX:0)")],
    ids=["another GPU", "bare shards", "both"],
)
def test_a_job_that_shares_no_gpu_with_a_slice_starts(node: Node, controller: Controller, gpus: str, gres: str) -> None:
    assert start(node, controller, gpus, gres) == ""


def test_a_slice_of_a_job_that_slurm_does_not_have_any_more_is_ended_first(node: Node, controller: Controller) -> None:
    controller.has_here(WHOLE)
    assert start(node, controller) == ""
    assert rows(node) == ()


@pytest.mark.parametrize("body", ["exit 1", "sleep 3", "echo nonsense"])
def test_where_slurmctld_does_not_say_that_the_gpu_is_the_jobs_it_starts(
    node: Node, controller: Controller, body: str, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.write(body)
    assert start(node, controller) == ""
    assert f"whether the GPUs of job {WHOLE} are free is not known" in capsys.readouterr().err


def test_a_damaged_ledger_keeps_no_job_with_whole_gpus_from_starting(node: Node, controller: Controller) -> None:
    for path in Path(node.settings.run_dir).glob("ledger*"):
        if path.is_file():
            path.write_bytes(b"no ledger")
    assert start(node, controller) == ""


def test_a_gpu_out_of_service_is_given_to_no_job_as_a_whole(node: Node, controller: Controller) -> None:
    Path(node.settings.state_dir).mkdir(exist_ok=True)
    drained_gpus.write(node.settings.state_dir, (DrainedGpu(UUIDS[1], 1, 1, "Xid 63", 1_790_000_000),))
    text = start(node, controller, "1", "gpu:1(IDX:1)")
    assert text.startswith(f"job {WHOLE} was given GPU 1 ({UUIDS[1]}), which is out of service: Xid 63. A batch job")


def test_a_gpu_in_the_place_of_one_out_of_service_is_given_as_a_whole(node: Node, controller: Controller) -> None:
    Path(node.settings.state_dir).mkdir(exist_ok=True)
    drained_gpus.write(node.settings.state_dir, (DrainedGpu("GPU-gone", 1, 1, "Xid 63", 1_790_000_000),))
    assert start(node, controller, "1", "gpu:1(IDX:1)") == ""


def test_slurmctld_is_not_asked_where_nobody_has_a_slice(tmp_path: Path, controller: Controller) -> None:
    node = Node.make(tmp_path / "other")
    assert start(node, controller) == ""
    assert controller.questions() == []


def test_where_the_run_directory_is_full_a_batch_job_goes_back_all_the_same(
    node: Node, controller: Controller, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_arguments: object) -> None:
        raise NodeError("No space left on device")

    monkeypatch.setattr(job_dirs, "place_refusal", full)
    assert start(node, controller) == ""
    assert controller.questions()[-1] == f"requeue incomplete {WHOLE}"
    report = f"hami_hpc: prolog: job {WHOLE}: its steps cannot be refused: No space left on device"
    assert report in capsys.readouterr().err


def test_a_job_that_squeue_does_not_name_is_refused_and_not_sent_back(
    node: Node, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its id may be that of all tasks of its array, which run."""
    controller.has_here(SLICE, WHOLE, row="")
    assert start(node, controller).startswith(f"job {WHOLE} was given GPU 0")
    assert not [line for line in controller.questions() if line.startswith(("requeue", "update"))]
    assert refused(node) == [("prolog", WHOLE, "steps refused")]
    report = f"job {WHOLE} is not requeued: squeue does not say whether job {WHOLE} is a task of an array"
    assert report in capsys.readouterr().err


@pytest.mark.parametrize("table", ["", "[agent]\n"], ids=["without an agent", "with one"])
def test_an_earlier_run_that_was_refused_refuses_no_later_one(node: Node, controller: Controller, table: str) -> None:
    """Its epilog was killed."""
    node.config.write_text(node.config.read_text() + table)
    assert start(node, controller)
    assert node.epilog(SLICE) == 0
    assert start(node, controller) == ""
    assert (node.jobs / str(WHOLE)).exists() == bool(table)
