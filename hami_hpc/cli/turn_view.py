# SPDX-License-Identifier: Apache-2.0
"""What explain and pool say of jobs that take turns on oversold GPUs: from this node's files, or from the job's nodes
by a step of its own user. Nobody sees more of others' jobs than sums, unless the agent's state is readable for them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable

from hami_hpc.cli.gpu_view import look
from hami_hpc.core import standing
from hami_hpc.core.gpu_rows import gpu_line
from hami_hpc.core.pool import Node, Size, sold_percents
from hami_hpc.node import agent_file, job_dirs, turn_notes
from hami_hpc.node.config import Settings
from hami_hpc.slurm import cluster_view, commands

ASK_S = 10  # a step of an overlapping job begins in some tenths of a second; a suspended one never does


def here(settings: Settings | None, job_id: int) -> str | None:
    """Returns where a job stands that runs on this node; None for one that does not."""
    grants = job_dirs.read_grants(job_dirs.job_dir(settings.run_dir, job_id), owner=0) if settings else ()
    if settings is None or len(grants) != 1 or grants[0].mode != "share":
        return None
    one = turn_notes.standing_of(settings.run_dir, grants[0])
    return standing.text(one, agent_file.now_boot_ns()) or "on the GPU"


def usage_command(job_id: int, shown: str, nodes: int = 1) -> list[str]:
    """Returns the command by which a job's user asks its nodes: `hami-hpc usage`, once on each."""
    count = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    return [
        "srun",
        *cluster_view.in_job(shown, job_id),
        "--overlap",
        "--gres=none",
        "--quiet",
        *count,
        "hami-hpc",
        "usage",
        str(job_id),
    ]


def asked(job_id: int, shown: str, nodes: int) -> list[str]:
    """Asks a running job's nodes, as its user. Returns a line for each node that answers in time. Never fails."""
    try:
        done = subprocess.run(
            [*usage_command(job_id, shown, nodes), "--format", "json"],
            env=cluster_view.environment_for_step(os.environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = [_answer(line) for line in done.stdout.splitlines()]
    return sorted(line for line in lines if line)


def _answer(line: str) -> str:
    """Returns what one node said; "" for a line that is none of its answers."""
    try:
        table = json.loads(line)
        one = table["moved"]["standing"]
        text = "" if one is None else str(one["text"]) or "on the GPU"
        host = str(table["host"])
    except (ValueError, TypeError, KeyError):
        return ""
    printable = "".join(character if character.isprintable() else "?" for character in f"{host}: {text}")
    return printable if text else ""


def of_node(settings: Settings | None, name: str) -> tuple[list[str], list[dict[str, object]]]:
    """Returns lines about the turns on this node, and the same for machines, if `name` is this node and the agent's
    state is readable; else nothing."""
    if settings is None or name != commands.shown_name() or not turn_notes.are_taken(settings):
        return [], []
    view = look(settings.run_dir)
    if view.state is None:
        return [], []
    now_ns = agent_file.now_boot_ns()
    lines = list(filter(None, (gpu_line(view.rows, gpu) for gpu in view.state.gpus)))
    table: list[dict[str, object]] = []
    for row in view.rows:
        if (one := row.standing) is not None:
            table.append({"job_id": row.job_id, "gpu": row.gpu, **standing.to_table(one, now_ns)})
            if one.state in standing.TOLD:
                lines.append(f"  job {row.job_id} {standing.text(one, now_ns)}")
    return lines, table


def sold_lines(nodes: Iterable[tuple[Node, Size]]) -> list[str]:
    """Returns a line for each node with GPUs of which more is allocated than one slice can have. One of which all is
    allocated may be out of service: a placeholder job has the rest of it then."""
    lines = []
    for node, size in nodes:
        over = []
        for index, percent in sold_percents(node, size).items():
            is_full = node.used is not None and node.used[index] >= size.sold_shards
            if percent > 100:
                over.append(f"GPU {index} ({percent} %{', full or out of service' if is_full else ''})")
        if over:
            lines.append(f"{node.name}: jobs may wait for their turn on {', '.join(over)}")
    return lines
