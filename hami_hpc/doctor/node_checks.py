# SPDX-License-Identifier: Apache-2.0
"""Checks of this node alone: driver, GPUs, settings, ledger, directories, isolation."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from hami_hpc.core import mixed
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.core.inventory import make_inventory
from hami_hpc.core.mig_choice import MIG
from hami_hpc.core.mode_outage import feature_of, recent
from hami_hpc.core.out_of_service import GONE
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import NodeError
from hami_hpc.isolation import mig_checks
from hami_hpc.isolation.table import backend_of, check_modes
from hami_hpc.node import boot, drained_gpus, mode_outages, nvml, usage_bounds
from hami_hpc.node import ledger as ledgers
from hami_hpc.render.offer import node_modes, propose_model
from hami_hpc.slurm import node_features, placeholders
from hami_hpc.stages import mode_service, occupy

POLICIES = {
    "cap": "a job gets its share of the time and never more; its channels are paused for the rest of it, or its "
    "launches are delayed where the driver cannot pause channels",
    "burst": "the time is divided among the active jobs by their shares; they also use the idle time",
    "none": "memory alone is limited; the GPU divides the time as it does without hami_hpc",
}


def check_driver(facts: Facts) -> Iterator[Finding]:
    """Checks that NVML works, that the settings have each GPU's model with no more memory than it has, and that all
    GPUs are of one model."""
    settings = facts.settings
    gpus = make_inventory(nvml.read_devices(), settings.gpu_models)
    yield Finding("driver", Level.OK, f"NVML shows {len(gpus)} GPU(s)")
    for gpu in gpus:
        model_mib = settings.gpu_models.get(gpu.model)
        what = f"GPU {gpu.minor}"
        if model_mib is None:
            advice = f"add [gpu_models.{propose_model(gpu.name)}] with total_mib = {gpu.total_mib} to {settings.path}"
            yield Finding(what, Level.FAIL, f"{gpu.name} with {gpu.total_mib} MiB is not in the settings", advice)
        elif model_mib > gpu.total_mib:
            advice = f"set total_mib = {gpu.total_mib} in [gpu_models.{gpu.model}] of {settings.path}, then render"
            detail = f"has {gpu.total_mib} MiB, but the settings give {gpu.model} {model_mib} MiB"
            yield Finding(what, Level.FAIL, detail, advice)
        else:
            size = settings.gpu_size(gpu.model)
            oversold = f", a slice has {size.slice_shards} at most" if size.slice_shards < size.sold_shards else ""
            detail = f"{gpu.model}, {gpu.total_mib} MiB, {size.sold_shards} shards{oversold}"
            yield Finding(what, Level.OK, detail)
    models = mixed.models_of(gpus)
    if len(models) > 1:
        yield Finding("GPU models", Level.FAIL, f"{len(models)} models here: {', '.join(models)}", mixed.ADVICE)


def check_ledger(facts: Facts) -> Iterator[Finding]:
    """Checks that the ledger is not damaged. Opens it read-only, which creates no file beside it."""
    path = f"{facts.settings.run_dir}/{ledgers.FILE_NAME}"
    if not Path(path).exists():
        yield Finding("ledger", Level.OK, "none yet; the prolog of the first vgpu job creates it")
        return
    if Path(f"{path}-journal").exists():  # of a writer at work, or of a killed one
        yield Finding("ledger", Level.OK, f"{path} is being written; not checked")
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
    """Checks that only root can write the run and state directories, and that they have free space."""
    for what, path in (("run_dir", facts.settings.run_dir), ("state_dir", facts.settings.state_dir)):
        try:
            status = os.lstat(path)
            space = os.statvfs(path)
        except FileNotFoundError:
            yield Finding(what, Level.OK, f"{path} does not exist yet; the prolog of the first vgpu job creates it")
            continue
        except OSError as error:
            yield Finding(what, Level.FAIL, f"{path}: {error.strerror}", "see mount and ls -ld there")
            continue
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and not status.st_mode & 0o022
        free_mib = space.f_bavail * space.f_frsize >> 20
        if not is_private:
            yield Finding(
                what, Level.FAIL, f"users other than root can write {path}", f"chown root {path}; chmod 755 {path}"
            )
        else:
            has_room = free_mib >= 16 and not space.f_flag & os.ST_RDONLY
            detail = f"{path}, {free_mib} MiB free{', read-only' if space.f_flag & os.ST_RDONLY else ''}"
            yield finding(what, has_room, detail, "free some space there, or mount it writable")


def check_mounts(facts: Facts) -> Iterator[Finding]:
    """Checks that each job's usage file has a small file system that bounds its size."""
    settings = facts.settings
    if os.geteuid() != 0:
        raise NodeError("only root can try mounts: run this as root")
    unbounded = usage_bounds.unbounded_usage(settings.run_dir)
    advice = "slurmd and its prolog need CAP_SYS_ADMIN to mount a tmpfs for each job's usage file"
    yield finding("usage files", unbounded is None, unbounded or "cannot grow", advice, Level.WARN)


def check_isolation(facts: Facts) -> Iterator[Finding]:
    """Checks that each mode that the settings offer works on this node."""
    settings = facts.settings
    check_modes(settings.modes, settings.path)
    if settings.mig_nodes:
        settings = settings._replace(modes=node_modes(settings.modes, settings.mig_nodes, facts.node))
        if MIG not in settings.modes and MIG in facts.settings.modes:
            yield from mig_checks.check_undivided(settings)
    for mode in settings.modes:
        yield from backend_of(mode).check(settings)
    yield from mig_checks.check_static(facts.settings)


def check_policies(facts: Facts) -> Iterator[Finding]:
    """Reports the time policy of each class, and warns of settings that leave jobs without limits."""
    for name, entry in facts.settings.classes.items():
        detail = f"{entry.policy}: {POLICIES.get(entry.policy, '')} (HAMI_HPC_LOG=1 in a job shows the method in use)"
        if entry.latency:
            detail += f"; latency-critical: others on its GPU give way, and have {entry.floor} % of the time at least"
        if entry.slice_us:
            detail += f"; timeslices of {entry.slice_us} us instead of those that follow from cores"
        if len(entry.policies) > 1:
            detail += f"; policy= may be {' or '.join(entry.policies)}"
        yield Finding(f"class {name}", Level.OK, detail)
    if facts.settings.bare_shard == "allow":
        detail = "allow: --gres=shard:N gets a whole GPU, without limits, at the price of N shards"
        yield Finding("bare_shard", Level.WARN, detail, 'set bare_shard = "refuse" in [vgpu], then render')


def check_drained(facts: Facts) -> Iterator[Finding]:
    """Reports the GPUs out of service, and whether Slurm can still use a part of one."""
    if not drained_gpus.read(facts.settings.state_dir):
        return
    run = occupy.Occupation(facts.settings, placeholders.Node(facts.node, placeholders.environment(os.environ)))
    run.look()
    free = run.free()
    for gpu in run.drained:
        what, detail = f"GPU {gpu.minor} out of service", f"{gpu.reason} ({gpu.uuid})"
        left = free.get(gpu.slurm_index, 0)
        if gpu.slurm_index == GONE:
            detail += ": it is not here any more, and another GPU has its number"
            yield Finding(what, Level.WARN, detail, f"hami-hpc gpu resume {gpu.uuid} takes it off the list")
        elif left:
            advice = f"hami-hpc gpu drain {gpu.minor} --reason ... again: its prolog refuses the jobs that Slurm starts"
            yield Finding(what, Level.FAIL, f"{detail}: {left} of its shards are free for Slurm", advice)
        else:
            yield Finding(what, Level.WARN, detail, f"hami-hpc gpu resume {gpu.minor} when it is well again")


def check_modes_out(facts: Facts) -> Iterator[Finding]:
    """Reports the modes that are out of the node's features, whether Slurm has them all the same, and failures."""
    settings = facts.settings
    outages = mode_outages.read(settings.state_dir)
    slurm = mode_service.slurm_of_command(facts.node)
    available, active = node_features.read(slurm.node, "scontrol", slurm.env)
    missing = sorted({*map(feature_of, settings.modes)} - {*map(feature_of, (each.mode for each in outages))})
    missing = [name for name in missing if name in available and name not in active]
    if missing:
        detail = f"{', '.join(missing)}: not among the node's active features, and nothing here says why"
        advice = f"scontrol update nodename={facts.node} activefeatures=..., with all of AvailableFeatures"
        yield Finding("features of modes", Level.WARN, detail, advice)
    resume = "see the lines on that mode here and hami-hpc events --kind mode_failed; then hami-hpc mode resume"
    for outage in outages:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(outage.until_unix_s))
        is_active = feature_of(outage.mode) in active
        detail = f"until {until}: {outage.reason}" + (", but Slurm has its feature" if is_active else "")
        advice = "hami-hpc reconcile: its prolog refuses the jobs that Slurm starts" if is_active else resume
        level = Level.FAIL if is_active else Level.WARN
        yield Finding(f"mode={outage.mode} out of service", level, detail, f"{advice} {outage.mode}".rstrip())
    failures = mode_outages.read_failures(settings.state_dir)
    counted = recent(failures, int(time.time()), settings.mode_window_s, boot.boot_id())
    for mode in dict.fromkeys(each.mode for each in counted):
        own = [each for each in counted if each.mode == mode]
        detail = f"{len(own)} of {settings.mode_failures} until it is taken out of service, last: {own[-1].text}"
        yield Finding(
            f"mode={mode} failed", Level.WARN, detail, "mend what the failure names, then hami-hpc doctor again"
        )


CHECKS = (
    ("driver", check_driver),
    ("ledger", check_ledger),
    ("directories", check_run_dir),
    ("mounts", check_mounts),
    ("isolation", check_isolation),
    ("GPUs out of service", check_drained),
    ("modes out of service", check_modes_out),
)
