# SPDX-License-Identifier: Apache-2.0
"""A process with several slices, each on a GPU of its own: memory, devices, records. On the simulated driver, whose
resource manager numbers the GPUs otherwise than CUDA and NVML do."""

from __future__ import annotations

import os
import random
import re
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU
from several_slices import MIB, Job, Machine, make_job, make_machine

pytestmark = pytest.mark.skipif(REAL_GPU, reason="the GPUs' numbers and books are the simulation's")
EACH = "each_gpu_ends_at_its_own_limit"


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return make_machine(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return make_machine(tmp_path_factory.mktemp("four"), 4)


def finished(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


@contextmanager
def holder(job: Job, *mib: int) -> Iterator[subprocess.Popen[str]]:
    """A process that holds so much on each device, until the end of the block at the latest."""
    process = job.start("holds", *mib)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n", process.communicate()[1]
        yield process
    finally:
        process.kill()
        process.communicate()


# ------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("limits", [(4096, 2048), (2048, 6000)])
def test_each_gpu_ends_at_its_own_limit(limits: tuple[int, int], tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=limits)
    finished(job.run(EACH))
    for index, limit in enumerate(limits):
        usage = job.usage(index)
        assert limit - 16 < usage["peak_bytes"] / MIB <= limit
        assert usage["oom_count"] > 0


def test_devices_in_another_order_keep_their_limits(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=(4096, 2048))
    finished(job.run(EACH, visible=[1, 0]))
    assert 4096 - 16 < job.usage(0)["peak_bytes"] / MIB <= 4096
    assert 2048 - 16 < job.usage(1)["peak_bytes"] / MIB <= 2048


def test_a_process_on_the_second_gpu_alone_charges_only_there(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=(4096, 2048))
    finished(job.run(EACH, visible=[1]))
    assert job.usage(0)["peak_bytes"] == 0
    assert job.usage(0)["processes"] == 0
    assert job.usage(0)["first_context_unix_ns"] == 0
    assert job.usage(1)["peak_bytes"] / MIB > 2048 - 16
    assert job.usage(1)["first_context_unix_ns"] > 0


def test_gpus_of_others_stay_closed(tmp_path: Path, four: Machine) -> None:
    job = make_job(tmp_path, four, [1, 3], limits_mib=(4096, 2048))
    finished(job.run(EACH, visible=[0, 1, 2, 3]))
    assert job.usage(1)["peak_bytes"] <= 2048 * MIB


def test_a_gpu_of_others_gives_no_memory_by_ioctl_either(tmp_path: Path, four: Machine) -> None:
    job = make_job(tmp_path, four, [1, 3], limits_mib=(4096, 2048))
    finished(job.run(str(BUILD / "several/asks_the_resource_manager"), 2, *four.uuids))


def test_sixteen_slices(tmp_path: Path) -> None:
    machine = make_machine(tmp_path / "sixteen", 16)
    limits = [1024 + 64 * i for i in range(16)]
    job = make_job(tmp_path, machine, range(16), limits_mib=limits)
    finished(job.run(EACH))
    for index, limit in enumerate(limits):
        assert limit - 16 < job.usage(index)["peak_bytes"] / MIB <= limit


def test_copies_and_mappings_stay_where_they_are(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=(4096, 2048))
    finished(job.run("copies_and_mappings_stay_where_they_are"))


def test_threads_switch_devices(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=(3000, 2000), policy="burst")
    finished(job.run("threads_switch_devices"))
    for index in range(2):
        assert job.usage(index)["used_bytes"] == 0 or job.usage(index)["processes"] > 0


def test_what_a_killed_process_held_comes_back_on_its_gpu(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=(4096, 4096))
    alone = [int(word) for word in finished(job.run("free_is", 1)).split()]
    with holder(job, 512, 2048) as process:
        beside = [int(word) for word in finished(job.run("free_is", 0)).split()]
        assert alone[0] - beside[0] == 512 + 512  # a context each
        assert alone[1] - beside[1] == 2048 + 512
        process.kill()
        process.wait()
        assert [int(word) for word in finished(job.run("free_is", 1)).split()] == alone
    assert job.usage(1)["reclaimed_bytes"] >= (2048 + 512) * MIB


def test_a_fork_starts_over_on_every_gpu(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=(4096, 2048))
    finished(job.run("a_fork_starts_over"))


def test_another_process_opens_what_lies_on_the_other_gpu(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=(4096, 2048))
    finished(job.run("ipc_across_gpus"))


def test_many_contexts_on_two_gpus(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1], limits_mib=(20000, 20000), cores=50)
    finished(job.run("many_contexts", 62))


def test_nonsense_in_one_usage_file_leaves_the_other_alone(tmp_path: Path, two: Machine) -> None:
    """What the user writes into the second record never crashes a program, nor lifts the first limit."""
    job = make_job(tmp_path, two, [0, 1], limits_mib=(4096, 2048))
    good = job.path("usage", 1).read_bytes()
    draw = random.Random(11)
    for _ in range(15):
        data = bytearray(good)
        for _ in range(draw.randrange(1, 300)):
            data[draw.randrange(32, len(data))] = draw.randrange(256)
        job.path("usage", 1).write_bytes(data)
        result = job.run(EACH)
        assert result.returncode in (0, 1), result.stderr  # 1: a check of the program; never a signal
        assert job.usage(0)["peak_bytes"] <= 4096 * MIB


def test_a_forked_child_may_see_other_devices(tmp_path: Path, two: Machine) -> None:
    """Its parent has used CUDA with both; the child hides the first, so that device 0 is the second GPU."""
    job = make_job(tmp_path, two, [0, 1], limits_mib=(4096, 2048))
    finished(job.run("a_child_sees_less"))


# ------------------------------------------------------------------------------------------- records


def refused(job: Job) -> str:
    result = job.run(str(BUILD / "conformance/without_limits_the_gpu_stays_closed"))
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("\n") == 1  # said once, in one line
    return result.stderr


DAMAGES = {
    "no job record": "No such file",
    "no step record": "No such file",
    "no usage file": "No such file",
    "another job's": "not of this job",
    "another step's": "not of this job",
    "another user's": "not of this job and user",
    "writable": "not root's own",
    "another version": "of another version",
    "another index": "another slice",
    "another count": "damaged",
    "the same GPU": "the same GPU",
    "a step on another GPU": "damaged",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_second_record_that_is_wrong_closes_all(damage: str, tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1])
    step, own = job.path("step", 1), job.path("job", 1)
    if damage.startswith("no "):
        job.path(damage.split()[1], 1).unlink()
    elif damage == "another job's":
        job.change(1, {"job_id": 1})
    elif damage == "another step's":
        job.change(1, {"step_id": 77}, ["step"])
    elif damage == "another user's":
        job.change(1, {"uid": os.getuid() + 1})
    elif damage == "writable":
        own.chmod(0o666)
    elif damage == "another version":
        job.change(1, {"abi_version": 99}, ["step"])
    elif damage == "another index":
        job.change(1, {"slice_index": 2})
    elif damage == "another count":
        job.change(1, {"slice_count": 3})
    else:
        first = job.path("job", 0).read_bytes()
        for path in (step,) if damage == "a step on another GPU" else (own, step):
            path.write_bytes(path.read_bytes()[:80] + first[80:176] + path.read_bytes()[176:])
    line = refused(job)
    assert DAMAGES[damage] in line
    assert "slice 1 of the job" in line


def test_more_slices_than_there_can_be_close_all(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0])
    job.change(0, {"slice_count": 17})
    assert "damaged" in refused(job)


def test_a_record_of_a_later_slice_is_none_of_a_step(tmp_path: Path, two: Machine) -> None:
    """The user points HAMI_HPC_LIMITS to slice 1's record."""
    job = make_job(tmp_path, two, [0, 1])
    program = BUILD / "conformance/without_limits_the_gpu_stays_closed"
    environment = job.environment() | {"HAMI_HPC_LIMITS": str(job.path("step", 1))}
    result = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "another slice" in result.stderr


def test_records_without_a_count_are_of_one_slice(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [1], limits_mib=3000)
    job.change(0, {"slice_count": 0})
    finished(job.run(EACH, visible=[1]))
    finished(job.run(EACH, visible=[0, 1]))


def test_no_gpu_of_the_job_is_visible(tmp_path: Path, four: Machine) -> None:
    job = make_job(tmp_path, four, [1, 3])
    result = job.run("free_is", 0, visible=[0, 2])
    assert "check CUDA_VISIBLE_DEVICES" in result.stderr


def test_a_driver_that_does_not_tell_which_gpu_is_which_stays_closed(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1])
    result = job.run(EACH, HAMI_SIM_FAULTS="rm_00000274=0x56")
    assert result.returncode == 1
    assert result.stderr.count("does not tell which GPU is which") == 1
    assert job.usage(0)["peak_bytes"] == job.usage(1)["peak_bytes"] == 0
    one = make_job(tmp_path / "one", two, [0])  # where nobody needs to ask
    finished(one.run(EACH, HAMI_SIM_FAULTS="rm_00000274=0x56"))


def test_lines_name_the_gpu(tmp_path: Path, two: Machine) -> None:
    job = make_job(tmp_path, two, [0, 1])
    result = job.run(EACH, HAMI_HPC_LOG="2")
    for uuid in two.uuids:
        assert re.search(rf"does not fit the limit on {uuid}\n", result.stderr)
    one = make_job(tmp_path / "one", two, [0])
    assert " on GPU-" not in one.run(EACH, HAMI_HPC_LOG="2").stderr


@pytest.mark.parametrize(("cores", "word"), [(25, "open"), (75, "paused")])
def test_capped_slices_of_a_job_open_or_pause_at_the_same_instants(
    cores: int, word: str, tmp_path: Path, two: Machine
) -> None:
    job = make_job(tmp_path, two, [0, 1], cores=cores)
    for index in range(2):
        job.change(index, {"in_step": 1, "step_begin_permille": 400})
    into_ms: dict[str, list[float]] = {}
    with job.start("spin_on_each", 2000, 1000, 700, HAMI_HPC_LOG="2") as running:
        assert running.stderr is not None
        for line in running.stderr:
            match = re.fullmatch(r"hami_hpc: (\w+)(.*)\n", line)
            if match and match[1] == word:
                into_ms.setdefault(match[2], []).append(1000 * (time.time() - 0.02) % 50)
    assert running.returncode == 0
    assert len(into_ms) == 2, "each line names its GPU"
    for times in into_ms.values():
        assert len(times) > 15
        assert statistics.median(times) < 10, "soon after 20 ms, 400 permille, of each round"
