# SPDX-License-Identifier: Apache-2.0
"""The common part of prolog and epilog: their arguments, their ledger, and the report of a failure.

Both run as root at every job. They import the standard library only, trust only the environment variables that slurmd
sets from the signed credential, and take the settings' path as an argument.
"""

from __future__ import annotations

import os
import sys
import time

from hami_hpc import installed
from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import suppress
from hami_hpc.core.grant import Grant
from hami_hpc.errors import NodeError
from hami_hpc.node import boot, events, job_dirs, ledger
from hami_hpc.node.config import Settings, load_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CLUSTER_NAME_MAX = 64
REASON_MAX = 300  # characters of a reason that something is added to; slurmctld gets 400 (drain.py)


def store_record(settings: Settings, record: dict[str, int | str]) -> str:
    """Writes the usage record of an ended run to the spool, and returns its path. When that cannot be written, the
    record waits in the run directory, syslog says so, and "" is returned. Raises NodeError when that fails too."""
    from hami_hpc.node import usage_spool

    job_id, start_unix_ns = int(record["job_id"]), int(record["start_unix_ns"])
    try:
        return usage_spool.write(settings.state_dir, job_id, start_unix_ns, usage_spool.to_json(record))
    except NodeError as error:
        short = usage_spool.to_json(record | {"history": ""})
        has_room = usage_spool.waiting_count(settings.run_dir) < usage_spool.WAITING_WITH_HISTORY
        text = usage_spool.to_json(record) if has_room else short
        was_kept = usage_spool.keep(settings.run_dir, job_id, start_unix_ns, text)
        where = (
            f"the record waits in {usage_spool.waiting_dir(settings.run_dir)}"
            if was_kept
            else f"too many records wait, so this one is only in this message: {short}"
        )
        report("epilog", f"{error}; {where}. Free some space there (df), then run hami-hpc reconcile")
        return ""


def parse_arguments(arguments: Sequence[str]) -> str:
    """Returns the settings' path from `[--config PATH]`. Raises NodeError for any other arguments."""
    if not arguments:
        return installed.CONFIG or c.FILE_CONFIG
    if len(arguments) == 2 and arguments[0] == "--config" and arguments[1].startswith("/"):
        return arguments[1]
    raise NodeError(f"arguments {list(arguments)} are not valid; allowed is --config /absolute/path")


def open_ledger(settings: Settings) -> ledger.Ledger:
    """Opens this node's ledger. Creates the run directory if it is missing; a new ledger is filled from it."""
    job_dirs.prepare(settings.run_dir)
    return ledger.open_ledger(settings.run_dir, boot.boot_id(), lambda: held_grants(settings))


def read_ledger(settings: Settings) -> ledger.Ledger:
    """Opens the ledger for a command that changes nothing on disk: read-only, or in memory where none exists.

    Raises NodeError when an existing ledger is damaged or cannot be read.
    """
    from hami_hpc.node import ledger_reader

    return ledger_reader.read_ledger(settings.run_dir, boot.boot_id(), lambda: held_grants(settings))


def update_neighbours(
    settings: Settings, ledger: ledger.Ledger, beyond: Mapping[tuple[int, str], bool] | None = None
) -> tuple[str, ...]:
    """Writes into the records of this node's jobs who is on their GPUs now; arguments, results and errors as those of
    neighbours.update."""
    from hami_hpc.node import neighbours

    # Who waits when memory is not oversold any more goes on waiting for a turn.
    oversold = settings.memory_scaling > 1 or os.path.isdir(f"{settings.run_dir}/{c.FILE_TURNS}")
    return neighbours.update(settings.run_dir, ledger, now_unix_ns(), settings.mps_multi_user, oversold, beyond)


def tell_neighbours(stage: str, settings: Settings, ledger: ledger.Ledger) -> None:
    """The same, but never fails: at most writes to syslog."""
    try:
        lines = update_neighbours(settings, ledger)
    except Exception as error:
        lines = (f"jobs were not told who is on their GPUs: {error_text(error)}",)
    if lines:
        from hami_hpc.node import admin_log

        for line in lines:
            admin_log.to_syslog(admin_log.WARNING, f"{stage}: {line}")


def make_ledger_sound(settings: Settings) -> None:
    """Puts a damaged ledger aside and makes a new one."""
    ledger.make_sound(settings.run_dir, boot.boot_id(), lambda: held_grants(settings))


def held_grants(settings: Settings) -> tuple[Grant, ...]:
    """Returns the grants that the run directory has for this boot."""
    return job_dirs.held_grants(settings.run_dir, boot.booted_unix_ns())


def run(stage: str, arguments: Sequence[str], environment: Mapping[str, str], body: Callable[[], None]) -> int:
    """Runs a stage and reports its failure in one line on standard error (slurmd.log), in syslog, in `sinfo -R` and as
    an event, where the settings can be read.

    Returns the exit status: 0, or 1, after which slurmd drains the node.
    """
    try:
        body()
    except Exception as error:
        from hami_hpc.node import drain, no_room

        job = environment.get("SLURM_JOB_ID", "?")
        text = error_text(error) if isinstance(error, NodeError) else f"job {job}: {error_text(error)}"
        settings: Settings | None = None
        with suppress(NodeError):  # there is nowhere to write the event
            settings = load(arguments)
        if settings is not None and no_room.note(settings.run_dir):
            text = f"{text[:REASON_MAX]}. {no_room.RETURNS}"
        line = report(stage, text)
        drain.drain_node(environment, line)
        if settings is not None:
            number = int(job) if job.isdecimal() else 0
            events.write(settings.state_dir, stage, "node_drain", job_id=number, text=line)
        return 1
    return 0


def error_text(error: Exception) -> str:
    """Returns the message of an error. Any other than NodeError is a bug in hami_hpc: its message names the line."""
    if isinstance(error, NodeError):
        return str(error)
    import traceback

    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__}: {error} ({where.filename}:{where.lineno}). This is a bug in hami_hpc: "
        "please report it. Then run hami-hpc doctor and hami-hpc reconcile"
    )


def report(stage: str, message: str) -> str:
    """Writes one line for the administrator on standard error and in syslog, and returns it. Never fails: slurmd, which
    reads standard error, may have been stopped meanwhile."""
    from hami_hpc.node import admin_log

    line = f"{c.ERROR_PREFIX}{stage}: {message}"
    with suppress(OSError):
        print(line, file=sys.stderr)
    admin_log.to_syslog(admin_log.ERROR, f"{stage}: {message}")
    return line


def load(arguments: Sequence[str]) -> Settings:
    """Reads the settings file that the stage's arguments name."""
    return load_settings(parse_arguments(arguments))


def cluster_name(environment: Mapping[str, str]) -> str:
    """Returns Slurm's name of this node's cluster as slurmdbd has it; empty when it is not known. Never fails.

    slurmd tells it to prolog and epilog. A command reads it from slurm.conf.
    """
    name = environment.get("SLURM_CLUSTER_NAME", "")
    if "SLURM_JOB_ID" not in environment:
        from hami_hpc.slurm import files

        try:
            name = files.ConfFile(files.find_slurm_conf(environment)).cluster
        except (NodeError, OSError, ValueError):  # ValueError: text that is not UTF-8
            name = ""
    is_name = name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    return name.lower() if is_name and len(name) <= CLUSTER_NAME_MAX else ""


def now_unix_ns() -> int:
    return time.time_ns()


def placed_grants(run_dir: str) -> tuple[Grant, ...]:
    """Returns the grants of all job directories, also of those without a ledger row. Raises NodeError."""
    names = (name for name in job_dirs.entries(run_dir) if name.isdigit())
    return tuple(grant for name in names for grant in job_dirs.read_grants(f"{job_dirs.jobs_dir(run_dir)}/{name}"))
