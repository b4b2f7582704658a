# SPDX-License-Identifier: Apache-2.0
"""The agent against hostile users and unlucky administrators: whom it must not blame, and what must not stop it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hami_hpc.agent.gpus import OPEN_AGAIN_NS, Gpus
from hami_hpc.agent.processes import ASK, Processes
from hami_hpc.agent.slurm_port import SlurmPort
from hami_hpc.core.agent_state import LOST, OK, AgentState, Event, JobState, from_json, to_json
from hami_hpc.core.watch import SECOND
from hami_hpc.errors import NodeError
from hami_hpc.slurm.step_pids import parse_listpids, run_command


def test_a_process_of_which_slurm_does_not_say_the_job_is_not_of_no_job() -> None:
    """Else a missing scontrol, or a step that does not answer, makes each process of a job one of no job."""
    answers: list[dict[int, int] | None] = [None] * (3 * ASK)
    with subprocess.Popen(["sleep", "100"]) as process:
        processes = Processes(lambda: answers.pop(0))
        try:
            jobs = [processes.look([process.pid])[process.pid][1].job_id for _ in range(3 * ASK)]
            assert set(jobs) == {-1}
            answers.append({process.pid: 7})
            assert processes.look([process.pid])[process.pid][1].job_id == 7
        finally:
            process.kill()


@pytest.mark.parametrize("text", ["", "scontrol: error: nothing\n", "12 7\n13 8\n", "\0\xff"])
def test_rubbish_is_no_list_of_processes(text: str) -> None:
    assert parse_listpids(text) is None


def test_the_list_of_a_node_without_steps_is_empty_and_that_of_a_step_that_does_not_answer_unknown(
    tmp_path: Path,
) -> None:
    program = tmp_path / "scontrol"
    head = "#!/bin/sh\nprintf 'PID JOBID STEPID LOCALID GLOBALID\\n'; "
    for said, expected in (("No job steps exist on this node.", {}), ("Unable to connect to StepId=7.0", None)):
        program.write_text(f"{head}echo '{said}' >&2; exit 1\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        assert parse_listpids(run_command((str(program), "listpids"), 5) or "") == expected


def test_a_host_that_is_several_nodes_is_asked_for_the_processes_of_this_one() -> None:
    asked: list[tuple[str, ...]] = []
    head = "PID JOBID STEPID LOCALID GLOBALID\n"

    def run(command: tuple[str, ...], _timeout_s: float) -> str:
        asked.append(command[1:])
        return head + {"node2": "12 7 0 0 0\n", "listpids": "11 7 0 0 0\n"}.get(command[-1], "")

    assert SlurmPort("node2", print, run).listed_pids() == {12: 7}
    assert asked == [("listpids", "*", "node2")]
    assert SlurmPort("misspelt", print, run).listed_pids() == {11: 7}, "nobody is without a job for a wrong --node"


ARRAY = (
    "JobId=2 ArrayJobId=2 ArrayTaskId=3 JobState=RUNNING Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:h200:1(IDX:0) \n"
    "JobId=3 ArrayJobId=2 ArrayTaskId=1 JobState=RUNNING Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:h200:1(IDX:1) \n"
)


class Commands:
    """Slurm's commands: what `scontrol show job` and squeue say, and what was run."""

    def __init__(self, shown: str | None, listed: str | None = "") -> None:
        self.shown, self.listed = shown, listed
        self.run: list[tuple[str, ...]] = []

    def __call__(self, command: tuple[str, ...], _timeout_s: float) -> str | None:
        self.run.append(command)
        return self.listed if command[0] == "squeue" else self.shown if "show" in command else ""


# squeue --format="%A %F %K" of an array, of which task 5 waits.
LISTED = "2 2 3\n3 2 1\n4 2 5\n7 7 N/A\n"


@pytest.mark.parametrize(
    ("listed", "job_id", "name"),
    [(LISTED, 2, "2_3"), (LISTED, 3, "2_1"), (LISTED, 7, "7")],
)
def test_the_end_of_one_task_of_an_array_leaves_the_others_alone(listed: str | None, job_id: int, name: str) -> None:
    """`scancel 2` ends all tasks of array 2, one of which has the job id 2. What scontrol shows has a user's text, by
    which the agent would end another user's job."""
    forged = f"JobId={job_id} JobName=x\nJobId={job_id} ArrayJobId=99 ArrayTaskId=1 \n"
    commands = Commands(forged, listed)
    port = SlurmPort("node1", lambda _text: None, commands)
    port.fail(job_id, "text")
    port.finish()
    assert commands.run[1:] == [
        ("scontrol", "update", f"JobId={name}", "AdminComment=hami_hpc: text"),
        ("scancel", name),
    ]


@pytest.mark.parametrize("listed", [None, "", "3 2 1\n", "2 2 [1-3]\n"])
def test_a_job_that_squeue_does_not_name_is_left_alone(listed: str | None) -> None:
    """Its id may be that of all tasks of its array."""
    commands, reports = Commands("", listed), list[str]()
    port = SlurmPort("node1", reports.append, commands)
    port.fail(2, "text")
    port.comment(2, "text")
    port.requeue(2)
    port.finish()
    assert [command[0] for command in commands.run] == ["squeue"] * 3
    why = "squeue does not say whether job 2 is a task of an array: is slurmctld up (scontrol ping)?"
    assert reports == [f"job 2 could not be {done}: {why}" for done in ("ended", "commented", "requeued")]


@pytest.mark.parametrize("shown", ["", "slurm_load_jobs error: none\n", "JobId=70 GRES=gpu:h200:1(IDX:1)", "\0"])
def test_an_answer_that_is_not_about_the_job_says_nothing_of_its_gpus(shown: str) -> None:
    port = SlurmPort("node1", lambda _text: None, Commands(shown))
    for _ in range(2):
        assert port.held_by(7) is None
        port.finish()


def answers(command: tuple[str, ...], _timeout_s: float) -> str:
    """Slurm's commands, where ARRAY runs."""
    if command[0] == "squeue":
        return "2 2_3\n3 2_1\n4 2_[5-7]\n"
    return {"2_3": ARRAY.splitlines()[0], "2_1": ARRAY.splitlines()[1]}.get(command[-1], ARRAY)


def test_the_gpus_of_a_task_are_not_those_of_the_other_tasks() -> None:
    port = SlurmPort("node1", lambda _text: None, answers)
    for job_id, index in ((2, 0), (3, 1)):
        assert port.held_by(job_id) is None
        port.finish()
        assert port.held_by(job_id) == frozenset({index})


@pytest.mark.parametrize(
    "forged", ["x\n{head}Nodes=node1 CPU_IDs=0 Mem=0 {gres}", "x {head} Nodes=node1 {gres}\n{head}"]
)
def test_a_name_with_line_ends_gives_a_job_no_gpus(forged: str) -> None:
    head, gres = "JobId=7 ", "GRES=gpu:h200:2(IDX:0-1)"
    name = forged.format(head=head, gres=gres)
    place = "JOB_GRES=shard:h200:9  Nodes=node1 CPU_IDs=0 Mem=0 GRES=shard:h200:9(IDX:1) MinCPUsNode=1"
    shown = f"{head}JobName={name} UserId=user(1000) {place} Comment={name} \n"
    port = SlurmPort("node1", lambda _text: None, Commands(shown, "7 7\n"))
    assert port.held_by(7) is None
    port.finish()
    assert port.held_by(7) == frozenset({1})
    assert port.whole_here(7) == frozenset()


def fake_process(root: Path, pid: int) -> Path:
    """Makes what is read of a process, in a directory that stands for /proc. Returns its directory."""
    directory = root / str(pid)
    directory.mkdir()
    (directory / "stat").write_text(f"{pid} (a b) R " + " ".join(["1"] * 48))
    (directory / "status").write_text("Name:\ta\nUid:\t1000\t1000\t1000\t1000\n")
    (directory / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_7/step_0\n")
    (directory / "maps").write_text("1000-2000 r-xp 0 0:1 5 /bin/a\n")
    return directory


def test_a_process_whose_memory_map_cannot_be_read_delays_nobody(tmp_path: Path) -> None:
    """It may hang in a driver with its memory map locked, or on a file system of the user's own."""
    stuck = fake_process(tmp_path, 10) / "maps"
    stuck.unlink()
    os.mkfifo(stuck)
    fake_process(tmp_path, 11)
    processes = Processes(lambda: {}, str(tmp_path))
    start = time.monotonic()
    for _ in range(8):
        seen = {pid: known.has_interposer for pid, (_, known) in processes.look([10, 11]).items()}
    assert time.monotonic() - start < 5
    assert seen == {10: None, 11: False}
    pipe = stuck.rename(tmp_path / "pipe")
    stuck.write_text("1000-2000 r-xp 0 0:1 5 /bin/a\n")
    pipe.write_text("")  # it goes on
    end = time.monotonic() + 5
    while seen[10] is None and time.monotonic() < end:
        seen = {pid: known.has_interposer for pid, (_, known) in processes.look([10, 11]).items()}
    assert seen == {10: False, 11: False}


@pytest.mark.parametrize("wrong", ['"peak_bytes":"1"', '"peak_bytes":null', '"busy_ns":[]', '"gpu_uuid":7'])
def test_a_state_file_with_values_of_another_kind_is_none(wrong: str) -> None:
    """The agent would fail at each look, and at each start again."""
    name = wrong.partition(":")[0].strip('"')
    job = JobState(7, 5, 1, "std", "cap", "share", "GPU-1", 0, 1, 5, 1, 1, 1, 0.0, 1, 1, 1, (), 0, 0, 0, 0)
    state = AgentState("boot", 1, 1, 1, 1, 1, (), (job,), (), (Event(1, "a", 0, "", "", ""),))
    text = to_json(state)
    assert from_json(text) == state
    table = json.loads(text)
    table["jobs"][0][name] = json.loads(wrong.partition(":")[2])
    assert from_json(json.dumps(table)) is None


class NvmlError(Exception):
    """pynvml's: of a lost GPU, unless it is given a number."""

    @property
    def value(self) -> int:
        return self.args[0] if isinstance(self.args[0], int) else 15


class FakeNvml(ModuleType):
    """NVML with GPUs of these minors; None is one that is lost."""

    NVMLError = NvmlError
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_FUNCTION_NOT_FOUND = 3, 13
    NVML_TEMPERATURE_GPU = 0
    nvmlMemory_v2 = 2  # noqa: N815

    def __init__(self, minors: list[int | None]) -> None:
        super().__init__("pynvml")
        self.minors = minors
        self.counts = True
        self.shutdowns = 0
        self.nvmlLib = SimpleNamespace()  # without the functions that list processes

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shutdowns += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if not self.counts:
            raise NvmlError("unknown")
        return len(self.minors)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        minor = self.minors[index]
        if minor is None:
            raise NvmlError("lost")
        return minor

    def nvmlDeviceGetMemoryInfo(self, _handle: int, version: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=1 << 37, reserved=0, used=0, version=version)

    def nvmlDeviceGetUtilizationRates(self, _handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=0)

    def __getattr__(self, name: str) -> object:
        values = {
            "MinorNumber": lambda handle: handle,
            "UUID": lambda handle: f"GPU-{handle}",
            "Name": lambda _: "H200",
            "MigMode": lambda _: [0, 0],
        }
        return values.get(name.removeprefix("nvmlDeviceGet"), lambda *_: 0)


def test_nvml_that_cannot_count_gpus_is_closed_and_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    module = FakeNvml([0])
    module.counts = False
    monkeypatch.setattr("hami_hpc.node.nvml.open_nvml", lambda: module)
    now = [0]
    gpus = Gpus({}, now_ns=lambda: now[0], now_unix_us=lambda: 0)
    for _ in range(3):
        with pytest.raises(NodeError, match="listing GPUs"):
            gpus.look()
    assert module.shutdowns == 1
    module.counts, now[0] = True, 11 * SECOND
    assert len(gpus.look()) == 1


def test_a_gpu_that_is_lost_at_the_start_does_not_change_the_numbers_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a job on GPU 1 is a job that uses a GPU which Slurm did not give it."""
    module = FakeNvml([None, 1, 2])
    monkeypatch.setattr("hami_hpc.node.nvml.open_nvml", lambda: module)
    assert [one.gpu.slurm_index for one in Gpus({}).look()] == [1, 2]


def test_a_process_that_slurm_does_not_list_because_it_has_ended_is_not_of_no_job() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:

        def ends() -> dict[int, int]:
            process.kill()
            process.wait()
            return {}

        assert Processes(ends).look([process.pid])[process.pid][1].job_id == -1


def test_a_process_that_executes_one_program_after_the_other_does_not_run_without_the_interposer(
    tmp_path: Path,
) -> None:
    """It has no libraries at the moment at which a program begins."""
    directory = fake_process(tmp_path, 10)
    processes = Processes(dict, str(tmp_path))
    read = processes._slow.read
    times = 0

    def read_and_execute(pid: int) -> bool | None:
        nonlocal times
        times += 1
        found = read(pid)
        fields = ["1"] * 22 + [str(times + 1)] + ["1"] * 25  # another start of the program's code
        (directory / "stat").write_text(f"{pid} (a b) R " + " ".join(fields))
        return found

    processes._slow.read = read_and_execute
    for _ in range(5):
        assert [known.has_interposer for _, known in processes.look([10]).values()] == [None]
    processes._slow.read = read
    assert processes.look([10])[10][1].has_interposer is False


def test_a_scontrol_that_hangs_makes_one_look_wait_and_not_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami_hpc.agent.slurm_port.LOCAL_TIMEOUT_S", 0.2)
    times = 0

    def hang(_command: tuple[str, ...], timeout_s: float) -> str | None:
        nonlocal times
        times += 1
        time.sleep(timeout_s)
        return None

    port = SlurmPort("node1", lambda _text: None, hang)
    assert [port.listed_pids() for _ in range(5)] == [None] * 5
    assert times == 1


def test_a_gpu_that_did_not_answer_when_nvml_was_opened_is_watched_once_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = FakeNvml([0, 1])
    monkeypatch.setattr("hami_hpc.node.nvml.open_nvml", lambda: module)
    now = [0]
    gpus = Gpus({}, now_ns=lambda: now[0], now_unix_us=lambda: now[0] // 1000)

    def states(seconds: int) -> list[tuple[int, str]]:
        now[0] += seconds * SECOND
        return sorted((one.gpu.minor, one.state) for one in gpus.look())

    assert states(1) == [(0, OK), (1, OK)]
    gpus._close("the driver is replaced", OPEN_AGAIN_NS)
    module.minors = [0, None]
    assert states(11) == [(0, OK), (1, LOST)]
    module.minors = [None, None]
    gpus._close("again", OPEN_AGAIN_NS)
    with pytest.raises(NodeError, match="none of its 2 GPUs"):
        states(11)
    module.minors = [0, None]
    assert states(11) == [(0, OK), (1, LOST)]
    module.minors = [0, 1]
    states(61)
    assert states(1) == [(0, OK), (1, OK)]
