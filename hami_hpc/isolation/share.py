# SPDX-License-Identifier: Apache-2.0
"""mode=share: jobs share the GPU, and the interposer in each process enforces its job's limits of memory and time."""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant, check_fits
from hami_hpc.core.records import Usage, pack_limits
from hami_hpc.node import job_dirs

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hami_hpc.core.finding import Finding
    from hami_hpc.node.config import Settings


def admit(new: Grant, live: tuple[Grant, ...], memory_scaling: float) -> Grant:
    """Returns the grant as it is. Raises NodeError when its memory does not fit."""
    check_fits(new, live, memory_scaling)
    return new


def prepare(settings: Settings, grants: tuple[Grant, ...], live: tuple[Grant, ...]) -> None:
    """Creates the job's directory with a limits record and an empty usage file for each slice."""
    of_class = settings.classes[grants[0].service_class]
    swap = c.SWAP_IN if len(grants) == 1 and of_class.swap else c.SWAP_NEVER
    if settings.memory_scaling > 1:
        from hami_hpc.core.residents import first_order  # most nodes need none of it

        swap = first_order(grants[0], live, swap)
    job_dirs.place(settings.run_dir, grants, [pack_limits(grant, swap, of_class.swap_pinned_mib) for grant in grants])


def describe(grant: Grant) -> bytes:
    """Returns the limits record that the interposer maps."""
    return pack_limits(grant)


def release(settings: Settings, directory: str, grants: tuple[Grant, ...], end_unix_ns: int) -> Usage:
    """Reads and returns the usage. Frees nothing: slurmd has ended the processes, and the ledger frees the slices."""
    from hami_hpc.node import usage_files  # here, and not in prologs

    return usage_files.read_total(directory, grants, end_unix_ns)


def check(settings: Settings) -> Iterator[Finding]:
    """Yields findings on whether steps can preload the interposer, and whether users can remove it."""
    from hami_hpc.isolation import share_checks  # imported here because prolog and epilog do not need it

    yield from share_checks.check(settings)
