# SPDX-License-Identifier: Apache-2.0
"""A hint of a latency-critical program takes the GPU before its first launch; on the simulated driver and kernel.

What a placeholder does on the GPU only hardware shows: `make bench-time SECTIONS=hints`.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from conformance import BUILD, REAL_GPU, Slice, make_slice
from test_compute import machine, run

from hami_hpc.contract import constants as c
from hami_hpc.core.delays import parse_delays

__all__ = ["machine"]
pytestmark = pytest.mark.skipif(REAL_GPU, reason="counts what the simulated GPU ran")
HINT = str(BUILD / "compute/a_hint_without_work")
LC = {"latency": 1, "floor_percent": 5}
BESIDE = {"others_least_cores": 50}
REFUSED = "no placeholder in this context: hints only measure requests"
KERNELS = 2  # the placeholder, and what waits behind it


def kernels_of(tmp_path: Path, machine: tuple[Path, str], fields: dict[str, int], *how: object) -> int:
    """Returns how many kernels ran, by the GPU's time, of a program that only hints, and so launches none itself."""
    made: Slice = make_slice(tmp_path / "job", *machine, job_mib=8192, policy="burst", fields=fields)
    result = run(made, HINT, *how)
    assert REFUSED not in result.stderr
    state = subprocess.run(
        [str(BUILD / "sim/sim-state"), str(machine[0]), "--runs"], capture_output=True, text=True, check=True
    )
    ran_ns: int = sum(ran["length_ns"] for gpu in json.loads(state.stdout)["gpus"] for ran in gpu["runs"])
    kernel_ns = re.search(r"kernel_ns=(\d+)", (machine[0] / "machine.conf").read_text())
    assert kernel_ns
    assert ran_ns % int(kernel_ns[1]) == 0
    return ran_ns // int(kernel_ns[1])


def test_each_hint_holds_the_gpu_in_each_context(tmp_path: Path, machine: tuple[Path, str]) -> None:
    assert kernels_of(tmp_path, machine, LC | BESIDE, 5) == 3 * 5 * KERNELS


def test_a_capture_under_way_is_not_spoilt(tmp_path: Path, machine: tuple[Path, str]) -> None:
    assert kernels_of(tmp_path, machine, LC | BESIDE, 5, "capture") == 5 * KERNELS


@pytest.mark.parametrize("fields", [LC, BESIDE, {}], ids=["alone", "not latency-critical", "neither"])
def test_nothing_runs_where_nobody_gives_way(tmp_path: Path, machine: tuple[Path, str], fields: dict[str, int]) -> None:
    assert kernels_of(tmp_path, machine, fields, 5) == 0


@pytest.mark.parametrize("function", ["cuModuleLoadData", "cuMemHostRegister", "cuStreamCreateWithPriority"])
def test_where_the_driver_refuses_it_hints_only_measure(
    tmp_path: Path, machine: tuple[Path, str], function: str
) -> None:
    made = make_slice(tmp_path / "job", *machine, job_mib=8192, policy="burst", fields=LC | BESIDE)
    assert run(made, HINT, 3, faults=f"{function}=2").stderr.count(REFUSED) == 2  # once in each context
    assert parse_delays((made.directory / c.FILE_USAGE).read_bytes()).request_count == 9
