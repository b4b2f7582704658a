# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc ps`: one line for each job, and each process without a slice, on this node's GPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.gpu_view import View, look
from hami_hpc.cli.options import command, config_option, format_option, settings_of
from hami_hpc.core import standing
from hami_hpc.core.gpu_rows import Row, gpu_line, recent_faults
from hami_hpc.core.records import MIB
from hami_hpc.core.tables import table
from hami_hpc.node import agent_file, turn_notes

HEAD_TEXT = "GPU|JOB|PROCESSES|USER|CLASS|CORES %|BUSY %|GRANTED MIB|USED MIB|PEAK MIB|FINDINGS"
HEAD = tuple(HEAD_TEXT.split("|"))
RIGHT = (0, 1, 2, 5, 6, 7, 8, 9)
TURN_AT = 3  # the column of an oversold GPU's turns, before the user


def _json(view: View) -> dict[str, object]:
    now_ns = agent_file.now_boot_ns()
    return {
        "source": view.source,
        "seconds_old": view.seconds_old,
        "note": view.note,
        "gpus": [gpu._asdict() for gpu in view.state.gpus] if view.state else [],
        "rows": [_row_json(row, now_ns) for row in view.rows],
    }


def _row_json(row: Row, now_ns: int) -> dict[str, object]:
    turn = None if row.standing is None else standing.to_table(row.standing, now_ns)
    return {**asdict(replace(row, standing=None)), "standing": turn}


@command("ps")
@format_option("table", "json")
@config_option
def ps(form: str, config: Path | None) -> None:
    """The jobs and processes on this node's GPUs, with what each was granted and what it uses.

    Root, and the group that may read the agent's state, see everything that the agent sees. Other users see their own
    vGPU jobs on this node.
    """
    settings = settings_of(config)
    view = look(settings.run_dir, turn_notes.are_taken(settings))
    if form == "json":
        click.echo(json.dumps(_json(view), indent=2))
        return
    cells = [
        (
            row.gpu if row.gpu >= 0 else "?",
            row.job_text,
            row.process_text,
            row.user,
            row.service_class,
            row.cores_percent,
            f"{row.busy_percent:.1f}",
            row.granted_bytes // MIB,
            row.used_bytes // MIB,
            row.peak_bytes // MIB,
            ", ".join(row.findings),
        )
        for row in view.rows
    ]
    if any(row.standing for row in view.rows):
        _show_with_turns(view, cells)
    else:
        click.echo(colours.table_head(table(HEAD, cells, right=RIGHT)))
    for gpu, second in recent_faults(view.state) if view.state else ():
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        click.echo(colours.coloured(f"GPU {gpu.minor} reported at {moment}: {gpu.last_fault}", "red"))
    if view.note:
        click.echo(view.note, err=True)


def _show_with_turns(view: View, cells: Sequence[tuple[object, ...]]) -> None:
    """Prints the table with where each job stands, and a line for each that waits or could not leave."""
    now_ns = agent_file.now_boot_ns()
    turns = [standing.cell(row.standing, now_ns) if row.standing else "-" for row in view.rows]
    head = (*HEAD[:TURN_AT], "TURN", *HEAD[TURN_AT:])
    rows = [(*row[:TURN_AT], turn, *row[TURN_AT:]) for row, turn in zip(cells, turns, strict=True)]
    right = tuple(at if at < TURN_AT else at + 1 for at in RIGHT)
    click.echo(colours.table_head(table(head, rows, right=right)))
    for gpu in view.state.gpus if view.state else ():
        if line := gpu_line(view.rows, gpu):
            click.echo(line)
    for row in view.rows:
        one = row.standing
        if one is not None and (one.state in standing.TOLD) and (text := standing.text(one, now_ns)):
            click.echo(colours.coloured(f"job {row.job_id}: {text}", "yellow"))
