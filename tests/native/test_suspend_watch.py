# SPDX-License-Identifier: Apache-2.0
"""hami-hpc-watch: what it does at each signal, where it stands, and how it ends. The tests are its slurmstepd."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conformance import BUILD

WATCH = BUILD / "hami-hpc-watch"
WAIT_S = 30.0
FREEZER = "freezer"
CGROUP2 = "cgroup2"


class Step:
    """A watch, the program that it has run, and a task."""

    def __init__(self, folder: Path, body: str = 'echo "$*" >>"${0%/*}/orders"') -> None:
        self.orders = folder / "orders"
        program = folder / "suspend"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        self.task = subprocess.Popen(["sleep", "600"])
        words = (str(WATCH), "--job", "7", "--program", str(program), "--config", "/etc/x.toml")
        self.watch = subprocess.Popen(words, stdin=subprocess.PIPE)
        until(lambda: self.followers() != [], "the second process, before which signals are blocked")

    def begin(self) -> None:
        assert self.watch.stdin is not None
        self.watch.stdin.write(f"{self.task.pid}\n".encode())
        self.watch.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self.watch.send_signal(number)

    def said(self) -> list[str]:
        """Returns the orders that signals gave."""
        return [line for line in self.lines() if not line.startswith("after-")]

    def asked(self) -> list[str]:
        """Returns what was run when no signal had come for a while."""
        return [line for line in self.lines() if line.startswith("after-")]

    def lines(self) -> list[str]:
        return self.orders.read_text().splitlines() if self.orders.exists() else []

    def followers(self) -> list[int]:
        """Returns the watch's second process, which is nobody's child."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.orders.parent).encode() in path.read_bytes() and int(path.parent.name) != self.watch.pid:
                    found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        self.task.kill()
        self.watch.kill()
        self.task.wait()
        self.watch.wait()
        assert self.watch.stdin is not None
        self.watch.stdin.close()
        until(lambda: self.followers() == [], "the second process to end")


@pytest.fixture
def step(tmp_path: Path) -> Iterator[Step]:
    made = Step(tmp_path)
    yield made
    made.close()


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


OUT, IN = "out-soon --job 7 --config /etc/x.toml", "in --job 7 --config /etc/x.toml"


def test_each_signal_is_an_order(step: Step) -> None:
    step.begin()
    for _ in range(3):
        step.send(signal.SIGTSTP)
        until(lambda: step.said()[-1:] == [OUT], "the first order")
        step.send(signal.SIGCONT)
        until(lambda: step.said()[-1:] == [IN], "the second order")
    assert step.said() == [OUT, IN] * 3


def test_a_signal_before_the_task_is_known_counts(step: Step) -> None:
    step.send(signal.SIGTSTP)
    step.begin()
    until(lambda: step.said() == [OUT], "the order")


@pytest.mark.parametrize("number", ["TERM", "INT", "HUP", "USR1", "USR2", "QUIT", "PIPE", "ALRM", "CHLD", "TTIN"])
def test_no_other_signal_of_slurms_ends_it(step: Step, number: str) -> None:
    step.begin()
    step.send(signal.Signals[f"SIG{number}"])
    step.send(signal.SIGTSTP)
    until(lambda: step.said() == [OUT], "the order")
    assert step.watch.poll() is None


def test_a_stopped_watch_has_given_its_order_and_goes_on_later(step: Step) -> None:
    """As the whole step is, some time after SIGTSTP; the program runs outside of it."""
    step.begin()
    step.send(signal.SIGTSTP)
    until(lambda: step.said() == [OUT], "the order")
    step.send(signal.SIGSTOP)
    step.send(signal.SIGTSTP)  # Linux drops it at SIGCONT
    step.send(signal.SIGCONT)
    until(lambda: step.said() == [OUT, IN], "the second order")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "T"


def test_programs_that_sigtstp_stops_go_on_and_what_slurm_stops_later_stays(step: Step) -> None:
    """A task, and what a task started; not a program of another slurmstepd's."""
    step.begin()
    shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    inner = int(shell.stdout.readline())
    stranger = int(
        subprocess.run(["setsid", "sh", "-c", "sleep 600 >&- & echo $!"], stdout=subprocess.PIPE, check=True).stdout
    )
    pids = [step.task.pid, inner]
    try:
        for pid in (*pids, stranger):
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)
        assert all(map(is_stopped, pids)), "nobody has sent the watch a signal"
        step.send(signal.SIGTSTP)
        until(lambda: not any(map(is_stopped, pids)), "the programs to go on")
        assert is_stopped(stranger)
        time.sleep(1)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        assert all(map(is_stopped, pids)), "the last word is Slurm's"
    finally:
        for pid in (inner, stranger):
            os.kill(pid, signal.SIGKILL)
        shell.wait()
        shell.stdout.close()


def test_signals_without_end_have_it_look_for_stopped_programs_some_times_only(step: Step) -> None:
    """Each time it reads all processes of the node, for half a second."""
    step.begin()
    for number in range(10):
        os.kill(step.task.pid, signal.SIGSTOP)
        step.send(signal.SIGTSTP)
        until(lambda number=number: len(step.said()) > number, "the order")  # type: ignore[misc]
        until(lambda: not is_stopped(step.task.pid), "the program to go on")
    time.sleep(0.7)
    os.kill(step.task.pid, signal.SIGSTOP)
    step.send(signal.SIGTSTP)
    time.sleep(0.5)
    assert is_stopped(step.task.pid)


@pytest.mark.parametrize("begun", [False, True])
def test_it_ends_with_slurmstepd(step: Step, begun: bool) -> None:
    until(lambda: len(step.followers()) == 1, "the second process")
    if begun:
        step.begin()
    assert step.watch.stdin is not None
    step.watch.stdin.close()
    assert step.watch.wait(WAIT_S) == 0
    until(lambda: step.followers() == [], "the second process to end")


def test_killed_it_leaves_nothing(step: Step) -> None:
    step.begin()
    until(lambda: len(step.followers()) == 1, "the second process")
    step.watch.kill()
    until(lambda: step.followers() == [], "the second process to end")


def test_what_is_ordered_while_the_program_runs_is_done_once_and_last(tmp_path: Path) -> None:
    step = Step(tmp_path, 'echo "$*" >>"${0%/*}/orders"; until [ -e "${0%/*}/go" ]; do sleep 0.01; done')
    try:
        step.begin()
        step.send(signal.SIGTSTP)
        until(lambda: step.said() == [OUT], "the order")
        for number in (signal.SIGCONT, signal.SIGTSTP, signal.SIGCONT):
            step.send(number)
            time.sleep(0.05)  # else the kernel keeps the last alone
        (tmp_path / "go").touch()
        until(lambda: step.said() == [OUT, IN], "the last order")
        step.send(signal.SIGTSTP)
        until(lambda: step.said() == [OUT, IN, OUT], "one more")
    finally:
        step.close()


def test_signals_without_end_run_the_program_now_and_then_and_the_last_one_counts(step: Step) -> None:
    """A job's user can send them through Slurm; the program is root's, and outside of the job."""
    step.begin()
    begun = time.monotonic()
    for _ in range(100):
        step.send(signal.SIGTSTP)
        time.sleep(0.01)
        step.send(signal.SIGCONT)
        time.sleep(0.01)
    most = 11 + (time.monotonic() - begun) / 2
    assert 10 <= len(step.said()) <= most
    until(lambda: step.said()[-1] == IN, "the last order")
    step.send(signal.SIGTSTP)
    until(lambda: step.said()[-1] == OUT, "an order after that")


def test_some_seconds_after_the_last_signal_the_program_asks_slurmctld(step: Step) -> None:
    """Once, whatever the signals before were; at each of them it gave the order alone."""
    step.begin()
    for number in (signal.SIGTSTP, signal.SIGCONT) * 2:
        step.send(number)
        time.sleep(0.1)
    until(lambda: step.said() == [OUT, IN] * 2, "the orders")
    assert step.asked() == []
    until(lambda: step.asked() == [f"after-{IN}"], "the question")
    step.send(signal.SIGTSTP)
    until(lambda: step.asked() == [f"after-{IN}", f"after-{OUT.replace('-soon', '')}"], "the second one")
    assert step.lines()[-2:] == [OUT, f"after-{OUT.replace('-soon', '')}"]
    time.sleep(16)  # longer than between two questions
    assert len(step.asked()) == 2


def test_it_asks_again_as_long_as_the_program_says_so_and_a_signal_ends_that(tmp_path: Path) -> None:
    again = 'echo "$*" >>"${0%/*}/orders"; case $1 in after-in) exit 75; esac'
    step = Step(tmp_path, again)
    try:
        step.begin()
        step.send(signal.SIGCONT)
        until(lambda: step.asked() == [f"after-{IN}"] * 2, "the second question")
        step.send(signal.SIGTSTP)
        until(lambda: step.said() == [IN, OUT], "the order")
        until(lambda: step.asked()[2:] == [f"after-{OUT.replace('-soon', '')}"], "the question about that one")
    finally:
        step.close()


def test_a_program_that_fails_or_is_gone_holds_up_nothing(tmp_path: Path) -> None:
    step = Step(tmp_path, 'echo "$*" >>"${0%/*}/orders"; exit 3')
    try:
        step.begin()
        step.send(signal.SIGTSTP)
        until(lambda: step.said() == [OUT], "the order")
        program = tmp_path / "suspend"
        program.rename(tmp_path / "away")
        step.send(signal.SIGCONT)
        time.sleep(0.1)
        (tmp_path / "away").rename(program)
        step.send(signal.SIGTSTP)
        until(lambda: step.said() == [OUT, OUT], "an order after the one that could not be given")
    finally:
        step.close()


@pytest.mark.parametrize("words", [(), ("--job", "7"), ("--job",), ("--job", "7", "--program", "/x", "--y", "z")])
def test_other_arguments_are_refused(words: tuple[str, ...]) -> None:
    done = subprocess.run([WATCH, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: hami-hpc-watch --job ID --program PATH")


# ------------------------------------------------------------------------------------------------------ cgroups


def mounted(kind: str) -> Path | None:
    """Returns where the hierarchy is that the watch finds."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words, _dash, rest = line.partition(" - ")
        fs, _source, options = rest.split()[:3]
        if fs == CGROUP2 if kind == CGROUP2 else (fs == "cgroup" and kind in options.split(",")):
            return Path(words.split()[4])
    return None


def own(kind: str, pid: int) -> str:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        if kind in controllers.split(",") if kind != CGROUP2 else not controllers:
            return path
    raise AssertionError(f"no {kind}")


@pytest.fixture(params=[FREEZER, CGROUP2])
def hierarchy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The machine's hierarchy, as proctrack/cgroup finds it; where it has none, one for this test."""
    kind: str = request.param
    there = mounted(kind)
    if there is None:
        there = tmp_path / kind
        there.mkdir()
        words = ("-t", "cgroup", "-o", FREEZER) if kind == FREEZER else ("-t", CGROUP2)
        subprocess.run(["mount", *words, "none", str(there)], check=True)
    above = there / own(kind, os.getpid()).lstrip("/")
    folder = above / f"hami-watch-{os.getpid()}"
    (folder / "task_0").mkdir(parents=True)
    yield kind, folder
    until(lambda: not (folder / "task_0/cgroup.procs").read_text(), "the cgroup to be empty")
    (folder / "task_0").rmdir()
    folder.rmdir()
    if there == tmp_path / kind:
        subprocess.run(["umount", str(there)], check=True)


def test_it_stands_in_its_tasks_cgroup_and_the_other_process_does_not(step: Step, hierarchy: tuple[str, Path]) -> None:
    """A frozen step: root's program runs, and what comes after waits for the thaw."""
    kind, folder = hierarchy
    frozen, thawed = ("FROZEN", "THAWED") if kind == FREEZER else ("1", "0")
    state = folder / ("freezer.state" if kind == FREEZER else "cgroup.freeze")
    (folder / "task_0/cgroup.procs").write_text(str(step.task.pid))
    step.begin()
    until(lambda: str(step.watch.pid) in (folder / "task_0/cgroup.procs").read_text().split(), "it to join")
    (outside,) = step.followers()
    assert own(kind, outside) == own(kind, os.getpid())
    step.send(signal.SIGTSTP)
    until(lambda: step.said() == [OUT], "the order")
    state.write_text(frozen)
    try:
        step.send(signal.SIGCONT)
        time.sleep(0.2)
        assert step.said() == [OUT]
    finally:
        state.write_text(thawed)
    until(lambda: step.said() == [OUT, IN], "the order after the thaw")
    step.close()


@pytest.mark.parametrize("job", ["job_7", "sAB12CD"])  # 26.05 may name it by its SLUID
def test_with_version_2_it_leaves_tasks_and_steps_their_own_cgroups(job: str, tmp_path: Path) -> None:
    """Slurm takes a task for ended whose cgroup is empty (srun --wait-for-children), and ends what is in a step's."""
    there = mounted(CGROUP2) or tmp_path / "cgroup2"
    if there == tmp_path / "cgroup2":
        there.mkdir()
        subprocess.run(["mount", "-t", CGROUP2, "none", str(there)], check=True)
    home = there / own(CGROUP2, os.getpid()).lstrip("/")
    scope = home / f"hami-scope-{os.getpid()}"
    folder = scope / job / "step_0"
    for name in ("slurm", "user/task_0", "user/task_special"):
        (folder / name).mkdir(parents=True)
    (scope / "system").mkdir()
    (folder / "slurm/cgroup.procs").write_text("0")
    try:
        step = Step(tmp_path)
        (folder / "user/task_0/cgroup.procs").write_text(str(step.task.pid))
        step.begin()
        until(lambda: own(CGROUP2, step.watch.pid).endswith("/user/task_special"), "it to join")
        until(lambda: own(CGROUP2, step.followers()[0]).endswith(f"/{scope.name}/system"), "the other to leave")
        step.task.kill()
        step.task.wait()
        until(lambda: "populated 0" in (folder / "user/task_0/cgroup.events").read_text(), "the task's to be empty")
        step.close()
    finally:
        (home / "cgroup.procs").write_text("0")
        for path in sorted(scope.rglob("*/"), reverse=True):
            until(lambda path=path: removed(path), f"{path} to be empty")  # type: ignore[misc]
        scope.rmdir()
        if there == tmp_path / "cgroup2":
            subprocess.run(["umount", str(there)], check=True)


def removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
