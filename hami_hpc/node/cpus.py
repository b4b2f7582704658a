# SPDX-License-Identifier: Apache-2.0
"""Reads this node's CPUs from Linux: which are threads of one core, their sockets and NUMA nodes. Not for prologs."""

from __future__ import annotations

from pathlib import Path

from hami_hpc.core.cpu_cores import Cpu, from_list

SYSFS = Path("/sys/devices/system")


def read_cpus(system: Path = SYSFS) -> tuple[Cpu, ...]:
    """Returns the CPUs that are online; none where Linux does not say which are threads of one core."""
    try:
        numa = _numa_nodes(system / "node")
        found = []
        for number in from_list((system / "cpu/online").read_text()):
            topology = system / f"cpu/cpu{number}/topology"
            siblings = from_list((topology / "thread_siblings_list").read_text())
            package = int((topology / "physical_package_id").read_text())
            found.append(Cpu(number, min(siblings), package, numa.get(number, -1 - package)))
        return tuple(found)
    except (OSError, ValueError):
        return ()


def _numa_nodes(folder: Path) -> dict[int, int]:
    """Returns the NUMA node of each CPU; empty on a kernel without NUMA."""
    return {
        cpu: int(path.name.removeprefix("node"))
        for path in folder.glob("node[0-9]*")
        for cpu in from_list((path / "cpulist").read_text())
    }
