# SPDX-License-Identifier: Apache-2.0
"""A change of a timeslice makes the GPU begin its round anew, on the simulation as on an H200 (docs/adr/119).

So few changes are made.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, ROOT, Slice, make_slice
from test_compute import SPIN, machine, run, start

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.turns import make_turns

__all__ = ["machine"]  # the fixture
pytestmark = pytest.mark.skipif(REAL_GPU, reason="these kernels exist on the simulation only")
Machine = tuple[Path, str]
KIND = str(BUILD / "compute/work_of_a_kind")


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("preload") / "timeslices.so"
    source = ROOT / "tests/gpu/timeslices.c"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", f"-I{ROOT}/native/include"]
    subprocess.run([*command, str(source), "-o", str(library), "-pthread"], check=True)
    return f"{library} {BUILD}/sim/libhami-sim-kernel.so"


def natively(directory: Path, preload: str, timeslice: str, *command: object) -> subprocess.Popen[str]:
    environment = os.environ | {
        "HAMI_SIM": str(directory),
        "LD_LIBRARY_PATH": str(BUILD / "sim"),
        "LD_PRELOAD": preload,
        "HAMI_TEST_TIMESLICE": timeslice,
    }
    words = [str(word) for word in command]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def rates(machine: Machine, preload: str, per_second: int) -> list[float]:
    """What three busy processes with timeslices of 20 ms have, beside an idle one that sets its own so often."""
    with ExitStack() as stack:

        def begin(*words: object, timeslice: str) -> subprocess.Popen[str]:
            process = stack.enter_context(natively(machine[0], preload, timeslice, *words))
            stack.callback(process.kill)
            return process

        begin(KIND, "kernels", 1, 20_000, timeslice=f"10000 {per_second}")  # idles first
        time.sleep(0.3)
        busy = []
        for _ in range(3):
            busy.append(begin(SPIN, 2500, 1000, timeslice="20000"))
            time.sleep(0.1)
        told = [process.communicate(timeout=60) for process in busy]
        assert [err for _, err in told] == [""] * 3
        return [float(out) for out, _ in told]


@pytest.mark.quiet
def test_changes_of_timeslices_take_from_who_comes_late_in_the_round(machine: Machine, preload: str) -> None:
    """As on an H200: 33 + 33 + 33; 41 + 38 + 20 with 10 changes a second; all is the first one's with 50."""
    assert min(rates(machine, preload, 0)) >= 32
    first, _, last = rates(machine, preload, 10)
    assert first >= 40
    assert last <= 26
    first, *others = rates(machine, preload, 100)
    assert first >= 90
    assert max(others) <= 5


def jobs(directory: Path, machine: Machine, cores: list[int]) -> list[Slice]:
    """Jobs of policy burst, as prologs write them."""
    grant = Grant(0, 0, machine[1], 0, 0, "", 0, 1, "std", "burst", "share", 1)
    turns = make_turns([grant._replace(job_id=i, cores_percent=percent) for i, percent in enumerate(cores)])
    made = [
        make_slice(
            directory / f"job{i}",
            *machine,
            job_mib=20_000,
            cores_percent=percent,
            policy="burst",
            fields=turns[i]._asdict(),
        )
        for i, percent in enumerate(cores)
    ]
    for one in made:
        one.extra[c.ENV_LOG] = "2"
    return made


@pytest.mark.quiet
def test_three_busy_jobs_keep_their_cores_beside_a_light_one_which_is_served(tmp_path: Path, machine: Machine) -> None:
    """Each changes its timeslices at the same instants, and by what it used since the last time."""
    *busy, light = jobs(tmp_path, machine, [25, 25, 25, 25])
    with ExitStack() as stack:
        running = [stack.enter_context(start(job, SPIN, 7000, 1000)) for job in busy]
        for process in running:
            stack.callback(process.kill)
        served = run(light, KIND, "light", 4000, 2500)
        told = [process.communicate(timeout=60) for process in running]
    assert served.returncode == 0, served.stderr
    assert 100 * float(served.stdout.split()[0]) / 1.3 >= 15, served.stdout  # percent of what it has alone
    assert min(float(out) for out, _ in told) >= 23
    changes = sum(len(re.findall(r"timeslices of \d+ us", err)) for _, err in told)
    assert changes <= 150, changes
