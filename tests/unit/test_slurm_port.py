# SPDX-License-Identifier: Apache-2.0
"""hami_hpc/agent/slurm_port.py: what Slurm's commands print, and what happens when they do not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hami_hpc.agent import slurm_port
from hami_hpc.agent.slurm_port import WAITING_MAX, SlurmPort, parse_held, parse_whole
from hami_hpc.slurm.step_pids import REFUSED, listed_pids, parse_listpids, run_command, run_past_dead_steps

RECORDED = Path(__file__).with_name("recorded") / "jobs-22.05.8.txt"
HEAD = "PID      JOBID    STEPID   LOCALID GLOBALID\n"
# As src/scontrol/info_job.c prints it: 22.05 and 24.11 with %-8d %-8u %-8s %-7d %-8d, and - for a task's children.
LISTED = (
    f"{HEAD}"
    "4242     77       batch    0       0       \n"
    "4250     77       batch    -       -       \n"
    "4300     78       extern   0       0       \n"
    "4301     78       0        1       17      \n"
    "4194303  4294967294 0+1      0       0       \n"
)


def test_each_process_is_of_its_job_whatever_its_step_is_called() -> None:
    assert parse_listpids(LISTED) == {4242: 77, 4250: 77, 4300: 78, 4301: 78, 4194303: 4294967294}


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEAD,
        "No job steps exist on this node.\n",
        "4242\n",
        "4242 \u00b2 0\n",
        "\u0664\u0662 77 0\n",
        "-1 77 0 0 0\n",
        "4242 77x 0 0 0\n",
        "4242 7.0 0 0 0\n",
        f"{'9' * 5000} 77 0\n",
        f"4242 {'9' * 5000} 0\n",
        "\0\ufffd\x1b[2J\n" * 100,
    ],
)
def test_a_line_that_names_no_process_and_job_is_left_out(text: str) -> None:
    assert parse_listpids(f"PID JOBID\n{text}\n") == {}
    assert parse_listpids(f"{LISTED}{text}\n") == parse_listpids(LISTED)


def gpus(indices: Iterable[int]) -> frozenset[int] | None:
    return frozenset(indices)


def job(*gres: str, name: str = "train", comment: str = "", separator: str = " ") -> str:
    """What `scontrol --details show job` prints, with one group of nodes for each of `gres`; in 22.05's order."""
    nodes = [f"    Nodes=node{i} CPU_IDs=0-1 Mem=1024 GRES={text}" for i, text in enumerate(gres)]
    lines = [
        f"JobId=9 JobName={name}",
        "  UserId=user(1000) GroupId=user(1000) MCS_label=N/A",
        "  NodeList=node[0-1] BatchHost=node0 NumNodes=2 NumCPUs=4 ReqB:S:C:T=0:0:*:*",
        "  TRES=cpu=4,node=2,billing=4,gres/gpu=2",
        "  JOB_GRES=gpu:h200:8",
        *nodes,
        "  MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0",
        f"  Command=/bin/true WorkDir=/ Comment={comment}",
    ]
    return separator.join(lines) + "\n"


@pytest.mark.parametrize("separator", [" ", "\n"])
@pytest.mark.parametrize(
    ("gres", "indices"),
    [
        (("gpu:1(IDX:3)",), {3}),
        (("gpu:h200:1(IDX:0)",), {0}),
        (("gpu:h200:4(IDX:0-2,5)",), {0, 1, 2, 5}),
        (("gpu:a100:1(IDX:1),gpu:h200:2(IDX:4-5)",), {1, 4, 5}),
        (("shard:279(IDX:0)",), {0}),
        (("shard:279(IDX:1),vgpu:std(CNT:1),vgpu_mem(CNT:8192),vgpu_cores(CNT:50)",), {1}),
        (("shard:h200:279(0/559,279/559)",), {1}),  # from 23.02 on
        (("shard:279(279/559,0/559,00/559,1/559)",), {0, 3}),
        (("gpu:h200:1(IDX:0)", "gpu:h200:1(IDX:3)"), {0, 3}),  # on two nodes
        (("gpu:h200:1(IDX:0)", ""), {0}),
        (("",), set()),
        ((), set()),
        (("vgpu:std(CNT:1),vgpu_mem(CNT:8192)",), set()),
        (("nvgpu:1(IDX:0),gpus:1(IDX:1)",), set()),
    ],
)
def test_the_gpus_of_a_job(gres: tuple[str, ...], indices: set[int], separator: str) -> None:
    assert parse_held(job(*gres, separator=separator)) == gpus(indices)


@pytest.mark.parametrize("gres", ["gpu:h200:1(IDX:N/A)", "gpu:h200:2(CNT:2)", "shard:279()", "shard:9(0/559,0/559)"])
def test_gpus_that_are_not_named_are_not_known(gres: str) -> None:
    assert parse_held(job(gres)) is None


@pytest.mark.parametrize(
    ("devices", "indices"),
    [("IDX:0-99999", set(range(1024))), (f"IDX:{'9' * 5000}", None), ("IDX:5-3,1", {1}), ("IDX:0x1,2", {2})],
)
def test_huge_and_wrong_indices_do_no_harm(devices: str, indices: set[int] | None) -> None:
    assert parse_held(job(f"gpu:h200:1({devices})")) == (None if indices is None else gpus(indices))


FORGED = " Nodes=node0 CPU_IDs=0 Mem=0 GRES=gpu:h200:8(IDX:0-7)"


@pytest.mark.parametrize("separator", [" ", "\n"])
@pytest.mark.parametrize("forged", [FORGED, f"{FORGED} {FORGED}", "\n" + FORGED, " GRES=gpu:8(IDX:0-7)"])
def test_a_user_cannot_add_gpus_by_the_jobs_name_or_comment(forged: str, separator: str) -> None:
    for text in ("gpu:h200:1(IDX:1)", "shard:279(0/559,279/559)"):
        assert parse_held(job(text, name=f"x{forged}", separator=separator)) == gpus([1])
        assert parse_held(job(text, comment=f"x{forged}", separator=separator)) == gpus([1])
    assert parse_held(job("", name=f"x{forged}", separator=separator)) == frozenset()
    unknown = forged.replace("IDX:0-7", "CNT:8")
    assert parse_held(job("gpu:h200:1(IDX:1)", name=f"x{unknown}", comment=unknown)) == gpus([1])
    assert parse_held(job("", name=f"x{unknown}", comment=unknown)) == frozenset()


def test_a_long_comment_takes_no_long_time() -> None:
    start = time.monotonic()
    for text in (" " * 10**6, " Nodes=a" * 10**5, " Nodes=a CPU_IDs=0 Mem=0 GRES=" * 10**4, "gpu:" * 10**5):
        assert parse_held(job("gpu:h200:1(IDX:1)", comment=text)) in (gpus([1]), gpus([]))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("text", ["", "\n", "Invalid job id specified", "GRES=", "\0" * 100, "Nodes= GRES=gpu(IDX:1)"])
def test_rubbish_names_no_gpus(text: str) -> None:
    assert parse_held(text) == frozenset()


def test_the_gpus_of_recorded_jobs() -> None:
    jobs = RECORDED.read_text().split("JobId=")
    assert [parse_held(text) for text in jobs if " Nodes=" in text] == [gpus([0]), gpus([0]), gpus([1])]


class Commands:
    """In place of Slurm's commands: what they were, and their answer."""

    def __init__(self, answer: Callable[[tuple[str, ...]], str | None]) -> None:
        self.asked: list[tuple[tuple[str, ...], float]] = []
        self.reports: list[str] = []
        self.answer = answer
        self.port = SlurmPort("node1", self.reports.append, self.run)

    def run(self, command: tuple[str, ...], timeout_s: float) -> str | None:
        self.asked.append((command, timeout_s))
        return self.answer(command)


def test_a_command_that_hangs_or_fails_or_is_missing_says_nothing(tmp_path: Path) -> None:
    start = time.monotonic()
    assert run_command(("sleep", "60"), 0.2) is None
    assert time.monotonic() - start < 10
    assert run_command(("sh", "-c", "echo x; exit 1"), 10) is None
    assert run_command((str(tmp_path / "scontrol"),), 10) is None
    assert run_command(("sh", "-c", "cat; echo x"), 10) == "x\n", "it reads nothing"


def test_output_of_any_bytes_is_read() -> None:
    assert run_command(("printf", r"JobName=\377 \000"), 10) == "JobName=\ufffd \0"


def test_a_list_that_leaves_a_step_out_is_no_answer(tmp_path: Path) -> None:
    """scontrol lists the other steps, and ends with 1."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        f"#!/bin/sh\ncat <<END\n{LISTED}END\necho 'StepId=7.0 does not exist on this node.' >&2\nexit 1\n"
    )
    scontrol.chmod(0o755)
    assert run_command((str(scontrol), "listpids"), 10) is None, "what is left out is asked for again"


def test_the_gpus_of_a_job_are_asked_for_beside_the_look_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("hami_hpc.agent.slurm_port.time.monotonic", lambda: now[0])
    commands = Commands(lambda _command: None)
    for _ in range(3):
        assert commands.port.held_by(9) is None
        commands.port.finish()
    assert [command for command, _ in commands.asked] == [("scontrol", "--oneliner", "--details", "show", "job", "9")]
    now[0] += slurm_port.ASK_AGAIN_S + 1
    commands.answer = lambda _command: job("gpu:1(IDX:2)")
    assert commands.port.held_by(9) is None
    commands.port.finish()
    now[0] += 10 * slurm_port.ASK_AGAIN_S
    assert commands.port.held_by(9) == gpus([2])
    assert len(commands.asked) == 2
    commands.port.forget_but(frozenset({8}))  # the id may come back
    assert commands.port.held_by(9) is None
    commands.port.finish()
    commands.port.forget_but(frozenset({9}))
    assert commands.port.held_by(9) == gpus([2])


@pytest.mark.parametrize(("took_s", "asked"), [(0.45, 2), (0.55, 1)])
def test_listpids_hangs_where_it_takes_half_of_its_time_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, took_s: float, asked: int
) -> None:
    now = [1000.0]
    monkeypatch.setattr("hami_hpc.agent.slurm_port.time.monotonic", lambda: now[0])
    calls: list[tuple[str, ...]] = []

    def run(command: tuple[str, ...], timeout_s: float) -> None:
        calls.append(command)
        now[0] += took_s * timeout_s

    port = SlurmPort("node1", lambda _text: None, run)
    assert [port.listed_pids() for _ in range(2)] == [None, None]
    assert len(calls) == asked


def test_no_look_waits_for_a_slurmctld_that_hangs_and_what_is_too_much_is_reported() -> None:
    hang, begun = threading.Event(), threading.Event()

    def answer(_command: tuple[str, ...]) -> str:
        begun.set()
        hang.wait(60)
        return ""

    commands = Commands(answer)
    start = time.monotonic()
    first = commands.port.warn(7, "a")
    assert begun.wait(10)
    told = [commands.port.warn(7, str(number)) for number in range(WAITING_MAX)]
    assert not first.is_set()
    assert not any(event.is_set() for event in told)
    assert commands.port.warn(8, "one too many").is_set()
    commands.port.drain("x")
    commands.port.fail(9, "x")
    assert commands.port.held_by(10) is None
    assert time.monotonic() - start < 10
    assert commands.reports == [
        f"{what}: {WAITING_MAX} requests wait for slurmctld"
        for what in (
            "job 8 could not be warned",
            "the node could not be drained",
            "job 9 could not be ended",
            "the GPUs of job 10 are not known",
        )
    ]
    hang.set()
    commands.port.finish()
    assert all(event.is_set() for event in (first, *told))
    assert len(commands.asked) == 1 + WAITING_MAX


def test_a_request_that_slurm_does_not_take_is_reported_and_the_next_one_is_made() -> None:
    answers = {"scancel": "", "squeue": "7 7 N/A\n"}
    commands = Commands(lambda command: answers.get(command[0]))
    told = commands.port.warn(7, "a\nb")
    commands.port.fail(7, "c\nd")
    commands.port.drain("e\nf")
    commands.port.finish()
    assert told.is_set()
    assert [command for command, _ in commands.asked] == [
        ("scontrol", "notify", "7", "a?b"),
        ("squeue", "--all", "--local", "--noheader", "--jobs=7", "--format=%A %F %K"),
        ("scontrol", "update", "JobId=7", "AdminComment=hami_hpc: c?d"),
        ("scancel", "7"),
        ("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=e?f"),
    ]
    assert commands.reports == [
        f"{what} failed: is slurmctld up (scontrol ping)?"
        for what in ("scontrol notify 7", "scontrol update JobId=7", "scontrol update NodeName=node1")
    ]


def test_an_unexpected_error_does_not_end_the_thread() -> None:
    def answer(command: tuple[str, ...]) -> str:
        if command[1] == "notify":
            raise ValueError("surprise")
        return ""

    commands = Commands(answer)
    assert commands.port.warn(7, "a").wait(10)
    commands.port.drain("b")
    commands.port.finish()
    assert commands.reports == ["unexpected ValueError: surprise"]
    assert commands.asked[-1][0][-1] == "Reason=b"


def test_whole_gpus_are_told_from_shards_and_nobody_hides_them() -> None:
    """By a name or comment like a place without GPUs, or with other ones."""
    assert parse_whole(job("gpu:h200:2(IDX:0,3)")) == gpus([0, 3])
    assert parse_whole(job("gpu:2(IDX:0-1)", "gpu:1(IDX:4)")) == gpus([0, 1, 4])
    for text in ("shard:2(IDX:0)", "mps:50(IDX:0)", "", "shard:279(279/559,0/559)"):
        assert parse_whole(job(text)) == frozenset()
    for forged in (" Nodes=n CPU_IDs=0 Mem=0 GRES= ", " Nodes=n CPU_IDs=0 Mem=0 GRES=shard:1(IDX:0) "):
        for given in ({"name": f"x{forged}"}, {"comment": f"x{forged}"}):
            assert parse_whole(job("gpu:h200:1(IDX:1)", **given)) == gpus([1])
    assert parse_whole("") == frozenset()


@pytest.mark.parametrize(
    ("errors", "status", "is_answer"),
    [
        ("", 0, True),
        (f"{REFUSED}\n{REFUSED}\n", 1, True),
        ("No job steps exist on this node.\n", 1, True),
        (f"{REFUSED}\nUnable to connect to slurmstepd: Connection timed out\n", 1, False),
        ("scontrol: error: no configuration\n", 1, False),
        ("", 1, False),
    ],
)
def test_what_steps_say_that_a_power_cut_ended(tmp_path: Path, errors: str, status: int, is_answer: bool) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        f'#!/bin/sh\n[ "$LC_ALL" = C ] || exit 9\nprintf \'{LISTED}\'\nprintf "{errors}" >&2\nexit {status}\n'
    )
    scontrol.chmod(0o755)
    found = run_past_dead_steps((str(scontrol), "listpids"), 10)
    assert found == (LISTED if is_answer else None)
    if status != 0 and is_answer:
        scontrol.write_text(f'#!/bin/sh\nprintf "{errors}" >&2\nexit 1\n')
        assert parse_listpids(run_past_dead_steps((str(scontrol), "listpids"), 10) or "") == {}, "26.05 has no headline"
    assert run_past_dead_steps((str(tmp_path / "none"),), 10) is None


@pytest.mark.parametrize("headline", [HEAD, ""], ids=["22.05", "26.05"])
def test_a_node_without_steps_has_no_process_of_a_job(tmp_path: Path, headline: str) -> None:
    """Else a process of no job is not found on an idle node."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nprintf "{headline}"\necho No job steps exist on this node. >&2\nexit 1\n')
    scontrol.chmod(0o755)

    def run(command: tuple[str, ...], timeout_s: float) -> str | None:
        return run_command((str(scontrol), *command[1:]), timeout_s)

    assert listed_pids("n1", run, 10) == {}
    assert SlurmPort("n1", lambda _line: None, run).listed_pids() == {}
