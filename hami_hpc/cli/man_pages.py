# SPDX-License-Identifier: Apache-2.0
"""Writes man pages from the objects that print --help: hami-hpc.1 and one page per command."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import click

from hami_hpc.cli import COMMANDS, INSTALL_ACCOUNTING, exit_codes, main
from hami_hpc.cli.options import Command
from hami_hpc.contract import constants as contract
from hami_hpc.node.config import settings_path

Row = tuple[str, str]

CONFIG = settings_path({})
FILES: tuple[Row, ...] = (
    (CONFIG, "The site's settings. Every setting is in docs/architecture.md of hami_hpc's source."),
    (str(Path(CONFIG).with_name("rates.toml")), "Prices, quotas and credits, for the commands of accounting."),
    (str(Path(CONFIG).with_name("finance.toml")), "Recipients, tax and terms of invoices, and what energy costs."),
    (contract.FILE_RUN_DIR, "The ledger and the directories of running jobs: [paths] run_dir of the settings."),
    (
        contract.FILE_STATE_DIR,
        "Usage records of ended jobs, and the accounting store in accounting/: [paths] state_dir of the settings.",
    ),
)
ENVIRONMENT: tuple[Row, ...] = (
    ("HAMI_HPC_CONFIG", f"The settings' file, instead of {CONFIG}. --config overrides it."),
    ("HAMI_HPC_NODE", "This node's name in Slurm, on a host that is several nodes. --node overrides it."),
    ("SLURM_CONF", "slurm.conf, as for Slurm's own commands."),
    ("NO_COLOR", "When not empty: no colour on a terminal. There is none in pipes and files in any case."),
)


def pages(version: str, names: Iterable[str]) -> dict[str, str]:
    """Returns file name -> page, for hami-hpc and the named commands. Raises AssertionError for an unknown command."""
    context = click.Context(main, info_name="hami-hpc", **main.context_settings)
    made = {"hami-hpc.1": _main_page(version, context)}
    for name in names:
        command = main.get_command(context, name)
        assert isinstance(command, Command)
        made[f"hami-hpc-{name}.1"] = _command_page(version, name, command, context)
    return made


def _main_page(version: str, context: click.Context) -> str:
    commands = [(f"hami-hpc {name}", f"{summary} See hami-hpc-{name}(1).") for name, (_, summary) in COMMANDS.items()]
    lines = [
        *_head("hami-hpc", version, "pieces of a GPU for Slurm"),
        *_section("SYNOPSIS", [_bold("hami-hpc") + " COMMAND [OPTIONS] [ARGUMENTS]"]),
        *_section("DESCRIPTION", _paragraphs(main.help or "")),
        *_section("COMMANDS", _definitions(commands)),
        *_text(f"The commands from ingest on are those of accounting, which need: {INSTALL_ACCOUNTING}"),
        *_section("OPTIONS", _definitions(_options(main, context))),
        *_ending([(str(int(code)), meaning) for code, meaning in exit_codes.meanings()]),
        *_section("SEE ALSO", [", ".join(f"{_bold('hami-hpc-' + name)}(1)" for name in COMMANDS)]),
    ]
    return "\n".join(lines) + "\n"


def _command_page(version: str, name: str, command: Command, context: click.Context) -> str:
    own = click.Context(command, info_name=name, parent=context)
    summary = COMMANDS[name][1]
    usage = " ".join(command.collect_usage_pieces(own))
    lines = [
        *_head(f"hami-hpc-{name}", version, summary.removesuffix(".")),
        *_section("SYNOPSIS", [_bold(f"hami-hpc {name}") + " " + _escape(usage)]),
        *_section("DESCRIPTION", _paragraphs(command.help or "")),
        *_section("OPTIONS", _definitions(_options(command, own))),
        *_ending([(str(int(code)), meaning) for code, meaning in command.statuses]),
        *_section("SEE ALSO", [f"{_bold('hami-hpc')}(1)"]),
    ]
    return "\n".join(lines) + "\n"


def _options(command: click.Command, context: click.Context) -> list[Row]:
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    return [record for record in records if record is not None]


def _ending(statuses: list[Row]) -> list[str]:
    return [
        *_section("EXIT STATUS", _definitions(statuses)),
        *_section("FILES", _definitions(FILES)),
        *_section("ENVIRONMENT", _definitions(ENVIRONMENT)),
    ]


def _head(name: str, version: str, summary: str) -> list[str]:
    title = f'.TH "{_escape(name.upper())}" "1" "" "hami-hpc {_escape(version)}" "hami_hpc"'
    # No hyphenation and no justified lines: names and options stay as they are written.
    return [title, ".nh", ".ad l", *_section("NAME", [f"{_escape(name)} \\- {_escape(summary)}"])]


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return [f".SH {title}", *lines]


def _definitions(rows: Iterable[Row]) -> list[str]:
    return [line for term, text in rows for line in (".TP", _bold(term), _escape(" ".join(text.split())))]


def _paragraphs(text: str) -> list[str]:
    """Returns the lines of a help text's paragraphs, which click separates by empty lines too."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    lines = [line for part in parts for line in (".PP", _escape(part))]
    return lines[1:]


def _text(text: str) -> list[str]:
    return [".PP", _escape(text)]


def _bold(text: str) -> str:
    return f"\\fB{_escape(text)}\\fR"


def _escape(text: str) -> str:
    """Escapes text for roff: no line becomes a request, and hyphens and quotes can be copied into a shell."""
    for plain, written in (("\\", "\\e"), ("-", "\\-"), ("'", "\\(aq"), ("^", "\\(ha"), ("~", "\\(ti"), ("`", "\\(ga")):
        text = text.replace(plain, written)
    return f"\\&{text}" if text.startswith((".", "\\(aq")) else text
