# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog share: their arguments, their ledger, and how a failure reaches the administrator.

Both run at every job as root: they import the standard library only, trust no environment but what slurmd sets from
the signed credential, and take the settings' path as an argument.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.errors import NodeError
from hami_hpc.node import boot, job_dirs, ledger
from hami_hpc.node.config import Settings, load_settings


def parse_arguments(arguments: Sequence[str]) -> str:
    """The settings' path of `[--config PATH]`. NodeError for anything else."""
    if not arguments:
        return c.FILE_CONFIG
    if len(arguments) == 2 and arguments[0] == "--config" and arguments[1].startswith("/"):
        return arguments[1]
    raise NodeError(f"arguments {list(arguments)} are not understood; allowed is --config /absolute/path")


def open_ledger(settings: Settings) -> ledger.Ledger:
    """This node's ledger, in the run directory, which is made if need be; a new ledger is filled from it."""
    job_dirs.prepare(settings.run_dir)
    return ledger.open_ledger(settings.run_dir, boot.boot_id(), lambda: held_grants(settings))


def read_ledger(settings: Settings) -> ledger.Ledger:
    """The ledger for a command that changes nothing, not even on disk: read-only, or in memory where there is none.

    NodeError when there is one that cannot be read, a damaged one included.
    """
    from hami_hpc.node import ledger_reader

    return ledger_reader.read_ledger(settings.run_dir, boot.boot_id(), lambda: held_grants(settings))


def make_ledger_sound(settings: Settings) -> None:
    """Puts a damaged ledger aside and makes a new one."""
    ledger.make_sound(settings.run_dir, boot.boot_id(), lambda: held_grants(settings))


def held_grants(settings: Settings) -> tuple[Grant, ...]:
    """What the run directory shows as held in this boot."""
    return job_dirs.held_grants(settings.run_dir, boot.booted_unix_ns())


def run(stage: str, environment: Mapping[str, str], body: Callable[[], None]) -> int:
    """Runs a stage and turns its failure into one line on standard error (slurmd.log), in syslog and in `sinfo -R`.

    Returns the exit status: 0, or 1, upon which slurmd drains the node.
    """
    try:
        body()
    except Exception as error:
        job = environment.get("SLURM_JOB_ID", "?")
        line = report(stage, told(error) if isinstance(error, NodeError) else f"job {job}: {told(error)}")
        from hami_hpc.node import drain

        drain.drain_node(environment, line)
        return 1
    return 0


def told(error: Exception) -> str:
    """The error in words. What is none of ours is a fault of this program, and comes with its place."""
    if isinstance(error, NodeError):
        return str(error)
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__}: {error} ({where.filename}:{where.lineno}). This is a fault of hami_hpc: "
        "please report it. Then hami-hpc doctor, hami-hpc reconcile"
    )


def report(stage: str, message: str) -> str:
    """One line for the administrator, on standard error and in syslog. Returns it."""
    from hami_hpc.node import admin_log as lines

    line = f"{c.ERROR_PREFIX}{stage}: {message}"
    print(line, file=sys.stderr)
    lines.to_syslog(lines.ERROR, f"{stage}: {message}")
    return line


def load(arguments: Sequence[str]) -> Settings:
    """The settings that the stage's arguments name."""
    return load_settings(parse_arguments(arguments))


def now_unix_ns() -> int:
    return time.time_ns()
