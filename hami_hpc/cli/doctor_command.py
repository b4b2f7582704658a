# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc doctor`: is this node fit to run vgpu jobs, and if not, what to do. It changes nothing."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from hami_hpc.core.finding import Finding, Level
from hami_hpc.doctor import build_checks, node_checks, slurm_checks
from hami_hpc.doctor.facts import Check, Facts
from hami_hpc.errors import HamiError
from hami_hpc.node.config import load_settings, settings_path


def checks_for(facts: Facts) -> list[tuple[str, Check]]:
    """(name, check) in order; those of GPUs are left out where there are none."""
    everywhere: list[tuple[str, Check]] = [*build_checks.CHECKS, *slurm_checks.CHECKS]
    if slurm_checks.has_no_gpus(facts):
        return everywhere
    on_gpu_nodes: list[tuple[str, Check]] = [*node_checks.CHECKS]
    return [
        *on_gpu_nodes,
        *everywhere,
        ("gres.conf", slurm_checks.check_gres),
        ("policies", node_checks.check_policies),
    ]


def examine(path: str, node: str | None = None) -> list[Finding]:
    """Runs all checks; one that cannot be made is a finding too."""
    try:
        settings = load_settings(path)
    except HamiError as error:
        return [Finding("settings", Level.FAIL, str(error), "hami-hpc needs them before anything else can be checked")]
    findings = [Finding("settings", Level.OK, path)]
    facts = Facts(settings, node)
    checks = checks_for(facts)
    if not any(check is node_checks.check_driver for _, check in checks):
        detail = f"{facts.node} has no GPUs in Slurm and none here: what GPU nodes need is left out"
        findings.append(Finding("GPUs", Level.OK, detail))
    for name, check in checks:
        try:
            findings.extend(check(facts))
        except HamiError as error:
            findings.append(Finding(name, Level.FAIL, str(error)))
    return findings


@click.command()
@click.option("--node", envvar="HAMI_HPC_NODE", help="This node's name in Slurm.  [default: asked of slurm.conf]")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(node: str | None, as_json: bool) -> None:
    """Check what vgpu jobs need on this node, and say what to do. Changes nothing.

    Exit status 1 when something is wrong; a warning (WARN) is not.
    """
    findings = examine(settings_path(os.environ), node)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            click.echo(f"{finding.level:4}  {finding.what}: {finding.detail}")
            if finding.advice:
                click.echo(f"      -> {finding.advice}")
    if any(finding.level is Level.FAIL for finding in findings):
        raise click.exceptions.Exit(1)
