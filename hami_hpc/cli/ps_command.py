# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc ps`: one line for each job, and each process without a slice, on this node's GPUs."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import click

from hami_hpc.cli import colours
from hami_hpc.cli.gpu_view import View, look
from hami_hpc.cli.options import command, config_option, format_option, settings_of
from hami_hpc.core.gpu_rows import recent_faults
from hami_hpc.core.records import MIB
from hami_hpc.core.tables import table

HEAD_TEXT = "GPU|JOB|PROCESSES|USER|CLASS|CORES %|BUSY %|GRANTED MIB|USED MIB|PEAK MIB|FINDINGS"
HEAD = tuple(HEAD_TEXT.split("|"))
RIGHT = (0, 1, 2, 5, 6, 7, 8, 9)


def _json(view: View) -> dict[str, object]:
    return {
        "source": view.source,
        "seconds_old": view.seconds_old,
        "note": view.note,
        "gpus": [gpu._asdict() for gpu in view.state.gpus] if view.state else [],
        "rows": [asdict(row) for row in view.rows],
    }


@command("ps")
@format_option("table", "json")
@config_option
def ps(form: str, config: Path | None) -> None:
    """The jobs and processes on this node's GPUs, with what each was granted and what it uses.

    Root, and the group that may read the agent's state, see everything that the agent sees. Other users see their own
    vGPU jobs on this node.
    """
    view = look(settings_of(config).run_dir)
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
    click.echo(colours.table_head(table(HEAD, cells, right=RIGHT)))
    for gpu, second in recent_faults(view.state) if view.state else ():
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        click.echo(colours.coloured(f"GPU {gpu.minor} reported at {moment}: {gpu.last_fault}", "red"))
    if view.note:
        click.echo(view.note, err=True)
