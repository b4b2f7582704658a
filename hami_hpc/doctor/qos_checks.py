# SPDX-License-Identifier: Apache-2.0
"""Checks of the QoS and quotas that the site describes: slurmdbd has them so, and slurm.conf lets them work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hami_hpc.core import qos as core
from hami_hpc.core import quota
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.doctor.facts import Facts
from hami_hpc.node.qos_settings import read_qos
from hami_hpc.node.quota_settings import FILE, read_quotas
from hami_hpc.render import qos_lines, quota_lines
from hami_hpc.render.merging import Merge
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
    version = _version(facts)
    yield _running("QoS", "qos", qos_lines.merge_lines(wanted, _site(facts), version, "slurm.conf"))
    graced = core.graced(wanted)
    if graced and version >= SLURM_24_05:
        detail = f"jobs of {', '.join(graced)} that a grace time has ended run once more after they have completed"
        yield Finding("grace time of QoS", Level.WARN, detail, "grace_time_s = 0, with this Slurm (docs/qos.md)")


def check_quotas(facts: Facts) -> Iterator[Finding]:
    """Yields nothing where no quotas.toml stands beside the settings. A difference is a warning, as with QoS."""
    path = Path(facts.settings.path).with_name(FILE)
    if not path.exists():
        return
    wanted = read_quotas(path)
    cluster = facts.slurm.get("ClusterName", "")
    rows = commands.association_rows(cluster, quota.COLUMNS)
    present = quota.Present(
        tuple(quota.read_association(row) for row in rows),
        {row["Name"]: core.read_present(row) for row in commands.qos_rows(core.COLUMNS)},
    )
    missing = quota.unknown_accounts(wanted, present)
    left = [core.line(words) for words in quota.plan(wanted, present, cluster)]
    detail = "; ".join([*(f"account {name} is not there" for name in missing), *left]) or str(path)
    advice = "hami-hpc quota show has both sides, hami-hpc quota apply changes slurmdbd"
    yield finding("quotas in slurmdbd", not missing and not left, detail, advice, Level.WARN)
    yield _running("quotas", "quota", quota_lines.merge_lines(wanted, _site(facts), _version(facts), "slurm.conf"))


def _site(facts: Facts) -> qos_lines.Site:
    """Returns what the running slurmctld has, in place of slurm.conf."""
    return {key.lower(): [Setting(value, "slurmctld")] for key, value in facts.slurm.items()}


def _version(facts: Facts) -> int:
    return commands.version_of(facts.slurm.get("SLURM_VERSION", ""))


def _running(what: str, command: str, merges: Sequence[Merge]) -> Finding:
    """Returns whether slurmctld runs with all that `hami-hpc COMMAND render` would print."""
    lines = "; ".join(line for merge in merges for line in merge.lines)
    detail = f"slurmctld runs without: {lines}" if merges else f"as the {what} of the site need them"
    advice = f"hami-hpc {command} render prints the lines for slurm.conf; then restart slurmctld"
    return finding(f"{what} in slurm.conf", not merges, detail, advice, Level.WARN)


CHECKS = (("QoS in slurmdbd", check_qos_set), ("quotas in slurmdbd", check_quotas))
