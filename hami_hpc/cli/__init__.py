# SPDX-License-Identifier: Apache-2.0
"""The hami-hpc command. A command's module is imported only when that command runs."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from hami_hpc import installed
from hami_hpc.contract.constants import FILE_CONFIG
from hami_hpc.errors import HamiError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Command -> the module that defines it under the command's name, and the first sentence of its help. With this table,
# listing the commands and completing their names imports none of them.
NODE_COMMANDS = {
    "render": (
        "hami_hpc.cli.render_command",
        "Write hami_hpc's parts of slurm.conf, gres.conf and plugstack.conf for this node, and the filters' site "
        "table.",
    ),
    "forget-node": (
        "hami_hpc.cli.render_command",
        "Delete the lines that render wrote for nodes that are gone, and show the site's lines that still name them.",
    ),
    "inventory": (
        "hami_hpc.cli.inventory_command",
        "This node's GPUs, as the driver shows them and as the settings count them.",
    ),
    "jobs": ("hami_hpc.cli.node_commands", "The grants on this node, with what the jobs use of them right now."),
    "usage": ("hami_hpc.cli.usage_command", "What a running vGPU job uses now."),
    "metrics": (
        "hami_hpc.cli.metrics_command",
        "What the agent sees of this node's GPUs and jobs, for Prometheus.",
    ),
    "ps": (
        "hami_hpc.cli.ps_command",
        "The jobs and processes on this node's GPUs, with what each was granted and what it uses.",
    ),
    "top": (
        "hami_hpc.cli.top_command",
        "This node's GPUs, their jobs and the agent's findings, each second until q is pressed.",
    ),
    "events": (
        "hami_hpc.cli.events_command",
        "What happened on this node: grants and their ends, refusals, what the agent found and did, GPUs and nodes "
        "taken out of service, errors of GPUs.",
    ),
    "pool": (
        "hami_hpc.cli.pool_command",
        "What the cluster has for vGPU jobs, what of it is allocated, and the largest free slice of each node.",
    ),
    "advise": (
        "hami_hpc.cli.advise_command",
        "Say whether MIG, MPS, sharing or a whole GPU suits a workload, and why.",
    ),
    "explain": (
        "hami_hpc.cli.explain_command",
        "Why a vGPU job waits or where it runs, what it asked for, and what would fit now.",
    ),
    "trace": (
        "hami_hpc.cli.trace_command",
        "Where the time of a job's start went: each step with its time, and the milliseconds since the one before.",
    ),
    "resize": (
        "hami_hpc.cli.resize_command",
        "Give the slices of a running job another size: more or less memory, time, or both.",
    ),
    "swap": (
        "hami_hpc.cli.swap_command",
        "Move the device memory of a running job's programs to the host, or back to the GPU.",
    ),
    "reconcile": (
        "hami_hpc.cli.node_commands",
        "Make the ledger and the run directory agree with Slurm's jobs and the GPUs.",
    ),
    "gpu": (
        "hami_hpc.cli.gpu_command",
        "Take one GPU of this node out of service, return it, or list the GPUs.",
    ),
    "mode": (
        "hami_hpc.cli.mode_command",
        "List the modes of isolation that this node offers and how often they failed, or return one to service.",
    ),
    "mig": (
        "hami_hpc.cli.mig_command",
        "List this node's MIG instances and whose they are, switch MIG of a GPU, apply a static layout, or make room.",
    ),
    "mps": ("hami_hpc.cli.mps_command", "Show the MPS daemons of this node's jobs, or restart one."),
    "doctor": ("hami_hpc.cli.doctor_command", "Check what vGPU jobs need on this node, and say what to do."),
    "baseline": (
        "hami_hpc.cli.baseline_command",
        "Record this node's own figures, or check that they are no worse.",
    ),
    "agent": (
        "hami_hpc.cli.agent_command",
        "Watch the GPUs of this node: find processes and jobs that take more than they were granted, and act on them "
        "as [agent] of the settings says.",
    ),
    "qos": (
        "hami_hpc.cli.qos_command",
        "Compare the QoS of the settings with slurmdbd's, or write them there.",
    ),
    "quota": (
        "hami_hpc.cli.quota_command",
        "Compare the quotas of accounts with slurmdbd's, or write them there.",
    ),
}
# The same for the commands that need hami-hpc[accounting], which nodes do not have.
ACCOUNTING_COMMANDS = {
    "ingest": (
        "hami_hpc.cli.accounting_ingest",
        "Read job records into the store: what is new in slurmdbd, or a file.",
    ),
    "collect-usage": (
        "hami_hpc.cli.accounting_ingest",
        "Read into the store what vGPU jobs used, as the nodes' epilogs wrote it.",
    ),
    "store": (
        "hami_hpc.cli.accounting_store",
        "Take back the last ingest, or take users' names out of the store.",
    ),
    "bill": (
        "hami_hpc.cli.accounting_bill",
        "GPU-hours held in a period, and their cost, by account and user (or whatever --by names).",
    ),
    "check-bill": (
        "hami_hpc.cli.accounting_bill",
        "Compare the records of a period with sreport: every difference, with its reason as far as it is known.",
    ),
    "invoice": ("hami_hpc.cli.accounting_invoice", "Numbered invoices of a month, one for each account."),
    "balances": (
        "hami_hpc.cli.accounting_invoice",
        "Credits of each account: granted, used by invoices that stand, and left.",
    ),
    "ledger": (
        "hami_hpc.cli.accounting_finance",
        "All invoices and credit notes, with their tax, and what of them is paid.",
    ),
    "balance": (
        "hami_hpc.cli.accounting_balance",
        "What an account has left of its budgets and credits, and when it will be used up.",
    ),
    "efficiency": (
        "hami_hpc.cli.accounting_reports",
        "What a job (or a user's or account's jobs) used of what it held, and the request that would have sufficed.",
    ),
    "report": ("hami_hpc.cli.accounting_reports", "The monthly cluster report: one self-contained HTML file."),
}
COMMANDS = {**NODE_COMMANDS, **ACCOUNTING_COMMANDS}
# These show what Slurm's controller shows, of the cluster that SLURM_CLUSTERS names, as squeue does. All others act on
# this cluster's jobs, where another's of the same numbers must not be taken for them.
OF_ANY_CLUSTER = frozenset({"explain", "pool"})
