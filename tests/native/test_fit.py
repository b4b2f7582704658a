# SPDX-License-Identifier: Apache-2.0
"""Timeslices that fit tenants with little to do, kept by the interposer on the simulated driver."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, make_slice, put
from test_compute import SPIN, machine, measured, run, shares, start
from unprivileged import Place, make_place

from hami_hpc.contract import constants as c

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
KIND = str(BUILD / "compute/work_of_a_kind")
UID = 12347
Machine = tuple[Path, str]
POLICIES = {"cap": 0, "burst": 1, "none": 2}


def pair(tmp_path: Path, machine: Machine, policy: str, name: str, fits: bool) -> list[Slice]:
    """Two jobs of 50 cores, the first of a policy, as prologs write them; without `fits` as before they did."""
    turns = [{"turn_begin_permille": begin, "turn_length_permille": 500} for begin in (0, 500)]
    caps = [0, int(policy == "cap")]
    more = [{"others_least_cores": 50, "only_other_cores": 50, "others_capped": n} if fits else {} for n in caps]
    return [
        make_slice(
            tmp_path / f"{name}{i}",
            *machine,
            job_mib=8192,
            cores_percent=50,
            policy=policy if i == 0 else "burst",
            fields=turns[i] | more[i],
        )
        for i in range(2)
    ]


def beside(busy: Slice, gappy: Slice) -> tuple[float, float, list[int]]:
    """Returns what a program with gaps gets beside one that always has work, both, and the latter's timeslices, us."""
    busy.extra[c.ENV_LOG] = "2"
    saturating = start(busy, SPIN, 5000, 1000)
    time.sleep(1.5)
    share = shares(run(gappy, KIND, "gappy", 2500, 0))[0]
    out, err = saturating.communicate(timeout=30)
    assert saturating.returncode == 0, err
    return share, float(out), [int(us) for us in re.findall(r"timeslices of (\d+) us", err)]


@pytest.mark.parametrize("policy", ["burst", "cap"])
def test_a_program_with_gaps_gets_more_beside_one_that_knows_of_others(
    policy: str, tmp_path: Path, machine: Machine
) -> None:
    def both() -> tuple[float, float, int]:
        without, _, slices = beside(*pair(tmp_path, machine, policy, "without", False))
        assert set(slices) == {22_500}
        fitted, other, slices = beside(*pair(tmp_path, machine, policy, "fitted", True))
        return fitted / max(without, 1), other, min(slices)

    least = 2 if policy == "burst" else 1.1
    measured(both, lambda got: got[0] > least and got[1] > 35 and got[2] <= 2000)


@pytest.mark.quiet
@pytest.mark.parametrize("policy", ["burst", "cap"])
def test_who_yields_has_its_share_by_a_longer_turn(policy: str, tmp_path: Path, machine: Machine) -> None:
    """Of 50 it had 47.6 % of an H200, and 47.3 here."""

    def yielding() -> tuple[float, int, int]:
        busy, bound = pair(tmp_path, machine, policy, f"job{len(list(tmp_path.iterdir()))}-", True)
        busy.extra[c.ENV_LOG] = "3"
        with start(busy, SPIN, 9000, 1000) as saturating:
            run(bound, KIND, "bound", 8000, 300)
            _, err = saturating.communicate(timeout=30)
        told = [json.loads(line) for line in re.findall(r"^hami_hpc: (\{.*\})$", err, re.MULTILINE)]
        fits = [fit for fit in told if fit["mode"] == "yields"][20:]
        elapsed = sum(fit["elapsed_us"] for fit in fits)
        used = sum(fit["used_us"] for fit in fits)
        return 100 * used / max(elapsed, 1), max((fit["longer_us"] for fit in fits), default=0), len(fits)

    measured(yielding, lambda got: got[0] > 48.5 and 0 < got[1] <= 5000 and got[2] >= 40)


def test_a_program_without_a_policy_is_left_alone(tmp_path: Path, machine: Machine) -> None:
    _, _, slices = beside(*pair(tmp_path, machine, "none", "job", True))
    assert not slices


def test_a_use_that_is_forged_shortens_nobody_elses_timeslices(tmp_path: Path, machine: Machine) -> None:
    """Whoever writes that his job used nothing, or everything, changes his own job's timeslices at most."""
    jobs = pair(tmp_path, machine, "burst", "job", True)
    offset, size, *_ = c.USAGE_FIELDS["time_used"]
    for job in jobs:
        job.extra[c.ENV_LOG] = "2"
    forging, honest = (start(job, SPIN, 2500, 1000) for job in jobs)
    with (jobs[0].directory / c.FILE_USAGE).open("r+b", buffering=0) as usage:
        for word in [0, 2**64 - 1, 2**63, 1] * 100:
            os.pwrite(usage.fileno(), word.to_bytes(size, "little"), offset)
            time.sleep(0.005)
    (_, err), (out, others_err) = (process.communicate(timeout=30) for process in (forging, honest))
    assert forging.returncode == honest.returncode == 0, err
    assert float(out) > 30
    if BUILD.name == "native":
        assert re.findall(r"timeslices of (\d+) us", others_err)[:1] == ["22500"]


@pytest.fixture
def place() -> Iterator[Place]:
    if os.geteuid():
        pytest.fail("needs root, to run as another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield make_place(Path(directory), UID, 8192, 8192)


def test_stays_of_another_users_process_count(place: Place) -> None:
    """The driver hides whose they are: process number 0."""
    values = {"cores_percent": 50, "policy": POLICIES["burst"], "others_least_cores": 50}
    values |= {"turn_begin_permille": 0, "turn_length_permille": 500}
    for path in (place.genuine / c.FILE_JOB_LIMITS, place.genuine / "step-0.limits"):
        path.write_bytes(put(path.read_bytes(), values))
    place.environment[c.ENV_LOG] = "2"
    bare = place.environment | {"LD_PRELOAD": place.environment["PRELOAD"].split()[-1]}

    def shortest() -> int:
        other = subprocess.Popen([str(place.root / "compute/work_of_a_kind"), "gappy", "3500", "0"], env=bare)
        result = place.run("compute/spin_for 3000 1000", records=place.genuine)
        assert other.wait(timeout=30) == 0
        assert result.returncode == 0, result.stderr
        return min(int(us) for us in re.findall(r"timeslices of (\d+) us", result.stderr))

    measured(shortest, lambda us: us <= 2000)
