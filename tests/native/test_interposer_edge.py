# SPDX-License-Identifier: Apache-2.0
"""Many processes at a limit, judged by the simulated driver's own books: exact from both sides."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conformance import BUILD, MIB, PROGRAMS, REAL_GPU, make_slice

pytestmark = pytest.mark.skipif(REAL_GPU, reason="reads the simulated driver's state")
PROCESSES, THREADS, PIECE_MIB = 8, 4, 62


def driver(machine: Path) -> dict[str, Any]:
    """The only GPU of the simulated machine, as its driver sees it."""
    out = subprocess.run([BUILD / "sim/sim-state", machine], check=True, capture_output=True, text=True)
    gpu: dict[str, Any] = json.loads(out.stdout)["gpus"][0]
    return gpu


def make_machine(directory: Path) -> tuple[Path, str]:
    subprocess.run([str(BUILD / "sim/sim-machine"), str(directory), "h200"], check=True, capture_output=True)
    uuid = re.search(r"uuid=(GPU-\S+)", (directory / "machine.conf").read_text())
    assert uuid is not None
    return directory, uuid[1]


def context_mib(directory: Path) -> int:
    """What one process's context takes, by the driver's own count."""
    machine, uuid = make_machine(directory / "sim-alone")
    alone = make_slice(directory / "alone", machine, uuid, job_mib=8192)
    result = alone.run(str(BUILD / "compute/spin_for"), "1", "1")
    assert result.returncode == 0, result.stderr
    bytes_ = driver(machine)["peak_bytes"]
    assert bytes_ % MIB == 0
    return int(bytes_ // MIB)


def test_a_request_that_fits_is_never_refused_and_the_sum_never_passes(tmp_path: Path) -> None:
    """Eight processes of four threads hold the limit to the byte; then all allocate and free what fits."""
    limit_mib = PROCESSES * (context_mib(tmp_path) + THREADS * PIECE_MIB)
    machine, uuid = make_machine(tmp_path / "sim")
    job = make_slice(tmp_path / "job", machine, uuid, job_mib=limit_mib)
    command = [str(PROGRAMS / "what_fits_is_never_refused"), "2000", str(PIECE_MIB)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = [subprocess.Popen(command, env=job.environment(), **pipes) for _ in range(PROCESSES)]  # type: ignore[call-overload]
    try:
        for step, told in enumerate((b"f", b"r")):  # all hold their pieces; all were refused one more
            for process in running:
                assert process.stdout.read(1) == told, process.communicate()[1].decode()
            assert driver(machine)["used_bytes"] == limit_mib * MIB, step
            for process in running:
                process.stdin.write(b"g")
                process.stdin.flush()
        for process in running:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors.decode()
    finally:
        for process in running:
            process.kill()
            process.communicate()
    gpu = driver(machine)
    assert gpu["peak_bytes"] == limit_mib * MIB
    assert gpu["used_bytes"] == 0
    assert gpu["processes"] == []
    assert gpu["allocations"] > 100 * PROCESSES  # in 2 s, however busy the machine
