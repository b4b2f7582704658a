# SPDX-License-Identifier: Apache-2.0
"""Checks of this node alone: driver, GPUs, settings, ledger, directories, isolation."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from hami_hpc.core import mixed
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.core.inventory import make_inventory
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import NodeError
from hami_hpc.isolation.table import backend_of, check_modes
from hami_hpc.node import job_dirs, nvml
from hami_hpc.node import ledger as ledgers

POLICIES = {
    "cap": "its share of the time and never more; its channels are paused for the rest, or its launches held back "
    "where the driver lets no process pause",
    "burst": "the time is divided by the shares of those who want it; idle time may be used",
}


def check_driver(facts: Facts) -> Iterator[Finding]:
    """NVML answers; each GPU is of the settings, with no less memory than they promise; all are of one model."""
    settings = facts.settings
    gpus = make_inventory(nvml.read_devices(), settings.gpu_models)
    yield Finding("driver", Level.OK, f"NVML shows {len(gpus)} GPU(s)")
    for gpu in gpus:
        promised = settings.gpu_models.get(gpu.model)
        what = f"GPU {gpu.minor}"
        if promised is None:
            advice = f"add [gpu_models.NAME] with total_mib = {gpu.total_mib} to {settings.path}"
            yield Finding(what, Level.FAIL, f"{gpu.name} with {gpu.total_mib} MiB is no model of the settings", advice)
        elif promised > gpu.total_mib:
            advice = f"set total_mib = {gpu.total_mib} in [gpu_models.{gpu.model}] of {settings.path}, then render"
            yield Finding(what, Level.FAIL, f"has {gpu.total_mib} MiB, {gpu.model} promises {promised}", advice)
        else:
            detail = f"{gpu.model}, {gpu.total_mib} MiB, {settings.shards_per_gpu(gpu.model)} shards"
            yield Finding(what, Level.OK, detail)
    models = mixed.models_of(gpus)
    if len(models) > 1:
        yield Finding("GPU models", Level.FAIL, f"{len(models)} models here: {', '.join(models)}", mixed.ADVICE)


def check_ledger(facts: Facts) -> Iterator[Finding]:
    """The ledger's pages agree with each other. It is opened for reading, which makes no file beside it."""
    path = f"{facts.settings.run_dir}/{ledgers.FILE_NAME}"
    if not Path(path).exists():
        yield Finding("ledger", Level.OK, "none yet; the first vgpu job's prolog makes it")
        return
    if Path(f"{path}-journal").exists():  # of a writer at work, or of a killed one
        yield Finding("ledger", Level.OK, f"{path} is in the middle of a write")
        return
    with ledgers.explained(path):
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=5.0, isolation_level=None)
        try:
            damage = ledgers.Ledger(connection, path, "").damage()
            count = 0 if damage else connection.execute("SELECT count(*) FROM grants").fetchone()[0]
        finally:
            connection.close()
    yield finding("ledger", damage is None, damage or f"{path}, {count} grant(s)", "hami-hpc reconcile")


def check_run_dir(facts: Facts) -> Iterator[Finding]:
    """The run and state directories are root's alone, and have room."""
    for what, path in (("run_dir", facts.settings.run_dir), ("state_dir", facts.settings.state_dir)):
        try:
            status = os.lstat(path)
            space = os.statvfs(path)
        except FileNotFoundError:
            yield Finding(what, Level.OK, f"{path} is not there yet; the first vgpu job's prolog makes it")
            continue
        except OSError as error:
            yield Finding(what, Level.FAIL, f"{path}: {error.strerror}", "see mount and ls -ld there")
            continue
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and not status.st_mode & 0o022
        free_mib = space.f_bavail * space.f_frsize >> 20
        if not is_private:
            yield Finding(
                what, Level.FAIL, f"{path} can be written by others than root", f"chown root {path}; chmod 755"
            )
        else:
            has_room = free_mib >= 16 and not space.f_flag & os.ST_RDONLY
            detail = f"{path}, {free_mib} MiB free{', read-only' if space.f_flag & os.ST_RDONLY else ''}"
            yield finding(what, has_room, detail, "make room, or mount it writable")


def check_mounts(facts: Facts) -> Iterator[Finding]:
    """The small file system that bounds a job's usage file."""
    settings = facts.settings
    if os.geteuid() != 0:
        raise NodeError("mounts can be tried by root alone: run this as root")
    unbounded = job_dirs.unbounded_usage(settings.run_dir)
    advice = "slurmd and its prolog need CAP_SYS_ADMIN to give each job's usage file a bound of its own"
    yield finding("usage files", unbounded is None, unbounded or "cannot grow", advice, Level.WARN)


def check_isolation(facts: Facts) -> Iterator[Finding]:
    """Each mode that the settings offer can isolate here."""
    check_modes(facts.settings.modes, facts.settings.path)
    for mode in facts.settings.modes:
        yield from backend_of(mode).check(facts.settings)


def check_policies(facts: Facts) -> Iterator[Finding]:
    """How the time of each class is kept, and settings that leave something open."""
    for name, entry in facts.settings.classes.items():
        detail = f"{entry.policy}: {POLICIES.get(entry.policy, '')} (HAMI_HPC_LOG=1 in a job shows the way in force)"
        yield Finding(f"class {name}", Level.OK, detail)
    if facts.settings.bare_shard == "allow":
        detail = "allow: --gres=shard:N gets a whole GPU, unfenced, at the price of N shards"
        yield Finding("bare_shard", Level.WARN, detail, 'set bare_shard = "refuse" in [vgpu], then render')


CHECKS = (
    ("driver", check_driver),
    ("ledger", check_ledger),
    ("directories", check_run_dir),
    ("mounts", check_mounts),
    ("isolation", check_isolation),
)
