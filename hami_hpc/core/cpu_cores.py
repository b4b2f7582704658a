# SPDX-License-Identifier: Apache-2.0
"""A node's cores as Slurm numbers them, which is not how Linux numbers CPUs. Pure.

gres.conf's Cores= takes logical cores: the first core of the first socket is 0, and hyperthreads have no numbers. Linux
often numbers the sockets alternately, and the second threads after all cores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

CPUS_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Cpu:
    """A CPU of Linux: the lowest-numbered CPU of its core, and the number of its package and of its NUMA node."""

    number: int
    core: int
    package: int
    numa_node: int


@dataclass(frozen=True, slots=True)
class CpuShape:
    """The CPUs of a node, all of whose sockets are alike."""

    sockets: int
    numa_nodes: int
    cores_per_socket: int
    threads_per_core: int

    @property
    def cores(self) -> int:
        return self.sockets * self.cores_per_socket

    def words(self) -> str:
        """Returns them as a NodeName line of slurm.conf has them."""
        return f"Sockets={self.sockets} CoresPerSocket={self.cores_per_socket} ThreadsPerCore={self.threads_per_core}"


def shape_of(cpus: Collection[Cpu]) -> CpuShape | None:
    """Returns None for no CPU, and where sockets or cores differ: Slurm has one number for all of a node."""
    threads: dict[int, int] = {}
    cores: dict[int, set[int]] = {}
    for cpu in cpus:
        threads[cpu.core] = threads.get(cpu.core, 0) + 1
        cores.setdefault(cpu.package, set()).add(cpu.core)
    counts = {len(found) for found in cores.values()}
    if len(counts) != 1 or len(set(threads.values())) != 1:
        return None
    return CpuShape(len(cores), len({cpu.numa_node for cpu in cpus}), counts.pop(), next(iter(threads.values())))


def slurm_cores(cpus: Collection[Cpu]) -> dict[int, int]:
    """Returns each CPU's core in Slurm's numbers: by socket, NUMA node and core, each in the order of its first CPU."""
    package: dict[int, int] = {}
    numa: dict[int, int] = {}
    for cpu in sorted(cpus, key=lambda each: each.number):
        package.setdefault(cpu.package, cpu.number)
        numa.setdefault(cpu.numa_node, cpu.number)
    places = sorted({(package[cpu.package], numa[cpu.numa_node], cpu.core) for cpu in cpus})
    numbers = {core: index for index, (_, _, core) in enumerate(places)}
    return {cpu.number: numbers[cpu.core] for cpu in cpus}


def cores_near(cpu_numbers: Iterable[int], cores: Mapping[int, int]) -> str | None:
    """Returns the cores of these CPUs as gres.conf lists them; None where there are none that the node has."""
    found = {cores[number] for number in cpu_numbers if number in cores}
    return as_list(found) if found else None


def as_list(numbers: Iterable[int]) -> str:
    """Returns numbers as Linux and Slurm write lists: `0-31,64-95`."""
    parts: list[str] = []
    start = previous = -2
    for number in [*sorted(numbers), -2]:
        if number == previous + 1:
            previous = number
            continue
        if start >= 0:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    return ",".join(parts)


def from_list(text: str) -> list[int]:
    """Returns the numbers of `0-31,64-95`. Raises ValueError for another text, and for numbers from CPUS_MAX on."""
    numbers: list[int] = []
    for part in text.strip().split(",") if text.strip() else []:
        first, dash, last = part.partition("-")
        if not all(piece.isascii() and piece.isdigit() and len(piece) < 6 for piece in (first, last or first)):
            raise ValueError(f"{text!r} is no list of CPUs")
        if (dash and not last) or int(last or first) < int(first) or int(last or first) >= CPUS_MAX:
            raise ValueError(f"{text!r} is no list of CPUs")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
