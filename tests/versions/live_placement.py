# SPDX-License-Identifier: Apache-2.0
"""Where the Slurm at hand puts jobs under each name of [placement] (docs/adr/073-placement-by-name.md).

Shards here are Slurm's own, 100 for each GPU; a node has two GPUs and two sockets of four cores. How it is run:
live_week.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import bare_slurm
import pytest
from harness import config, jobs
from harness.layout import CHECKOUT, ClusterError, Layout
from live_several_gpus import cancel_all, started, submit, waits

ROOT = CHECKOUT / "build" / "versions-placement"
CPUS = "Sockets=2 CoresPerSocket=4 ThreadsPerCore=1"
NEAR = ("0-3", "4-7")
HERE = f"--nodelist={config.NODE}"
SLICE = "--gres=shard:30"
since_23_02 = pytest.mark.skipif(config.slurm_release() < (23, 2), reason="no LL_SHARED_GRES before 23.02.4")
since_23_11 = pytest.mark.skipif(config.slurm_release() < (23, 11), reason="no ENFORCE_BINDING_GRES before 23.11.2")
MISREADS_LINKS = config.slurm_release() >= (24, 5)
# The CPUs of a job that names no number of them, where binding is enforced, and those of the next that asks for one.
ALL_NEAR, NEXT = ("0-3", "4") if config.slurm_release() >= (24, 11) else ("0", "14")  # 23.11: 4, 24.05: 1


def gpus_of(layout: Layout, numbers: Sequence[int]) -> list[str]:
    """Returns the GPU of each job with one slice, as its number."""
    found = []
    for job in numbers:
        (where,) = re.findall(r"shard:\d+\(([^)]*)\)", jobs.admin(layout, "scontrol", "show", "job", "-d", str(job)))
        by_index = {str(index): part for index, part in enumerate(where.split(",")) if part[:2] != "0/"}
        found.append(where.removeprefix("IDX:") if "IDX" in where else next(iter(by_index)))
    return found


def cpus_of(layout: Layout, job: int) -> str:
    (cpus,) = re.findall(r"CPU_IDs=(\S+)", jobs.admin(layout, "scontrol", "show", "job", "-d", str(job)))
    return str(cpus)


def nodes_of(layout: Layout, numbers: Sequence[int]) -> list[str]:
    return [jobs.job_facts(layout, job)["NodeList"] for job in numbers]


@pytest.mark.parametrize(("line", "count"), [("", 1), ("LLN=YES", 2)])
def test_nodes_are_filled_one_after_the_other_and_in_turn_with_lln(line: str, count: int) -> None:
    with bare_slurm.running(ROOT, ("", ""), nodes=2, cpus=CPUS, partition=line) as layout:
        found = nodes_of(layout, [started(layout, SLICE) for _ in range(4)])
        assert [len(set(found[:2])), len(set(found[2:])), len(set(found))] == [count] * 3


@pytest.fixture(scope="module")
def _plain() -> Iterator[Layout]:
    with bare_slurm.running(ROOT, ("", ""), cpus=CPUS) as layout:
        yield layout


@pytest.fixture
def plain(_plain: Layout) -> Iterator[Layout]:
    """Without anything of [placement]."""
    yield _plain
    cancel_all(_plain)


def test_a_gpu_is_filled_before_the_next_is_begun(plain: Layout) -> None:
    assert gpus_of(plain, [started(plain, SLICE, HERE) for _ in range(6)]) == ["0"] * 3 + ["1"] * 3


def test_the_first_gpu_with_room_is_taken_and_not_the_fullest(plain: Layout) -> None:
    first, second = started(plain, "--gres=shard:60", HERE), started(plain, "--gres=shard:60", HERE)
    assert gpus_of(plain, [first, second]) == ["0", "1"]
    jobs.admin(plain, "scancel", str(first))
    jobs.wait_for_state(plain, first, "CANCELLED")
    assert gpus_of(plain, [started(plain, SLICE, HERE)]) == ["0"]


@pytest.fixture(scope="module")
def _near() -> Iterator[Layout]:
    with bare_slurm.running(ROOT, ("",) * 2, cpus=CPUS, cores=NEAR) as layout:
        yield layout


@pytest.fixture
def near(_near: Layout) -> Iterator[Layout]:
    """With Cores=, a socket for each GPU."""
    yield _near
    cancel_all(_near)


def test_with_cores_a_slice_has_cores_of_its_gpu_and_sockets_are_filled_in_turn(near: Layout) -> None:
    running = [started(near, SLICE, HERE) for _ in range(4)]
    gpus = gpus_of(near, running)
    assert {(gpu, int(cpus_of(near, job)) // 4) for gpu, job in zip(gpus, running, strict=True)} == {("0", 0), ("1", 1)}
    assert gpus in (["0", "1", "0", "1"], ["1", "0", "1", "0"])
    assert waits(near, "--gres=shard:100", HERE), "no GPU is whole any more, although one could hold three of the four"


def test_with_cores_a_job_may_have_more_than_its_sockets_and_none_of_them(near: Layout) -> None:
    started(near, SLICE, "--ntasks=6", HERE)
    cancel_all(near)
    started(near, "--ntasks=7", HERE)  # of no GPU: one core is left, near one of the two
    started(near, "--gres=shard:60", "--ntasks=1", HERE)
    assert waits(near, SLICE, "--ntasks=1", HERE)


def test_a_binding_that_is_enforced_refuses_more_cores_than_the_socket_has(near: Layout) -> None:
    with pytest.raises(ClusterError, match="Requested node configuration is not available"):
        submit(near, SLICE, "--cpus-per-task=6", "--gres-flags=enforce-binding", HERE)
    started(near, SLICE, "--cpus-per-task=6", "--gres-flags=disable-binding", HERE)


@since_23_11
def test_a_job_that_enforces_its_binding_and_names_no_cpus_has_all_near_its_gpu_from_24_11_on(near: Layout) -> None:
    assert cpus_of(near, started(near, SLICE, "--gres-flags=enforce-binding", HERE)) == ALL_NEAR
    assert cpus_of(near, started(near, SLICE, "--gres-flags=enforce-binding", "--ntasks=1", HERE)) in NEXT


@since_23_02
def test_least_loaded_gpus_are_taken_in_turn() -> None:
    with bare_slurm.running(ROOT, ("", ""), ",LL_SHARED_GRES", cpus=CPUS) as layout:
        running = [started(layout, SLICE, HERE) for _ in range(4)]
        assert gpus_of(layout, running) == ["0", "1", "0", "1"]
        started(layout, "--gres=shard:30", HERE)
        assert gpus_of(layout, [started(layout, SLICE, HERE)]) == ["1"]


@since_23_11
def test_a_binding_enforced_for_all_gives_a_job_without_a_number_of_cpus_all_near_from_24_11_on() -> None:
    """Why [placement] has no such thing."""
    with bare_slurm.running(ROOT, ("", ""), ",ENFORCE_BINDING_GRES", cpus=CPUS, cores=NEAR) as layout:
        with pytest.raises(ClusterError, match="Requested node configuration is not available"):
            submit(layout, SLICE, "--cpus-per-task=6", HERE)
        assert cpus_of(layout, started(layout, SLICE, HERE)) == ALL_NEAR
        assert cpus_of(layout, started(layout, SLICE, "--ntasks=1", HERE)) in NEXT


def test_whole_gpus_are_those_that_links_connect_but_in_releases_that_misread_them() -> None:
    """GPU 0 is linked with 2, and 1 with 3. Slices are placed as without links."""
    links = ("-1,0,4,0", "0,-1,0,4", "4,0,-1,0", "0,4,0,-1")
    with bare_slurm.running(ROOT, ("",) * 4, cpus=CPUS, cores=[f"0-7 Links={each}" for each in links]) as layout:
        job = started(layout, "--gres=gpu:2", HERE)
        (gpus,) = re.findall(r"gpu:2\(IDX:([^)]*)\)", jobs.admin(layout, "scontrol", "show", "job", "-d", str(job)))
        assert gpus == ("0-1" if MISREADS_LINKS else "0,2")
        cancel_all(layout)
        assert gpus_of(layout, [started(layout, SLICE, HERE) for _ in range(4)]) == ["0", "0", "0", "1"]
