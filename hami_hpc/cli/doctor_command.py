# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc doctor`: checks whether this node can run vgpu jobs, and says what to do if not. It changes nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import ExitCode
from hami_hpc.cli.options import command, config_option, config_path, format_option, this_node_option
from hami_hpc.core.finding import Finding, Level
from hami_hpc.doctor import (
    accounting_checks,
    agent_checks,
    build_checks,
    class_checks,
    container_checks,
    fence_checks,
    lost_jobs,
    memory_checks,
    node_checks,
    pam_checks,
    qos_checks,
    slurm_checks,
)
from hami_hpc.doctor.facts import Check, Facts
from hami_hpc.errors import HamiError
from hami_hpc.node.config import load_settings


def checks_for(facts: Facts) -> list[tuple[str, Check]]:
    """Returns (name, check) in order, without the checks of GPUs on a node that has none."""
    everywhere: list[tuple[str, Check]] = [
        *build_checks.CHECKS,
        *slurm_checks.CHECKS,
        *memory_checks.CHECKS,
        *qos_checks.CHECKS,
        *accounting_checks.CHECKS,
    ]
    if slurm_checks.has_no_gpus(facts):
        return everywhere
    on_gpu_nodes: list[tuple[str, Check]] = [*node_checks.CHECKS, *agent_checks.CHECKS, *fence_checks.CHECKS]
    return [
        *on_gpu_nodes,
        *container_checks.CHECKS,
        *pam_checks.CHECKS,
        *lost_jobs.CHECKS,
        *everywhere,
        ("gres.conf", slurm_checks.check_gres),
        ("classes", class_checks.check_classes),
        ("policies", node_checks.check_policies),
    ]


def examine(path: str, node: str | None = None) -> list[Finding]:
    """Runs all checks. A check that cannot be made is a finding too; an error that stops several is shown once."""
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
            _add_stopped(findings, name, str(error))
    return findings


def _add_stopped(findings: list[Finding], name: str, error: str) -> None:
    """Adds a finding for a check that could not be made, or its name to the finding that has the same error."""
    for index, one in enumerate(findings):
        if one.level is Level.FAIL and one.detail == error:
            findings[index] = replace(one, what=f"{one.what}, {name}")
            return
    findings.append(Finding(name, Level.FAIL, error))


@command("doctor", done="no finding is FAIL; there may be some that are WARN", found="a finding is FAIL")
@this_node_option
@format_option("text", "json", help_text="Text: for people; json: for machines.")
@config_option
def doctor(node: str | None, form: str, config: Path | None) -> None:
    """Check what vGPU jobs need on this node, and say what to do. Changes nothing.

    WARN: vGPU jobs run and are fenced as the settings say, and something could be better.
    """
    findings = examine(config_path(config), node)
    if form == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            click.echo(f"{colours.level(finding.level)}  {finding.what}: {finding.detail}")
            if finding.advice:
                click.echo(f"      -> {finding.advice}")
    if any(finding.level is Level.FAIL for finding in findings):
        raise click.exceptions.Exit(ExitCode.FOUND)
