# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc events`: what happened on this node."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hami_hpc.cli import colours
from hami_hpc.cli.options import Command, JobNumber, command, config_option, format_option, settings_of
from hami_hpc.core.event_kinds import KINDS
from hami_hpc.core.tables import table
from hami_hpc.errors import NodeError
from hami_hpc.node import events as event_file
from hami_hpc.node.config import Settings
from hami_hpc.node.event_reader import EventReader

FOLLOW_S = 0.5
HEAD = ("TIME", "KIND", "SOURCE", "JOB", "GPU", "EVENT")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events to show. `since_ns` 0, no kinds and job 0 leave nothing out."""

    since_ns: int
    kinds: tuple[str, ...]
    job: int

    def fits(self, event: dict[str, Any]) -> bool:
        return (
            event["time_unix_ns"] >= self.since_ns
            and (not self.kinds or event["kind"] in self.kinds)
            and (not self.job or event.get("job_id") == self.job)
        )


class EventsCommand(Command):
    """The command, whose help lists the kinds."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_dl([(name, kind.doc) for name, kind in KINDS.items()])
        super().format_epilog(ctx, formatter)


def seconds(text: str) -> int:
    """Returns the seconds of 90s, 30m, 1h or 7d. Raises UsageError for other text."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if match is None:
        raise click.UsageError(f"--since {text} is not understood; allowed is a number with s, m, h or d. Example: 1h")
    return int(match[1]) * _UNITS[match[2]]


def read(settings: Settings, wanted: Wanted, follow: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields text and content of the wanted events, oldest first; with `follow` for ever. Raises NodeError when this
    user may not read them."""
    reader = EventReader(settings.state_dir)
    while True:
        try:
            lines = reader.read()
        except PermissionError as error:
            raise NodeError(f"{event_file.path_of(settings.state_dir)}: {_whom_to_ask(settings)}") from error
        for line in lines:
            if line.event is not None and wanted.fits(line.event):
                yield line.text, line.event
        if not lines:
            if not follow:
                return
            time.sleep(FOLLOW_S)


def _whom_to_ask(settings: Settings) -> str:
    group = (settings.agent or {}).get("group")
    if isinstance(group, str) and group:
        return f"only root and the group {group} can read it; ask an administrator of this node to take you into it"
    return "only root can read it; ask an administrator of this node, who can name a group in [agent] of the settings"


def _cells(event: dict[str, Any]) -> tuple[str, ...]:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time_unix_ns"] / 1e9))
    action = event.get("action")
    text = f"{event.get('text', '')}{f' [{action}]' if action else ''}"
    words = (event["kind"], event.get("source", ""), event.get("job_id") or "", event.get("gpu_uuid", ""), text)
    return (moment, *("".join(ch if ch.isprintable() else "?" for ch in str(word)) for word in words))


@command("events", kind=EventsCommand)
@click.option("--since", metavar="TIME", help="Only the last 90s, 30m, 1h or 7d.  [default: all that is kept]")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(tuple(KINDS)), metavar="KIND", help="Only this kind.")
@click.option("--job", type=JobNumber(1), default=None, help="Only events of this job.")
@click.option("--follow", "-f", is_flag=True, help="Go on with the events to come, until interrupted.")
@format_option("table", "json", help_text="Table: for people; json: the lines as they were written.")
@config_option
def events(
    since: str | None, kinds: tuple[str, ...], job: int | None, follow: bool, form: str, config: Path | None
) -> None:
    """What happened on this node: grants and their ends, refusals, what the agent found and did, GPUs and nodes taken
    out of service, errors of GPUs.

    Root, and the group that [agent] of the settings names, can read it.
    """
    since_ns = time.time_ns() - seconds(since) * 10**9 if since else 0
    found = read(settings_of(config), Wanted(since_ns, kinds, job or 0), follow)
    if form == "table" and not follow:
        click.echo(colours.table_head(table(HEAD, [_cells(event) for _, event in found], right=(3,))))
        return
    try:
        for text, event in found:
            line = "  ".join(cell for cell in _cells(event) if cell) if form == "table" else text
            click.echo(line if line.isprintable() else json.dumps(event))
    except KeyboardInterrupt:
        if not follow:
            raise
