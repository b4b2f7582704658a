# SPDX-License-Identifier: Apache-2.0
"""Epilog: writes what the job used to the spool, then removes its run directory, then its ledger row.

In this order a kill at any line loses nothing, and running it again finishes the rest. It kills no process: ending the
job's processes is slurmd's work, done before the epilog starts. When the spool cannot be written the directory is set
aside with the usage in it for `hami-hpc reconcile`, and the epilog fails, so that somebody looks at the node. The same
when the ledger cannot be opened.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from hami_hpc.core.grant import Grant, parse_id, wants_vgpu
from hami_hpc.core.records import usage_record
from hami_hpc.errors import NodeError
from hami_hpc.shell import region, spool
from hami_hpc.shell.config import Settings
from hami_hpc.shell.ledger import Ledger
from hami_hpc.stages import common


def epilog(settings: Settings, job_id: int, had_vgpu: bool) -> None:
    """Ends the job on this node. No error without a prolog before. NodeError when the spool or the ledger fails."""
    directory = region.job_dir(settings.run_dir, job_id)
    if not had_vgpu and not os.path.lexists(directory):
        return
    try:
        ledger = common.open_ledger(settings)
    except NodeError:
        if (grant := region.read_grant(directory)) is not None:
            region.set_aside(settings.run_dir, grant)
        raise
    try:
        grant = ledger.grant_of(job_id) or region.read_grant(directory)
        if grant is None:  # a refused job, or no prolog ran
            region.remove(settings.run_dir, directory)
            return
        end_grant(settings, ledger, grant, common.now_unix_ns())
    finally:
        ledger.close()


def end_grant(settings: Settings, ledger: Ledger, grant: Grant, end_unix_ns: int) -> None:
    """Spools the usage of one grant, and removes its directory and its row."""
    aside = region.ended_dir(settings.run_dir, grant)
    try:
        if os.path.lexists(aside):  # an epilog before this one could not spool it
            spool_usage(settings, grant, aside, region.ended_unix_ns(aside))
        else:
            spool_usage(settings, grant, region.job_dir(settings.run_dir, grant.job_id), end_unix_ns)
    except NodeError:
        region.set_aside(settings.run_dir, grant)
        ledger.remove(grant)
        raise
    region.remove(settings.run_dir, aside)
    region.remove_grant(settings.run_dir, grant)
    ledger.remove(grant)


def spool_usage(settings: Settings, grant: Grant, directory: str, end_unix_ns: int) -> None:
    """Writes the usage that `directory` shows, unless this run of the job has its record already."""
    if spool.is_spooled(settings.state_dir, grant.job_id, grant.created_unix_ns):
        return
    usage = region.read_usage(directory, grant, end_unix_ns)
    spool.write(settings.state_dir, usage_record(grant, usage, end_unix_ns))


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """The command: returns the exit status for slurmd."""

    def body() -> None:
        job_id = parse_id(environment, "SLURM_JOB_ID")
        epilog(common.load(arguments), job_id, wants_vgpu(environment))

    return common.run("epilog", environment.get("SLURM_JOB_ID", "?"), body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
