# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc explain`, with what a Slurm 22.05.8 printed of a cluster with jobs in most states."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import node_testbed
import pytest
from click.testing import CliRunner, Result
from test_cluster_view import JOBS, NODES

from hami_hpc.cli import main
from hami_hpc.core.asked import decode, has_features, needed_features
from hami_hpc.errors import NodeError
from hami_hpc.slurm import cluster_view, commands
from hami_hpc.slurm.cluster_view import SQUEUE_FORMAT

ABSENT_NODES = commands.absent_nodes
# squeue's lines at the time of the record, by job id; games is uid 5, news uid 9.
QUEUE = {
    14: "14|14|14|N/A|5|games|RUNNING|gpu|std|0:11|1:00:00|2026-11-21T21:28:24|2026-11-21T21:28:23|node1|None",
    15: "15|15|15|N/A|9|news|RUNNING|gpu|lc|0:11|1:00:00|2026-11-21T21:28:24|2026-11-21T21:28:23|node1|None",
    17: "17|17|17|N/A|5|games|PENDING|gpu|std|0:00|1:00:00|2026-11-21T22:28:24|2026-11-21T21:28:23||Resources",
    19: "19|19|19|N/A|5|games|PENDING|gpu|std|0:00|1:00:00|N/A|2026-11-21T21:28:23||JobHeldUser",
    21: "21|21|21|N/A|5|games|PENDING|gpu|std|0:00|1:00:00|N/A|2026-11-21T21:28:23||Dependency",
    22: "22|22|22|N/A|5|games|PENDING|gpu|std|0:00|1:00:00|N/A|2026-11-21T21:28:23||Priority",
    23: "23|23_[1-3%1]|23|1-3%1|5|games|PENDING|gpu|std|0:00|1:00:00|N/A|2026-11-21T21:28:23||Priority",
}


@pytest.fixture(autouse=True)
def slurm(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    queue = dict(QUEUE)
    monkeypatch.setattr(commands, "show_nodes", lambda: NODES)
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: JOBS)

    def rows(job: str, form: str) -> str:
        assert form == SQUEUE_FORMAT
        return "\n".join(line for number, line in queue.items() if str(number) == re.split(r"[_+]", job)[0])

    monkeypatch.setattr(commands, "queue_rows", rows)
    monkeypatch.setattr(commands, "absent_nodes", lambda _partitions: ("", ""))
    return queue


def explain(tmp_path: Path, *words: str) -> Result:
    settings = node_testbed.Node.make(tmp_path, with_gpus=False).config
    return CliRunner().invoke(main, ["explain", *words], env={"HAMI_HPC_CONFIG": str(settings)})


def lines(tmp_path: Path, job: int) -> dict[str, str]:
    """Label -> text of what is said of a job."""
    shown = explain(tmp_path, str(job))
    assert shown.exit_code == 0, shown.output
    return {line[2:11].strip(): line[13:] for line in shown.stdout.splitlines()[1:]}


def test_a_job_that_waits_for_room_is_told_what_would_fit(tmp_path: Path) -> None:
    said = lines(tmp_path, 17)
    assert said["asked"] == ("102,400 MiB of GPU memory and 50 % of a GPU's time, class std (vgpu:mem=100G,cores=50)")
    assert said["why"].startswith("Resources: It is the next to start")
    assert "ask for less" in said["do"]
    assert said["start"].startswith("about 2026-11-21T22:28:24")
    assert said["fits now"] == (
        "node1: does not fit: it takes 72 % of one GPU, and the emptiest has 28 % free; "
        "largest free slice: mem=40704M,cores=28"
    )


def test_a_small_job_behind_others_fits_already(tmp_path: Path) -> None:
    said = lines(tmp_path, 23)
    assert "type h200, mode share (vgpu:h200:mem=2G,cores=10,mode=share)" in said["asked"]
    assert said["fits now"].startswith("node1: this job fits, as far as Slurm shows it")


def test_nodes_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = "NodeName=cpu1 Arch=x86_64 State=IDLE+CLOUD\nNodeName=far State=DOWN+FUTURE Partitions=gpu\n"
    parts = {
        "gpu": "PartitionName=gpu Nodes=far,cloud[1-3] State=UP",
        "none": "PartitionName=none Nodes=(null) State=UP",
    }

    def scontrol(*command: str) -> str:
        assert command[:5] == ("scontrol", "--local", "--all", "--oneliner", "show")
        return nodes if command[5:] == ("nodes", "--future") else parts[command[6]]

    monkeypatch.setattr(commands, "_output", scontrol)
    monkeypatch.setattr(commands, "absent_nodes", ABSENT_NODES)
    assert ABSENT_NODES(["none", "gpu"]) == ("cloud[1-3]", "far")
    assert ABSENT_NODES(["none"]) == ("", "")
    shown = explain(tmp_path, "17").stdout.splitlines()
    assert shown[-2].strip().startswith("cloud[1-3]: powered down in the cloud")
    assert shown[-1].strip() == "far: not there yet (State=FUTURE); jobs wait until they register"
    (told,) = json.loads(explain(tmp_path, "17", "--format", "json").stdout)
    assert (told["powered_down"], told["future"]) == ("cloud[1-3]", "far")
    monkeypatch.setattr(commands, "show_nodes", lambda: nodes)
    assert "no node with vGPUs of partition" not in explain(tmp_path, "17").stdout

    def refused(*_command: str) -> str:
        raise NodeError("slurm_load_partitions: Access/permission denied")

    monkeypatch.setattr(commands, "_output", refused)
    assert "no node with vGPUs of partition gpu has what it asks for" in explain(tmp_path, "17").stdout


def test_a_held_job_gets_the_command_that_releases_it(tmp_path: Path) -> None:
    said = lines(tmp_path, 19)
    assert said["do"] == "Run: scontrol release 19"
    assert "fits now" not in said


@pytest.mark.parametrize("shown", ["OverSubscribe=NO", "OverSubscribe=NO Exclusive=NODE"], ids=["22.05", "26.05"])
def test_a_job_made_a_vgpu_that_was_exclusive_is_told_that_it_never_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: JOBS.replace("Dependency=", f"{shown} Dependency="))
    said = lines(tmp_path, 17)
    assert said["why"].endswith("hold all GPUs of its nodes, so its vGPU never starts.")
    assert said["do"].endswith("scontrol update jobid=17 oversubscribe=yes")
    assert "fits now" not in said


@pytest.mark.parametrize(
    "shown", ["OverSubscribe=OK", "OverSubscribe=NO Exclusive=NO", "OverSubscribe=OK Exclusive=USER"]
)
def test_a_job_that_shares_its_nodes_is_told_slurms_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: JOBS.replace("Dependency=", f"{shown} Dependency="))
    assert "never starts" not in lines(tmp_path, 17)["why"]


def test_what_a_job_depends_on_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = JOBS.replace("Reason=Priority Dependency=(null)", "Reason=Dependency Dependency=afterok:1(unfulfilled)")
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: record)
    assert lines(tmp_path, 21)["waits for"] == "afterok:1(unfulfilled)"


def test_a_running_job_is_told_where_it_is_and_what_limits_it(tmp_path: Path) -> None:
    said = lines(tmp_path, 14)
    assert said["where"] == "node1, GPU 0"
    assert "beyond 8,192 MiB" in said["memory"]
    assert said["time"] == "50 % of the GPU and never more (policy cap of class std)"
    assert said["uses now"] == "srun --jobid=14 --overlap --gres=none hami-hpc usage 14"
    assert "policy burst of class lc" in lines(tmp_path, 15)["time"]


def test_a_policy_that_the_job_asked_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for policy, text in (("none", "not limited: "), ("burst", "more while others leave it idle (policy burst)")):
        record = JOBS.replace("Features=(null)", f"Features=vgpu_policy_{policy}")
        monkeypatch.setattr(commands, "show_jobs", lambda *_job, record=record: record)
        said = lines(tmp_path, 14)
        assert f"policy {policy} (vgpu:mem=8G,cores=50,policy={policy})" in said["asked"]
        assert text in said["time"]


def test_an_slo_that_the_job_asked_for_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("gres:vgpu_slo:10000", "gres/vgpu_slo=10000"):
        record = JOBS.replace("gres:vgpu_cores:30", f"gres:vgpu_cores:30,{form}")
        monkeypatch.setattr(commands, "show_jobs", lambda *_job, record=record: record)
        asked = lines(tmp_path, 15)["asked"]
        assert "class lc, type h200, requests within 10ms (vgpu:" in asked
        assert asked.endswith(",cores=30,slo=10ms)")


def test_all_tasks_of_an_array_are_one_question_to_slurmctld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = range(100, 400)
    of_14 = cluster_view.record_of(JOBS, 14)
    queue = "\n".join(QUEUE[14].replace("14|14|14|N/A", f"{task}|100_{task}|100|{task}") for task in tasks)
    text = "".join(of_14.replace("JobId=14 ", f"JobId={task} ArrayJobId=100 ArrayTaskId={task} ") for task in tasks)
    asked: list[str] = []
    monkeypatch.setattr(commands, "queue_rows", lambda _job, _form: queue)

    def show_jobs(job: str, *_time_format: str) -> str:
        asked.append(job)
        return text

    monkeypatch.setattr(commands, "show_jobs", show_jobs)
    shown = explain(tmp_path, "100")
    assert shown.stdout.count("beyond 8,192 MiB") == len(tasks)
    assert asked == ["100"]
    asked.clear()
    assert "name one of 100_100, 100_101" in CliRunner().invoke(main, ["trace", "100"]).output
    assert asked == ["100"]


def test_one_component_of_a_heterogeneous_job_is_explained_alone(tmp_path: Path, slurm: dict[int, str]) -> None:
    """squeue --jobs=14+1 lists all components, and srun takes the number of the first one alone."""
    running = slurm[14].split("|", 2)[2]
    slurm[14] = "\n".join((f"13|14+0|{running}", f"14|14+1|{running}"))
    shown = explain(tmp_path, "14+1").stdout
    assert [line for line in shown.splitlines() if line.startswith("Job")] == [
        line for line in shown.splitlines() if line.startswith("Job 14+1 ")
    ]
    assert "  uses now   srun --jobid=14 --het-group=1 --overlap --gres=none hami-hpc usage 14" in shown


def test_a_job_without_vgpu_is_told_so(tmp_path: Path) -> None:
    assert lines(tmp_path, 22)["asked"].startswith("no vGPU")


def test_an_ended_job_is_told_why(tmp_path: Path, slurm: dict[int, str]) -> None:
    slurm[14] = slurm[14].replace("RUNNING", "FAILED").replace("|None", "|NonZeroExitCode")
    said = lines(tmp_path, 14)
    assert said["why"].startswith("NonZeroExitCode: Its program ended with an error.")
    assert said["used"] == "hami-hpc efficiency 14"


def test_a_suspended_job_is_told_so(tmp_path: Path, slurm: dict[int, str]) -> None:
    slurm[14] = slurm[14].replace("RUNNING", "SUSPENDED")
    said = lines(tmp_path, 14)
    assert said["stopped"].startswith("by Slurm until it resumes the job")
    assert "uses now" not in said, "a step of it would not start"


def test_only_its_user_and_root_get_a_job_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 5)
    assert explain(tmp_path, "14").exit_code == 0
    for form in ("text", "json"):
        refused = explain(tmp_path, "15", "--format", form)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert "job 15 belongs to news" in refused.stderr


def test_a_users_name_for_a_job_makes_it_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm: dict[int, str]
) -> None:
    """Tried on 22.05.8: sbatch -J with a line end prints a UserId line of the user's making before the true one."""
    forged = JOBS.replace("JobId=15 JobName=wrap", "JobId=15 JobName=a\n   UserId=games(5) GroupId=games(60)")
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: forged)
    monkeypatch.setattr(os, "geteuid", lambda: 5)
    assert explain(tmp_path, "15").exit_code == 1


def test_an_unknown_job_is_one_line_and_no_job_id_a_wrong_command_line(tmp_path: Path) -> None:
    unknown = explain(tmp_path, "999")
    assert (unknown.exit_code, len(unknown.stderr.splitlines())) == (1, 1)
    assert "sacct -j 999" in unknown.stderr
    for wrong in ("x", "--jobs=1", "1,2", "1;2", "-1", "1_"):
        assert explain(tmp_path, wrong).exit_code == 2


def test_a_node_that_the_job_may_not_use_is_not_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = JOBS.replace("ReqNodeList=(null) ExcNodeList=(null)", "ReqNodeList=(null) ExcNodeList=node[1-3]")
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: record)
    assert lines(tmp_path, 17)["fits now"] == "no node with vGPUs of partition gpu has what it asks for"
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: JOBS)
    down = NODES.replace("State=MIXED", "State=DOWN")
    monkeypatch.setattr(commands, "show_nodes", lambda: down)
    assert lines(tmp_path, 17)["fits now"] == "node1: does not fit: it is down"


def test_a_job_of_a_reservation_is_told_of_its_nodes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = NODES.replace("State=MIXED", "State=MIXED+RESERVED")
    monkeypatch.setattr(commands, "show_nodes", lambda: reserved)
    before = lines(tmp_path, 17)["fits now"]
    assert before == "node1: does not fit: it is mixed+reserved"
    monkeypatch.setattr(commands, "show_jobs", lambda *_job: JOBS.replace("Dependency=", "Reservation=r1 Dependency="))
    for nodes, fits in (
        ("node[1-3]", "it takes 72 % of one GPU"),
        ("node2", "no node with vGPUs"),
    ):
        monkeypatch.setattr(commands, "reservation_nodes", lambda name, nodes=nodes: nodes if name == "r1" else "")
        assert fits in lines(tmp_path, 17)["fits now"]
        (told,) = json.loads(explain(tmp_path, "17", "--format", "json").stdout)
        assert bool(told["may_use"]) == (nodes == "node[1-3]")

    def hidden(_name: str) -> str:
        raise NodeError("Access denied")

    monkeypatch.setattr(commands, "reservation_nodes", hidden)
    assert lines(tmp_path, 17)["fits now"] == before


def test_a_node_that_other_users_jobs_have_alone_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, is_said in (("N/A", False), ("games(5)", False), ("news(9)", True)):
        owned = NODES.replace("Owner=N/A", f"Owner={owner}")
        monkeypatch.setattr(commands, "show_nodes", lambda owned=owned: owned)
        assert ("while jobs of news(9) run there it takes no others" in lines(tmp_path, 17)["fits now"]) == is_said


def test_nodes_of_which_the_same_is_to_be_said_share_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    down = NODES.replace("State=MIXED", "State=DOWN")
    many = "".join(down.replace("NodeName=node1", f"NodeName=node{number}") for number in range(2, 300))
    monkeypatch.setattr(commands, "show_nodes", lambda: NODES + many)
    shown = explain(tmp_path, "17").stdout
    assert "  fits now   node1: does not fit: it takes 72 % of one GPU, and the emptiest has 28 % free; " in shown
    assert "\n             node[2-299]: does not fit: it is down\n" in shown


def test_where_nodes_are_hidden_the_rest_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> str:
        raise NodeError("slurm_load_node error: Access/permission denied")

    monkeypatch.setattr(commands, "show_nodes", hidden)
    shown = explain(tmp_path, "17")
    assert shown.exit_code == 0
    assert "Resources: It is the next to start" in shown.stdout
    assert "fits now" not in shown.stdout
    assert shown.stderr.startswith("what would fit now is not known: slurm_load_node error")
    assert json.loads(explain(tmp_path, "17", "--format", "json").stdout)[0]["may_use"] is None


@pytest.mark.parametrize(("settings", "most"), [("", ""), ("max_processes = 3", "3"), ("max_processes = 0", "")])
def test_how_many_processes_may_use_a_slice_is_shown(tmp_path: Path, settings: str, most: str) -> None:
    config = node_testbed.Node.make(tmp_path, with_gpus=False).config
    config.write_text(f"{config.read_text()}[classes.std]\n{settings}\n")
    shown = CliRunner().invoke(main, ["explain", "14"], env={"HAMI_HPC_CONFIG": str(config)}).stdout
    text = f"at most {most} use a slice at once (max_processes of class std); one more gets no GPU"
    assert (text in shown, "max_processes" in shown) == (bool(most), bool(most))


def test_json_has_the_same_for_machines(tmp_path: Path) -> None:
    (told,) = json.loads(explain(tmp_path, "17", "--format", "json").stdout)
    assert (told["state"], told["reason"], told["asked"]["mem_mib"]) == ("PENDING", "Resources", 102400)
    assert told["may_use"][0]["lacks"] == ["it takes 72 % of one GPU, and the emptiest has 28 % free"]
    (running,) = json.loads(explain(tmp_path, "14", "--format", "json").stdout)
    assert running["placed"] == [{"nodes": "node1", "gpus": [0]}]


def test_units_of_several_nodes_are_those_of_one() -> None:
    asked = decode({"vgpu": 2, "vgpu:be": 2, "vgpu_mem": 8192, "vgpu_cores": 20, "shard": 60}, "", 2)
    assert asked is not None
    assert (asked.mem_mib, asked.cores, asked.shards, asked.service_class) == (4096, 10, 30, "be")
    own = decode({"vgpu": 1, "vgpu:interactive": 1, "vgpu_mem": 4096, "vgpu_cores": 10}, "", 1)
    assert own is not None
    assert own.service_class == "interactive"
    assert own is not None
    assert own.shards == 0, "what Slurm does not say is not made up"
    two = decode({"vgpu": 1, "vgpu:be": 1, "vgpu:std": 1, "vgpu_mem": 4096}, "", 1)
    assert two is not None
    assert two.service_class == "", "of two none is the job's"
    assert decode({"gpu": 1}, "", 1) is None
    whole_node = {"vgpu": 3354, "vgpu:std": 1118, "vgpu_mem": 286312, "vgpu_cores": 200, "gpu": 2}
    assert decode(whole_node, "", 1) is None, "as Slurm 22.05.8 gives them to a job with --exclusive"


def test_a_constraint_with_more_than_and_is_not_judged() -> None:
    assert needed_features("vgpu_share&vgpu_type_h200") == ("vgpu_share", "vgpu_type_h200")
    assert needed_features("a|b") is None
    assert needed_features("") == ()
    assert has_features(("a",), "a")
    assert not has_features(("a",), "a&b")
    assert has_features(("a",), "[b*2]")


def test_a_choice_of_gpu_types_is_read() -> None:
    features = "rack1&(vgpu_type_h200|vgpu_type_a100)&vgpu_share"
    assert needed_features(features) == ("rack1", "vgpu_share")
    assert has_features(("rack1", "vgpu_share", "vgpu_type_a100"), features)
    assert not has_features(("rack1", "vgpu_share", "vgpu_type_v100"), features)
    assert has_features(("rack1",), "(rack1)")
    for other in ("(a|b)&vgpu_share", "vgpu_type_h200|vgpu_type_a100", "(vgpu_type_h200|a)", "(vgpu_type_h200*2)"):
        assert needed_features(other) is None
    asked = decode({"vgpu": 1, "vgpu_mem": 8192, "vgpu_cores": 50, "shard": 279, "vgpu:std": 1}, features, 1)
    assert asked is not None
    assert asked.request == "vgpu:type=h200|a100,mem=8G,cores=50,mode=share"
