# SPDX-License-Identifier: Apache-2.0
"""Where a GPU is lost, the error of a list of GPUs says which one, and what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sim_testbed
from sim_testbed import ROOT, Machine

LIST = """
import sys
from hami_hpc.errors import NodeError
from hami_hpc.node import lost_gpus, nvml
lost_gpus.DRIVERS = sys.argv[1]
try:
    print(len(nvml.read_devices()))
except NodeError as error:
    print(error)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return sim_testbed.make(tmp_path / "machine")


def listed(machine: Machine, drivers: Path) -> str:
    environment = machine.env | {"PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-c", LIST, str(drivers))
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_lost_gpu_is_named_by_number_and_pci_address_with_what_to_do(machine: Machine, tmp_path: Path) -> None:
    here = machine.ask("[n.nvmlDeviceGetPciInfo(n.nvmlDeviceGetHandleByIndex(i)).busId for i in (0, 1)]")
    drivers = tmp_path / "gpus"
    for bus in here:
        (drivers / bus.lower()[4:]).mkdir(parents=True)
    assert listed(machine, drivers) == "2\n"
    machine.state("--fail", 1, 15)
    said = listed(machine, drivers)
    assert "NVML failed while listing GPUs (GPU is lost); of 2 GPUs" in said
    assert f"by NVML's index 1, by PCI address {here[1].lower()[4:]}. Drain the node (scontrol update" in said
    assert here[0].lower()[4:] not in said
    assert "by NVML's index 1. Drain the node" in listed(machine, tmp_path / "none"), "not all drivers have the folder"
    machine.state("--fail", 0, 15)
    assert "by NVML's index 0, 1, by PCI address" in listed(machine, drivers)
