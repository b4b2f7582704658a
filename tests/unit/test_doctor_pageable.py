# SPDX-License-Identifier: Apache-2.0
"""What doctor says of memory from malloc() that GPUs may use, on the simulated driver."""

from __future__ import annotations

from pathlib import Path

import pytest
import sim_testbed
from sim_testbed import ROOT, Machine

NOT_USED = [["OK", "is not used by GPUs", ""]]


def said(machine: Machine, tmp_path: Path, modes: str = '["share"]', before: str = "") -> list[list[str]]:
    config = tmp_path / "hami-hpc.toml"
    config.write_text(f"version = 1\n[vgpu]\nmodes = {modes}\n")
    program = (
        f"__import__('sys').path.insert(0, {str(ROOT)!r}) or {before or 'None'} or "
        "[[f.level, f.detail, f.advice if f.level != 'OK' else ''] for f in "
        "__import__('hami_hpc.doctor.fence_checks', fromlist=['x']).check_pageable_memory("
        "__import__('hami_hpc.doctor.facts', fromlist=['x']).Facts("
        f"__import__('hami_hpc.node.config', fromlist=['x']).load_settings({str(config)!r}), 'node1'))]"
    )
    found: list[list[str]] = machine.ask(program)
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return sim_testbed.make(tmp_path / "machine")


def set_addressing(machine: Machine, *modes: int) -> None:
    """Sets what the driver says of each of the two GPUs."""
    parts = (machine.directory / "machine.conf").read_text().split("[gpu]\n")
    for i, mode in enumerate(modes, 1):
        parts[i] = f"addressing={mode}\n{parts[i]}"
    (machine.directory / "machine.conf").write_text("[gpu]\n".join(parts))


@pytest.mark.parametrize(
    ("modes", "named", "advice"),
    [((1, 0), "(HMM)", "uvm_disable_hmm=1"), ((0, 2), "(ATS)", "no setting"), ((2, 1), "(ATS and HMM)", "uvm_disable")],
)
def test_it_warns_where_it_can_move_to_a_gpu(
    modes: tuple[int, int], named: str, advice: str, machine: Machine, tmp_path: Path
) -> None:
    set_addressing(machine, *modes)
    ((level, detail, told),) = said(machine, tmp_path)
    assert level == "WARN"
    assert detail.endswith(named)
    assert advice in told


def test_it_says_so_where_gpus_use_none(machine: Machine, tmp_path: Path) -> None:
    assert said(machine, tmp_path) == NOT_USED
    set_addressing(machine, 7, 7)
    assert said(machine, tmp_path) == NOT_USED, "a mode that nobody knows"


def test_nothing_is_said_of_what_is_not_told(machine: Machine, tmp_path: Path) -> None:
    set_addressing(machine, 1, 1)
    machine.env["HAMI_SIM_FAULTS"] = "nvmlDeviceGetAddressingMode=3"  # not supported
    assert said(machine, tmp_path) == []
    del machine.env["HAMI_SIM_FAULTS"]
    assert said(machine, tmp_path, before="delattr(n, 'nvmlDeviceGetAddressingMode')") == [], "an older nvidia-ml-py"


def test_instances_have_memory_of_their_own(machine: Machine, tmp_path: Path) -> None:
    set_addressing(machine, 1, 1)
    assert said(machine, tmp_path, modes='["mig"]') == []
