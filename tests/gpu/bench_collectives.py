# SPDX-License-Identifier: Apache-2.0
"""Collectives on two GPUs under limits: all-reduces and DDP training, each GPU with a slice of the same size.

Usage: make bench-collectives, as root on a node with two GPUs and PyTorch. Needs build/native (make build), and nvcc
for the neighbour. Prints a table, percent of native in the same run; REPEATS (3) measurements, medians. CASES: names,
separated by semicolons, of the only cases to measure.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native")]

from several_slices import Machine, make_job  # noqa: E402

from hami_hpc.core.grant import Grant  # noqa: E402
from hami_hpc.core.in_step import kind_of  # noqa: E402
from hami_hpc.core.turns import make_turns  # noqa: E402

REPEATS = int(os.environ.get("REPEATS", "3"))
SECONDS = float(os.environ.get("SECONDS", "3"))
FOLDER = Path(tempfile.mkdtemp(prefix="hami-bench-"))
WORK = Path(os.environ.get("HAMI_BENCH_WORK", str(FOLDER / "work")))
PYTHON = shutil.which("python3") or "python3"
GRANT = Grant(0, 0, "", 0, 0, "", 0, 1, "std", "cap", "share", 1)
serial = 0


@dataclass(frozen=True)
class Terms:
    """Cores and policy of a slice; 0 cores: native."""

    cores: int = 0
    policy: str = "cap"


@dataclass(frozen=True)
class Case:
    """What both ranks have, and the tenant that is on the second GPU besides, if any."""

    name: str
    ranks: Terms
    neighbour: Terms | None = None
    in_step: bool = True  # as for jobs with slices on several GPUs; else as two jobs would be


CASES = (
    Case("native", Terms()),
    Case("cap 50, not in step", Terms(50), in_step=False),
    Case("cap 25", Terms(25)),
    Case("cap 50", Terms(50)),
    Case("cap 75", Terms(75)),
    Case("cap 90", Terms(90)),
    Case("burst 50", Terms(50, "burst")),
    Case("stock, beside a busy tenant on one GPU", Terms(), Terms()),
    Case("cap 50, not in step, beside cap 50 on one GPU", Terms(50), Terms(50), in_step=False),
    Case("cap 50, beside cap 50 on one GPU", Terms(50), Terms(50)),
    Case("cap 50, beside burst 50 on one GPU", Terms(50), Terms(50, "burst")),
    Case("burst 50, beside burst 50 on one GPU", Terms(50, "burst"), Terms(50, "burst")),
)


def gpus() -> list[str]:
    """Returns the UUIDs of the first two GPUs."""
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    if len(found) < 2:
        raise SystemExit("two GPUs are needed")
    return found[:2]


def job(terms: Terms, uuids: Sequence[str], fields: Sequence[Mapping[str, int]]) -> dict[str, str]:
    """Returns what the programs of a job run with that has a slice with these terms on each GPU; () without cores."""
    global serial
    serial += 1
    if not terms.cores:
        return dict(os.environ)
    made = make_job(
        FOLDER / f"job{serial}",
        Machine(None, tuple(uuids)),
        range(len(uuids)),
        limits_mib=30000,
        cores=terms.cores,
        policy=terms.policy,
    )
    for index, values in enumerate(fields):
        made.change(index, values)
    return made.first.environment()


def told(case: Case) -> tuple[list[dict[str, int]], dict[str, int]]:
    """Returns what root writes into the ranks' records, on each GPU, and into the neighbour's."""
    kind = kind_of(2 if case.in_step else 1, 1, "share", case.ranks.policy)
    own = GRANT._replace(job_id=1, cores_percent=max(1, case.ranks.cores), policy=case.ranks.policy, in_step=kind)
    other = case.neighbour or Terms()
    neighbour = GRANT._replace(job_id=2, cores_percent=max(1, other.cores), policy=other.policy)
    turns = [make_turns([own]), make_turns([own, neighbour] if case.neighbour else [own])]
    return [turn[1]._asdict() | {"in_step": kind} for turn in turns], turns[1][2]._asdict() if case.neighbour else {}


def measure(case: Case, uuids: list[str], loops: float) -> dict[str, float]:
    """Runs both ranks, and the neighbour for as long. Returns rank 0's rates, and the neighbour's per second."""
    of_ranks, of_neighbour = told(case)
    neighbour = None
    if case.neighbour:
        env = job(case.neighbour, uuids[1:], [of_neighbour]) | {"CUDA_VISIBLE_DEVICES": uuids[1]}
        command = [str(WORK), "kernels", str(2 * SECONDS + 8), str(loops), f"begin={time.time() + 6:.3f}"]
        neighbour = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    env = job(case.ranks, uuids, of_ranks)
    program = str(ROOT / "tests/gpu/collectives.py")
    ranks = [
        subprocess.Popen(
            [PYTHON, program, str(rank), str(20000 + serial), str(SECONDS)],
            env=env | {"CUDA_VISIBLE_DEVICES": uuids[rank]},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{case.name}: a rank failed")
    numbers: dict[str, float] = json.loads(outputs[0])
    if neighbour:
        numbers["neighbour"] = json.loads(neighbour.communicate(timeout=60)[0])["rate"]
    return numbers


def main() -> None:
    if not WORK.exists():
        build = ["nvcc", "-O2", "-std=c++17", "-rdc=true", "-arch=native", str(ROOT / "tests/gpu/work.cu")]
        subprocess.run([*build, "-o", str(WORK), "-lcuda", "-lcudadevrt"], check=True)
    uuids = gpus()
    loops = json.loads(subprocess.run([str(WORK), "calibrate"], capture_output=True, check=True).stdout)["loops_per_us"]
    alone = json.loads(
        subprocess.run(
            [str(WORK), "kernels", "3", str(loops)],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": uuids[1]},
            capture_output=True,
            check=True,
        ).stdout
    )["rate"]
    print("| slices of both GPUs | all-reduces of 64 MiB | DDP steps | neighbour |\n|---|---|---|---|", flush=True)
    native: dict[str, float] = {}
    wanted = os.environ["CASES"].split(";") if "CASES" in os.environ else [case.name for case in CASES]
    for case in CASES:
        if native and case.name not in wanted:
            continue
        runs = [measure(case, uuids, loops) for _ in range(REPEATS)]
        got = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        if not native:
            native = {**got, "neighbour": alone}
            print(f"| {case.name} | {got['all_reduces']:.0f}/s | {got['steps']:.1f}/s | |", flush=True)
            continue
        cells = [f"{100 * got[key] / native[key]:.1f} %" if key in got else "" for key in native]
        print(f"| {case.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
