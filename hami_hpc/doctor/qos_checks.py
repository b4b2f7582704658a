# SPDX-License-Identifier: Apache-2.0
"""Checks of the QoS that the settings describe: slurmdbd has them so, and slurm.conf lets them work."""

from __future__ import annotations

from collections.abc import Iterator

from hami_hpc.core import qos as core
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.doctor.facts import Facts
from hami_hpc.node.qos_settings import read_qos
from hami_hpc.render import qos_lines
from hami_hpc.slurm import commands
from hami_hpc.slurm.lines import Setting

SLURM_24_05 = 24 << 16 | 5 << 8


def check_qos_set(facts: Facts) -> Iterator[Finding]:
    """Yields nothing where the settings have no [qos.*]. A difference is a warning: vGPU jobs run all the same."""
    wanted = read_qos(facts.settings)
    if not wanted:
        return
    present = {row["Name"]: core.read_present(row) for row in commands.qos_rows(core.COLUMNS)}
    missing = [f"{qos.name} is not there" for qos in wanted if qos.name not in present]
    different = [
        f"{d.what} of {d.qos} is {d.present or core.NONE}, not {d.wanted or core.NONE}"
        for d in core.differences(wanted, present)
        if d.present is not None
    ]
    detail = "; ".join([*missing, *different]) or ", ".join(qos.name for qos in wanted)
    advice = "hami-hpc qos apply --dry-run shows what would be changed, hami-hpc qos apply changes it"
    yield finding("QoS in slurmdbd", not missing and not different, detail, advice, Level.WARN)
    site = {key.lower(): [Setting(value, "slurmctld")] for key, value in facts.slurm.items()}
    version = commands.version_of(facts.slurm.get("SLURM_VERSION", ""))
    merges = qos_lines.merge_lines(wanted, site, version, "slurm.conf")
    detail = "; ".join(line for merge in merges for line in merge.lines)
    detail = f"slurmctld runs without: {detail}" if merges else "as the QoS of the settings need them"
    advice = "hami-hpc qos render prints the lines for slurm.conf; then restart slurmctld"
    yield finding("QoS in slurm.conf", not merges, detail, advice, Level.WARN)
    graced = core.graced(wanted)
    if graced and version >= SLURM_24_05:
        detail = f"jobs of {', '.join(graced)} that a grace time has ended run once more after they have completed"
        yield Finding("grace time of QoS", Level.WARN, detail, "grace_time_s = 0, with this Slurm (docs/qos.md)")


CHECKS = (("QoS in slurmdbd", check_qos_set),)
