# SPDX-License-Identifier: Apache-2.0
"""mode=mig: each job has a MIG instance of its own, made by its prolog and destroyed by its epilog.

The profile is the smallest that covers the job's grant; where it lies is chosen so that most others still fit
(core/mig_layout.py). Steps see it by CUDA_VISIBLE_DEVICES, and only the job's user can open its devices. The interposer
limits steps that have less than their job (docs/adr/068).
"""

from __future__ import annotations

from hami_hpc.core.grant import Grant, check_fits
from hami_hpc.core.records import MISSING_USAGE, OBSERVED_USAGE, Usage, pack_limits

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hami_hpc.core.finding import Finding
    from hami_hpc.node.config import Settings


def admit(new: Grant, live: tuple[Grant, ...], memory_scaling: float) -> Grant:
    """Returns the grant as it is. Raises NodeError when its memory does not fit: instances are never oversold."""
    check_fits(new, live, min(memory_scaling, 1.0))
    return new


def prepare(settings: Settings, grants: tuple[Grant, ...], _live: tuple[Grant, ...]) -> None:
    """Makes the job's instance and its directory. Keeps both when they exist.

    Raises JobError with the code E_MIG_NO_ROOM when the GPU's instances leave no place, JobError when no profile covers
    the grant, NodeError when the node cannot make one.
    """
    from hami_hpc.isolation import mig_instances  # most jobs are of other modes

    (grant,) = grants
    mig_instances.prepare(settings, grant, describe(grant))


def describe(grant: Grant) -> bytes:
    """Returns the limits record, of the GPU. For a step with a part of the instance SPANK names that in the step's."""
    return pack_limits(grant)


def release(settings: Settings, directory: str, grants: tuple[Grant, ...], end_unix_ns: int) -> Usage:
    """Destroys the job's instance. Returns no usage: what the agent saw is in the record beside it (docs/adr/050)."""
    from hami_hpc.isolation import mig_instances

    mig_instances.release(settings, directory, grants[0])
    return MISSING_USAGE if settings.agent is None else OBSERVED_USAGE


def check(settings: Settings) -> Iterator[Finding]:
    """Yields findings on the mode of the GPUs, their profiles, what others made there, and who can open instances."""
    from hami_hpc.isolation import mig_checks

    yield from mig_checks.check(settings)
