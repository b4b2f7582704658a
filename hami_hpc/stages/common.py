# SPDX-License-Identifier: Apache-2.0
"""What prolog and epilog share: their arguments, their ledger, and how a failure reaches the administrator.

Both run at every job as root: they import the standard library only, trust no environment but what slurmd sets from
the signed credential, and take the settings' path as an argument.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.shell import ledger, node, region
from hami_hpc.shell.config import Settings, load_settings


def parse_arguments(arguments: Sequence[str]) -> str:
    """The settings' path of `[--config PATH]`. NodeError for anything else."""
    if not arguments:
        return c.FILE_CONFIG
    if len(arguments) == 2 and arguments[0] == "--config" and arguments[1].startswith("/"):
        return arguments[1]
    raise NodeError(f"arguments {list(arguments)} are not understood; allowed is --config /absolute/path")


def open_ledger(settings: Settings) -> ledger.Ledger:
    """This node's ledger; a new one is filled from the run directory."""
    return ledger.open_ledger(
        settings.state_dir, node.boot_id(), lambda: region.held_grants(settings.run_dir, node.booted_unix_ns())
    )


def run(stage: str, job: str, body: Callable[[], None]) -> int:
    """Runs a stage and turns its failure into one line on standard error (slurmd.log) and in syslog.

    Returns the exit status: 0, or 1, upon which slurmd drains the node.
    """
    try:
        body()
    except NodeError as error:
        report(stage, f"{error}")
        return 1
    except Exception as error:  # a fault of this program: the node must not go on as if nothing were
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        report(
            stage,
            f"job {job}: unexpected {type(error).__name__}: {error} ({where.filename}:{where.lineno}). This is a fault "
            "of hami_hpc: please report it. Then hami-hpc doctor, hami-hpc reconcile",
        )
        return 1
    return 0


def report(stage: str, message: str) -> None:
    """One line for the administrator."""
    import syslog

    line = f"{c.ERROR_PREFIX}{stage}: {message}"
    print(line, file=sys.stderr)
    syslog.openlog("hami-hpc", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR, line)


def load(arguments: Sequence[str]) -> Settings:
    """The settings that the stage's arguments name."""
    return load_settings(parse_arguments(arguments))


def now_unix_ns() -> int:
    return time.time_ns()
