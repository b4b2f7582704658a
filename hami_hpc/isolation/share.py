# SPDX-License-Identifier: Apache-2.0
"""mode=share: tenants share the GPU, and the interposer in each process keeps its job's limits of memory and time."""

from __future__ import annotations

from collections.abc import Iterator

from hami_hpc.core.grant import Grant, check_fits, free_phase
from hami_hpc.core.records import Usage, pack_limits
from hami_hpc.node import job_dirs

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from hami_hpc.core.finding import Finding
    from hami_hpc.node.config import Settings


def admit(new: Grant, live: tuple[Grant, ...], memory_scaling: float) -> Grant:
    """Gives the grant its place in the period in which tenants take turns. NodeError when its memory does not fit."""
    check_fits(new, live, memory_scaling)
    return new._replace(phase_percent=free_phase(new, live))


def prepare(run_dir: str, grant: Grant) -> None:
    """Makes the job's directory with its limits record and an empty usage file."""
    job_dirs.place(run_dir, grant, describe(grant))


def describe(grant: Grant) -> bytes:
    """The limits record that the interposer maps."""
    return pack_limits(grant)


def release(directory: str, grant: Grant, end_unix_ns: int) -> Usage:
    """Reads the usage file. The slice is free as soon as the ledger says so: slurmd has ended its processes."""
    return job_dirs.read_usage(directory, grant, end_unix_ns)


def check(settings: Settings) -> Iterator[Finding]:
    """Yields whether steps can be given the interposer, and whether they can get rid of it."""
    from hami_hpc.isolation import share_checks  # not in a prolog or epilog

    yield from share_checks.check(settings)
