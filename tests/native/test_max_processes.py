# SPDX-License-Identifier: Apache-2.0
"""max_processes of a slice: a process more than may use it gets no GPU, and who has ended does not count (ADR 067)."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance import BUILD, MIB, REAL_GPU
from several_slices import Job, Machine, make_job, make_machine

from hami_hpc.contract import constants as c

pytestmark = pytest.mark.skipif(REAL_GPU, reason="the GPUs' numbers are the simulation's")
OK, REFUSED, FULL = "0", "800", "2"  # CUDA's errors
LINE = re.compile(
    r"hami_hpc: as many processes of this job use its slice( on GPU-\S+)? as class std allows "
    r"\(max_processes = (\d+)\), so process (\d+) gets no GPU\. "
    r"Start fewer at once, or start it again when one of them has ended\n"
)


class User:
    """A process that uses the GPUs `devices` of the job, as far as it is let."""

    def __init__(self, job: Job, *devices: int) -> None:
        self.process = subprocess.Popen(
            [str(BUILD / "several/uses"), *map(str, devices)],
            env=job.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def answer(self, command: str = "") -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if command:
            self.process.stdin.write(f"{command}\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return line.split()

    def kill(self) -> str:
        """Ends it at once; returns what it wrote to standard error."""
        self.process.kill()
        return self.process.communicate()[1]


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return make_machine(tmp_path_factory.mktemp("two"), 2)


class Bench:
    """Jobs with a limit, and their processes, which end with the test."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        self.folder, self.machine = folder, machine
        self.users: list[User] = []

    def job(self, most: int, gpus: tuple[int, ...] = (0,), step_id: int = 0) -> Job:
        job = make_job(self.folder, self.machine, gpus, step_id=step_id)
        for index in range(len(gpus)):
            job.change(index, {"max_processes": most})
        return job

    def use(self, job: Job, *devices: int) -> tuple[User, list[str]]:
        user = User(job, *(devices or (0,)))
        self.users.append(user)
        return user, user.answer()


@pytest.fixture
def bench(tmp_path: Path, machine: Machine) -> Iterator[Bench]:
    made = Bench(tmp_path, machine)
    yield made
    for user in made.users:
        if user.process.poll() is None:
            user.kill()


def test_a_process_more_gets_no_gpu_and_one_line_until_another_has_ended(bench: Bench) -> None:
    job = bench.job(2)
    (first, one), (_, two), (third, three) = (bench.use(job) for _ in range(3))
    assert (one, two, three) == ([OK], [OK], [REFUSED])
    used = job.usage(0)["used_bytes"]
    assert third.answer("again") == [REFUSED]
    assert job.usage(0)["used_bytes"] == used, "a process too many holds nothing"
    assert job.usage(0)["oom_count"] == 0
    first.kill()
    assert third.answer("again") == [OK]
    match = LINE.fullmatch(third.kill())
    assert match is not None
    assert match.groups() == (None, "2", str(third.process.pid)), "once, whatever it tries"


def test_one_that_ends_in_order_makes_room_and_one_that_only_frees_does_not(bench: Bench) -> None:
    job = bench.job(1)
    first, _ = bench.use(job)
    second, said = bench.use(job)
    assert said == [REFUSED]
    first.answer("free")
    assert second.answer("again") == [REFUSED]
    assert first.answer("again") == [OK], "it may come back"
    first.process.communicate("")
    assert second.answer("again") == [OK]


def test_a_forked_child_without_a_gpu_does_not_count_beside_its_parent_and_keeps_a_dead_ones_place(
    bench: Bench,
) -> None:
    job = bench.job(2)
    parent, _ = bench.use(job)
    child = int(parent.answer("fork")[0])
    try:
        second, said = bench.use(job)
        assert said == [OK]
        second.kill()
        parent.kill()  # the child still has the driver open, and so the parent's memory
        assert bench.use(job)[1] == [OK]
        third, said = bench.use(job)
        assert said == [REFUSED]
    finally:
        os.kill(child, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{child}/fd/0").exists() and not alive(child))
    assert third.answer("again") == [OK]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(condition: object, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_that_executes_a_program_has_left_its_place(bench: Bench) -> None:
    job = bench.job(1)
    first, said = bench.use(job)
    assert said == [OK]
    assert first.answer("exec") == [OK]
    assert bench.use(job)[1] == [REFUSED]


def test_processes_of_all_steps_count_together(bench: Bench) -> None:
    job, other_step = bench.job(1, step_id=1), bench.job(1, step_id=2)
    first, said = bench.use(job)
    assert (said, bench.use(other_step)[1]) == ([OK], [REFUSED])
    first.kill()
    assert bench.use(other_step)[1] == [OK]


def test_each_slice_of_a_job_has_as_many(bench: Bench) -> None:
    job = bench.job(1, (0, 1))
    assert bench.use(job, 0)[1] == [OK]
    both, said = bench.use(job, 0, 1)
    assert said == [REFUSED, OK]
    last, said = bench.use(job, 0, 1)
    assert said == [REFUSED, REFUSED]
    lines = [LINE.fullmatch(line) for line in last.kill().splitlines(keepends=True)]
    assert [line and line[1] for line in lines] == [f" on {uuid}" for uuid in bench.machine.uuids]
    both.kill()
    assert bench.use(job, 1)[1] == [OK]


def test_managed_memory_counts_on_each_gpu_that_a_process_sees(bench: Bench) -> None:
    job = bench.job(1, (0, 1))
    first, _ = bench.use(job, 0)
    second, _ = bench.use(job, 1)
    assert first.answer("managed") == [FULL], "it may be on the other's GPU"
    assert LINE.fullmatch(first.kill())
    assert second.answer("managed") == [OK]


def test_of_many_at_once_exactly_as_many_get_in(bench: Bench) -> None:
    job = bench.job(3)
    crowd = [User(job, 0) for _ in range(12)]
    bench.users += crowd
    assert sorted(user.answer() for user in crowd) == [[OK]] * 3 + [[REFUSED]] * 9


def test_whoever_is_killed_at_any_moment_keeps_no_place(bench: Bench) -> None:
    job = bench.job(2)
    draw = random.Random(67)
    for _ in range(12):
        crowd = [User(job, 0) for _ in range(3)]
        bench.users += crowd
        time.sleep(draw.uniform(0, 0.03))
        for user in crowd:
            user.kill()
        pair = [bench.use(job) for _ in range(2)]
        assert [said for _, said in pair] == [[OK], [OK]]
        for user, _ in pair:
            user.kill()


def test_a_wrong_sum_in_the_record_keeps_nobody_out(bench: Bench) -> None:
    job = bench.job(1)
    usage = job.path("usage", 0)
    offset, width, _kind = c.USAGE_FIELDS["processes"]
    data = bytearray(usage.read_bytes())
    data[offset : offset + width] = (4000).to_bytes(width, "little")
    usage.write_bytes(data)
    assert bench.use(job)[1] == [OK]
    assert bench.use(job)[1] == [REFUSED]


def test_a_program_that_asks_the_resource_manager_itself_gets_no_memory_either(bench: Bench) -> None:
    job = bench.job(1)
    holder, _ = bench.use(job)
    result = job.run(str(BUILD / "rm/one_object"), 0, MIB)
    assert result.returncode == 1
    assert LINE.match(result.stderr), result.stderr
    holder.kill()
    assert job.run(str(BUILD / "rm/one_object"), 0, MIB).returncode == 0
