# SPDX-License-Identifier: Apache-2.0
"""The accounting commands. ``commands`` maps their names; the group loads this module only when one is used."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import click

from hami_hpc.accounting import bill as bills
from hami_hpc.accounting import intake, render, sacct, usage
from hami_hpc.accounting.site import GpuModel, Site
from hami_hpc.accounting.times import Period, parse_instant, split_days, split_months, zone
from hami_hpc.errors import HamiError
from hami_hpc.shell.config import load_settings, settings_path


@click.command()
@click.option("--start", required=True, help="first instant: 2026-11, 2026-11-21 or 2026-11-21T10:30")
@click.option("--end", required=True, help="first instant no longer billed")
@click.option("--by", default="account,user", show_default=True, help="comma list: " + ", ".join(bills.DIMENSIONS))
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@click.option("--input", "source", type=click.Path(path_type=Path), help="a file of sacct -P lines, not the database")
@click.option("--timezone", default="UTC", show_default=True, help="zone of dates, and of the local times in --input")
def bill(start: str, end: str, by: str, form: str, source: Path | None, timezone: str) -> None:
    """GPU-hours held in a period, by account and user (or whatever --by names)."""
    try:
        click.echo(_bill(start, end, tuple(by.split(",")), form, source, timezone), nl=False)
    except HamiError as error:
        raise click.ClickException(str(error)) from error


def _bill(start: str, end: str, by: tuple[str, ...], form: str, source: Path | None, timezone: str) -> str:
    tz = zone(timezone)
    period = Period(parse_instant(start, tz), parse_instant(end, tz))
    if "day" in by:
        segments = [usage.Segment(bucket.label, bucket.period) for bucket in split_days(period, tz)]
    else:
        segments = [usage.Segment(bucket.label, bucket.period) for bucket in split_months(period, tz)]
    with tempfile.TemporaryDirectory(prefix="hami-hpc-") as scratch:
        con = intake.connect(spill=Path(scratch))
        export = sacct.open_export(source) if source else sacct.fetch(period, Path(scratch) / "sacct")
        made_s = int(source.stat().st_mtime if source else time.time())
        intake.load(con, export, tz, "", made_s, Path(scratch))
        made = bills.make_bill(usage.summarise(con, "records", _site(), segments), segments, by)
        rejects = [f"{count} lines, {intake.REASONS[reason]}" for reason, count in con.execute(
            "SELECT reason, count(*) FROM rejects GROUP BY 1 ORDER BY 1").fetchall()]  # fmt: skip
    if form == "csv":
        return render.bill_csv(made)
    return render.bill_json(made, tz, rejects) if form == "json" else render.bill_table(made, tz, rejects)


def _site() -> Site:
    settings = load_settings(settings_path(os.environ))
    models = {name: GpuModel(name, total_mib) for name, total_mib in settings.gpu_models.items()}
    return Site(models, settings.partitions, settings.shard_mib, settings.memory_scaling)


commands: Mapping[str, click.Command] = {"bill": bill}
