# SPDX-License-Identifier: Apache-2.0
"""mode=mps: jobs are clients of an MPS daemon of their user (or, by a setting, of all users) on their GPU.

The daemon bounds what a client gets; the environment of the job's steps has its own share, memory and priority. The
interposer limits the memory of the job's processes together, and leaves the time to MPS.
"""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant, check_fits
from hami_hpc.core.records import Usage, pack_limits
from hami_hpc.errors import JobError, NodeError
from hami_hpc.node import job_dirs

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hami_hpc.core.finding import Finding
    from hami_hpc.node.config import Settings
    from hami_hpc.node.mps_daemon import Member

NO_CHUNKS = "E_MPS_NO_CHUNKS"  # of hami_hpc/node/mps_partitions.py
NORMAL, BELOW_NORMAL = 0, 1  # client priorities of MPS: there are no others


def admit(new: Grant, live: tuple[Grant, ...], memory_scaling: float) -> Grant:
    """Returns the grant as it is. Raises NodeError when its memory does not fit."""
    check_fits(new, live, memory_scaling)
    return new


def prepare(settings: Settings, grants: tuple[Grant, ...], _live: tuple[Grant, ...]) -> None:
    """Makes sure that a daemon that answers is there, with a partition for the job where the driver has them, and
    creates the job's directory. Raises NodeError, and JobError with the code NO_CHUNKS when jobs of the same daemon
    have what its partition needs."""
    from hami_hpc.node import mps  # here, and not for jobs of other modes: it starts programs

    (grant,) = grants
    place = mps.place_of(settings.run_dir, grant.gpu_minor, grant.uid, settings.mps_multi_user)
    try:
        lines = mps.hold(settings.mps_control, place, grant.gpu_uuid, member_of(grant), settings.mps_static)
    except NodeError as error:
        if error.code != NO_CHUNKS:
            raise
        raise JobError(f"{error}. A batch job is requeued if it may be", NO_CHUNKS) from error
    _warn("prolog", grant, lines)
    content = {c.FILE_MPS: f"{priority_of(grant)} {place.pipe}\n".encode()}
    job_dirs.place(settings.run_dir, grants, [describe(grant)], content)


def describe(grant: Grant) -> bytes:
    """Returns the limits record that the interposer maps."""
    return pack_limits(grant)


def release(settings: Settings, directory: str, grants: tuple[Grant, ...], end_unix_ns: int) -> Usage:
    """Takes the job from its daemon, which ends with its last job, and returns what the job used. Raises NodeError
    when the job's note of its daemon cannot be removed.

    A daemon that cannot be left or ended (its process waits in the driver, or another holds its lock) holds up nothing
    else: syslog says so, and reconcile ends it later, which needs neither the grant nor the directory.
    """
    from hami_hpc.node import mps, usage_files

    grant = grants[0]
    mps.forget(directory)
    for multi_user in (False, True):  # the setting may have been changed while the job ran
        place = mps.place_of(settings.run_dir, grant.gpu_minor, grant.uid, multi_user)
        try:
            lines = mps.leave(settings.mps_control, place, member_of(grant))
        except NodeError as error:
            lines = (f"{error}. The job has ended all the same; run hami-hpc reconcile to end its MPS daemon",)
        _warn("epilog", grant, lines)
    return usage_files.read_total(directory, grants, end_unix_ns)


def check(settings: Settings) -> Iterator[Finding]:
    """Yields findings on the control program, compute modes, and daemons that are not hami_hpc's."""
    from hami_hpc.isolation import mps_checks  # imported here because prolog and epilog do not need it

    yield from mps_checks.check(settings)


def member_of(grant: Grant) -> Member:
    """Returns a grant as a daemon's job."""
    from hami_hpc.node.mps_daemon import Member

    return Member(grant.job_id, grant.created_unix_ns, grant.cores_percent, grant.mem_mib)


def priority_of(grant: Grant) -> int:
    """Returns the client priority of a job's class: below normal where nothing sets the class above the others."""
    return NORMAL if grant.latency or grant.class_priority > 0 else BELOW_NORMAL


def _warn(stage: str, grant: Grant, lines: tuple[str, ...]) -> None:
    if lines:
        from hami_hpc.node import admin_log

        for line in lines:
            admin_log.to_syslog(admin_log.WARNING, f"{stage}: job {grant.job_id}: {line}")
