# SPDX-License-Identifier: Apache-2.0
"""Checks of Slurm's configuration: keys, SPANK's line, prolog and epilog, filters, devices, QoS."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hami_hpc import places
from hami_hpc.contract import constants as c
from hami_hpc.core import mixed, swap
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.core.mig_static import types_of
from hami_hpc.core.places import of_gpus
from hami_hpc.core.sizes import is_oversold
from hami_hpc.doctor import pam_checks
from hami_hpc.doctor.build_checks import moves_suspended
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import NodeError
from hami_hpc.node import mig_static, nvml
from hami_hpc.render import filters, on_disk
from hami_hpc.render.filters import FOR_ALL, FOR_OURS, client_plugins
from hami_hpc.render.merging import IMPLIES_ALLOC
from hami_hpc.render.offer import shards_may_have_types
from hami_hpc.slurm import commands, plugstack
from hami_hpc.slurm.files import ConfFile, calls_one_of, scripts_of
from hami_hpc.slurm.lines import settings_of

SLURM_23_11 = commands.version_of("23.11.0")  # suspend_grace_time
SLURM_24_11 = commands.version_of("24.11.0")  # slurmd asks its task plugins no more
GRACE_S = 2  # Slurm's default
RESTART = "then restart slurmctld and slurmd"


def check_keys(facts: Facts) -> Iterator[Finding]:
    """Checks the settings of Slurm that vgpu jobs depend on."""
    yield _gres_types(facts)
    for key, word, why in (
        ("SelectType", "select/cons_tres", "SelectType=select/cons_tres"),
        ("JobSubmitPlugins", "lua", "JobSubmitPlugins=lua"),
    ):
        value = facts.slurm.get(key, "")
        yield finding(key, word in value.split(","), value or "not set", f"slurm.conf: {why}, {RESTART}")
    yield _client_plugin(facts)
    flags = facts.slurm.get("PrologFlags", "")
    good = any(flag.strip().lower() in IMPLIES_ALLOC for flag in flags.split(","))
    yield finding("PrologFlags", good, flags or "not set", f"slurm.conf: PrologFlags=Alloc, {RESTART}")
    if "runinjob" in {flag.strip().lower() for flag in flags.split(",")}:
        yield from _run_in_job(facts)
    parameters = facts.slurm.get("SchedulerParameters", "")
    good = "nohold_on_prolog_fail" in parameters
    detail = "nohold_on_prolog_fail is set" if good else "a job whose prolog fails is held until somebody releases it"
    advice = "add nohold_on_prolog_fail to SchedulerParameters: such a job starts on another node by itself"
    yield finding("SchedulerParameters", good, detail, advice, Level.WARN)


def _run_in_job(facts: Facts) -> Iterator[Finding]:
    """Warns of a prolog that runs in the job's extern step, which is there before the prolog has ended."""
    advice = f"slurm.conf: take RunInJob out of PrologFlags, {RESTART}"
    if pam_checks.adopts():
        detail = "a session by ssh that begins while its job's prolog runs is not limited"
        yield Finding("RunInJob", Level.WARN, detail, advice)
    if "mps" in facts.settings.modes:
        detail = (
            "the daemon of mode=mps is a process of its first job: it ends with it (24.11), or that job does not end, "
            "and Slurm drains the node with 'Kill task failed' (26.05)"
        )
        yield Finding("RunInJob", Level.WARN, detail, advice)


def _gres_types(facts: Facts) -> Finding:
    given = facts.slurm.get("GresTypes", "")
    needs = {
        "vgpu_cores": "include slurm-hami-hpc.conf, which hami-hpc render writes",
        "vgpu_slo": "run hami-hpc render again: jobs cannot ask for slo= without",
    }
    if is_oversold(facts.settings.memory_scaling):
        needs["vgpu_fixed"] = "run hami-hpc render again: jobs of classes that are never moved cannot start"
    lacking = [advice for name, advice in needs.items() if name not in given.split(",")]
    advice = f"slurm.conf: {lacking[0]}, {RESTART}" if lacking else ""
    return finding("GresTypes", not lacking, given or "not set", advice)


def _client_plugin(facts: Facts) -> Finding:
    """Checks that one plugin runs cli_filter.lua: for every command if that has rules of the site's."""
    value = facts.slurm.get("CliFilterPlugins", "")
    named = [name for name in client_plugins(value) if name in (FOR_ALL, FOR_OURS)]
    path, ours = f"{facts.conf_dir}/cli_filter.lua", places.LUA / "cli_filter.lua"
    script, shipped = on_disk.read(Path(path)), on_disk.read(ours)
    calls_us = script is not None and not filters.missing_calls("cli_filter.lua", script)  # check_filters says if not
    if named == [FOR_OURS] and calls_us and filters.has_rules_of_its_own(script or "", shipped or script or ""):
        detail = f"{value} runs {path} for vgpu requests alone, and that has rules of its own"
        advice = f"slurm.conf: CliFilterPlugins=lua; if nobody needs the rules: install -m 0644 {ours} {path}"
        return Finding("CliFilterPlugins", Level.FAIL, detail, advice)
    advice = "slurm.conf: CliFilterPlugins=hami_hpc, or lua where cli_filter.lua has rules of its own; not both"
    return finding("CliFilterPlugins", len(named) == 1, value or "not set", advice)


def check_devices(facts: Facts) -> Iterator[Finding]:
    """Checks that Slurm gives a job the device files of its own GPU only; otherwise any job can open any GPU."""
    plugins = facts.slurm.get("TaskPlugin", "")
    advice = f"slurm.conf: TaskPlugin=task/affinity,task/cgroup, {RESTART}: any job can open every GPU without"
    yield finding("TaskPlugin", "cgroup" in plugins, plugins or "not set", advice)
    conf = ConfFile(f"{facts.conf_dir}/cgroup.conf")
    given = settings_of(conf.lines).get("constraindevices")
    value = given[-1].value if given else "not set"
    detail = f"{conf.path}: ConstrainDevices is {value}"
    advice = f"ConstrainDevices=yes (hami-hpc render --cgroup), {RESTART}: any job can open every GPU without"
    yield finding("ConstrainDevices", value.lower() == "yes", detail, advice)
    tracking = facts.slurm.get("ProctrackType", "")
    advice = f"slurm.conf: ProctrackType=proctrack/cgroup, {RESTART}: a daemon of a job outlives it without"
    yield finding("ProctrackType", tracking == "proctrack/cgroup", tracking, advice, Level.WARN)


def check_suspend(facts: Facts) -> Iterator[Finding]:
    """Checks that Slurm gives the memory of suspended jobs the time to leave, where there are jobs whose memory can."""
    moved = [name for name, one in facts.settings.classes.items() if one.swap]
    if not moved:
        return
    version = commands.version_of(facts.slurm.get("SLURM_VERSION", ""))
    of_class = f"suspended jobs of class {', '.join(moved)}"
    if moves_suspended(facts) and version < SLURM_24_11:
        yield finding("swap", True, f"{of_class}: slurmd waits until their memory has left the GPU", "")
        return
    has_s = _grace_s(facts) if version >= SLURM_23_11 else GRACE_S
    largest_mib = max(facts.settings.gpu_models.values(), default=0)
    needs_s = math.ceil(swap.seconds_for(largest_mib))
    advice = f"slurm.conf: PreemptParameters=suspend_grace_time={needs_s}, enough for {largest_mib} MiB, {RESTART}"
    if version < SLURM_23_11:
        advice = f"slurm.conf: add task/hami_hpc to TaskPlugin, {RESTART}, if Slurm shall suspend jobs"
    detail = f"{of_class}: their memory has {has_s} s to leave the GPU, what is late stays"
    yield finding("swap", has_s >= needs_s, detail, advice, Level.WARN)


def _grace_s(facts: Facts) -> int:
    """Returns for how long Slurm lets a job's programs go on after SIGTSTP, s."""
    found = re.search(r"suspend_grace_time=([0-9]+)", facts.slurm.get("PreemptParameters", ""), re.IGNORECASE)
    return int(found[1]) if found else GRACE_S


def check_spank(facts: Facts) -> Iterator[Finding]:
    """Checks that plugstack.conf loads the SPANK plugin as required, with the settings' arguments."""
    path = plugstack.plugstack_path(facts.slurm_conf)
    line = plugstack.our_line(path)
    what = "plugstack.conf"
    if line is None:
        advice = "add the line that hami-hpc render prints: vgpu jobs would get the whole GPU without"
        yield Finding(what, Level.FAIL, f"{path} has no line for {plugstack.SPANK_PLUGIN}", advice)
        return
    if line.kind != plugstack.REQUIRED:
        yield Finding(
            what, Level.FAIL, f"{line.where}: {line.kind}", "write required: a step without its fence must not start"
        )
        return
    wanted = {
        "run_dir": facts.settings.run_dir,
        "interposer": facts.settings.interposer,
        "preload": facts.settings.preload,
    }
    there = dict(argument.partition("=")[::2] for argument in line.arguments)
    wrong = [f"{key}={there.get(key, '(not there)')}" for key, value in wanted.items() if there.get(key) != value]
    detail = f"{line.where}: {', '.join(wrong)}" if wrong else line.where
    advice = (
        f"hami-hpc render; {facts.settings.path} has {', '.join(f'{key}={value}' for key, value in wanted.items())}"
    )
    yield finding(what, not wrong, detail, advice)


def check_stages(facts: Facts) -> Iterator[Finding]:
    """Checks that Slurm's Prolog and Epilog are, or call, those of hami_hpc."""
    for key in ("Prolog", "Epilog"):
        stage = key.lower()
        programs = (str(places.STAGES / stage), f"{facts.conf_dir}/hami-hpc-{stage}")
        values = facts.slurm_values(key)
        scripts = [path for value in values for path in scripts_of(value, facts.conf_dir)]
        calling = next((path for path in scripts if calls_one_of(path, programs)), None)
        if calling is None:
            detail = f"{', '.join(values) or 'not set'}: nothing of hami_hpc's runs"
            yield Finding(
                key, Level.FAIL, detail, f"hami-hpc render says how the site's own and ours both run; {RESTART}"
            )
            continue
        good = os.access(calling, os.X_OK)
        yield finding(key, good, calling, f"chmod 755 {calling}")


def check_filters(facts: Facts) -> Iterator[Finding]:
    """Checks that job_submit.lua and cli_filter.lua beside slurm.conf are, or call, those of hami_hpc."""
    for name in filters.CALLS:
        path = f"{facts.conf_dir}/{name}"
        text = on_disk.read(Path(path))
        if text is None:
            where = "the controller" if name == "job_submit.lua" else "wherever jobs are submitted"
            advice = f"install -m 0644 {places.LUA / name} {path} (needed on {where})"
            yield Finding(name, Level.FAIL, f"{path} is not there", advice)
            continue
        missing = filters.missing_calls(name, text)
        detail = f"{path} does not call {', '.join(missing)}" if missing else path
        yield finding(name, not missing, detail, f"the head of {places.LUA}/hami_hpc.lua has the lines to add to it")


def check_qos(facts: Facts) -> Iterator[Finding]:
    """Checks that Slurm enforces QoS, which select classes (docs/adr/017), and that slurmdbd, if there is one, has
    those of the settings. A site with neither has one class, which is no fault."""
    enforced = facts.slurm.get("AccountingStorageEnforce", "").lower().split(",")
    good = bool({"qos", "all"} & set(enforced))
    trusts = facts.settings.qos_enforced != "auto"  # then job_submit does not look
    why = "any user picks a class without" if trusts else "every vGPU job is of class std without"
    advice = f"slurm.conf: AccountingStorageEnforce=associations,limits,qos, {RESTART}: {why}"
    wanted = {qos: name for name, entry in facts.settings.classes.items() for qos in entry.qos}
    if not (good or trusts):
        if not facts.has_slurmdbd:
            lacking, first = "slurmdbd", "slurmdbd"
        elif not wanted.keys() & commands.qos_names():
            lacking, first = "QoS of a class", "hami-hpc qos apply"
        else:
            lacking = first = ""
        if lacking:  # and nobody misses a class
            detail = f"this cluster has no {lacking}, so every vGPU job is of class std"
            yield Finding("AccountingStorageEnforce", Level.WARN, detail, f"for other classes {first}; {advice}")
            return
    yield finding("AccountingStorageEnforce", good, ",".join(enforced), advice)
    if not wanted:
        return
    known = commands.qos_names()
    missing = [f"{qos} (class {name})" for qos, name in wanted.items() if qos not in known]
    detail = f"slurmdbd does not know {', '.join(missing)}" if missing else ", ".join(wanted)
    advice = "sacctmgr add qos NAME, and give it to the accounts that may use it; or take it out of [classes.*]"
    yield finding("QoS", not missing, detail, advice)


def check_gres(facts: Facts) -> Iterator[Finding]:
    """Checks that Slurm and the driver have the same number of GPUs: Slurm's device numbers are ranks among all."""
    _ = facts.slurm  # raises the same error as in the other checks where Slurm does not answer
    slots = mig_static.read(facts.settings.state_dir)
    wanted = types_of(slots)
    given = commands.gpus_by_type(facts.node)
    if shares := sum(commands.gres_by_type(facts.node, "mps").values()):
        detail = f"{facts.node} has mps:{shares} in Slurm, which cannot be beside slices on a GPU"
        advice = f"take mps out of gres.conf, GresTypes, Gres= and AccountingStorageTRES, {RESTART} (docs/migration.md)"
        yield Finding("gres/mps", Level.FAIL, detail, advice)
    shards = commands.gres_by_type(facts.node, c.GRES_SHARD)
    if shards and not any(shards.values()):  # shard:0, and not a node without slices
        detail = f"{facts.node} has no shards in Slurm, so no slice starts there; running jobs go on"
        version = commands.version_of(facts.slurm.get("SLURM_VERSION", ""))
        advice = (
            f"run hami-hpc render, which gives shards in Gres= of slurm.conf a type, {RESTART}"
            if shards_may_have_types(version, bool(slots))
            else "restart the first slurmctld, without -R, since one that recovers its nodes has no shards beside a "
            f"static MIG layout; then scontrol update nodename={facts.node} state=resume"
        )
        yield Finding("gres/shard", Level.FAIL, detail, advice)
    counted = {name: count for name, count in given.items() if name not in wanted}
    yield from _static_gres(facts, wanted, given)
    total = sum(counted.values())
    if facts.settings.slices_max > 1 or set(counted) <= set(c.PLACES) - set(facts.settings.gpu_models):
        yield from _places(facts, counted, wanted)
    elif len(counted) > 1:
        yield Finding("gres.conf", Level.FAIL, f"{facts.node} has gpu of types {', '.join(counted)}", mixed.ADVICE)
        return
    shown = len(nvml.read_devices()) - len({slot.gpu_uuid for slot in slots})
    advice = "run hami-hpc render and restart slurmd: every GPU must be in gres.conf"
    yield finding("gres.conf", total == shown, f"{facts.node} has {total} gpu in Slurm, {shown} in the driver", advice)


def _places(facts: Facts, given: dict[str, int], static: dict[str, int]) -> Iterator[Finding]:
    """Checks the types of a node's GPUs where they are places, or were before slices_max became 1."""
    slices_max = facts.settings.slices_max
    if static and slices_max > 1:
        detail = f"slices_max = {slices_max} and the static MIG layout here do not go together"
        advice = "slices_max = 1, or hami-hpc mig apply without the layout: a whole GPU could be an instance otherwise"
        yield Finding("types of GPUs", Level.FAIL, detail, advice)
        return
    wanted = Counter(of_gpus(sum(given.values()), slices_max))
    if not given or list(wanted.items()) == list(given.items()):
        return
    shown = ", ".join(f"gpu:{name}:{count}" for name, count in given.items())
    needed = ", ".join(f"gpu:{name}:{count}" for name, count in wanted.items() if name) or "gpu:MODEL:COUNT"
    detail = f"{facts.node} has {shown} in Slurm, and slices_max = {slices_max} needs {needed}"
    advice = f"run hami-hpc render on every node, {RESTART} (docs/slices.md says what has to end before)"
    yield Finding("types of GPUs", Level.FAIL, detail, advice)


def _static_gres(facts: Facts, wanted: dict[str, int], given: dict[str, int]) -> Iterator[Finding]:
    """Checks that Slurm has the instances of the static MIG layout, in the order of their devices."""
    if not wanted:
        return
    detail = ", ".join(f"gpu:{name}:{given.get(name, 0)} of {count}" for name, count in wanted.items())
    in_order = [name for name in given if name in wanted] == list(wanted) == list(given)[len(given) - len(wanted) :]
    good = in_order and all(given[name] == count for name, count in wanted.items())
    advice = f"run hami-hpc render, {RESTART}: the types stand after the GPUs', in this order, because Slurm pairs them"
    yield finding("static MIG layout", good, f"{facts.node} has {detail} in Slurm", advice)


def has_no_gpus(facts: Facts) -> bool:
    """Returns whether both Slurm and the driver have no GPU on this node."""
    try:
        _ = facts.slurm
        if commands.gpus_by_type(facts.node):
            return False
    except NodeError:
        return False
    try:
        return not nvml.read_devices()
    except NodeError:
        return True


CHECKS = (
    ("slurm.conf", check_keys),
    ("devices", check_devices),
    ("swap", check_suspend),
    ("plugstack.conf", check_spank),
    ("stages", check_stages),
    ("filters", check_filters),
    ("QoS", check_qos),
)
