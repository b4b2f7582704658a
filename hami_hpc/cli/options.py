# SPDX-License-Identifier: Apache-2.0
"""The common part of all commands: one spelling of each option, the old spellings, exit statuses and errors."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from hami_hpc.cli import colours
from hami_hpc.cli.exit_codes import DONE, ExitCode, meanings
from hami_hpc.contract import constants as contract
from hami_hpc.node.config import Settings, load_settings, settings_path

F = TypeVar("F", bound=Callable[..., Any])

# The old spelling of an option -> the present one.
_OLD_OPTIONS = {"--json": "--format=json", "--out": "--output"}


class Failure(click.ClickException):
    """An error that ends the command with one line on standard error."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message.removeprefix(contract.ERROR_PREFIX))
        self.exit_code = code  # type: ignore[misc]  # click has one for the class; here each error has its own

    def show(self, file: IO[Any] | None = None) -> None:
        colours.show_error(self.format_message())


class WrongUsageError(click.UsageError):
    """click's error about a wrong command line, shown like every other error."""

    def show(self, file: IO[Any] | None = None) -> None:
        if self.ctx is not None:
            click.echo(f"{self.ctx.get_usage()}\nTry '{self.ctx.command_path} --help' for help.\n", err=True)
        colours.show_error(self.format_message())


class Seconds(click.FloatRange):
    """A time of a range. NaN is below, above and in no range, and no wait for it ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail(f"{value} is not a number of seconds", param, ctx) if math.isnan(number) else number


class JobNumber(click.IntRange):
    """The number of a job. int() would take 4711_3, a task of an array, for job 47113."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).isdecimal():
            advice = "squeue -O JobArrayID,JobID shows the number of each task of an array"
            self.fail(f"{value!r} is no job number such as 4711; {advice}", param, ctx)
        return super().convert(value, param, ctx)


def os_error_text(error: OSError) -> str:
    """Returns an operating system's error in one line: the file, and what is wrong with it."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def note_old(old: str, new: str) -> None:
    """Prints the present name of an old spelling, which still works."""
    click.echo(f"note: {old} is now called {new}", err=True)


class Command(click.Command):
    """A command that accepts the old spellings of options, and whose help ends with its exit statuses."""

    statuses: list[tuple[ExitCode, str]]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {spelling for option in self.params for spelling in option.opts}
        return super().parse_args(ctx, [self._current(word, known) for word in args])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        format_statuses(self.statuses, formatter)

    def _current(self, word: str, known: set[str]) -> str:
        old, equals, value = word.partition("=")
        new = _OLD_OPTIONS.get(old, "")
        if not new or old in known or new.partition("=")[0] not in known:
            return word
        note_old(f"{self.name} {old}", f"{self.name} {new.replace('=', ' ')}")
        return new + equals + value


def format_statuses(statuses: list[tuple[ExitCode, str]], formatter: click.HelpFormatter) -> None:
    """Writes the part of a help text that lists exit statuses."""
    with formatter.section("Exit status"):
        formatter.write_dl([(str(int(code)), meaning) for code, meaning in statuses])


def command(
    name: str, *, done: str = DONE, found: str = "", kind: type[Command] = Command
) -> Callable[[Callable[..., Any]], Command]:
    """Turns a function into the command `name`. `found` is the meaning of its exit status FOUND, if it has one."""

    def decorate(function: Callable[..., Any]) -> Command:
        made = click.command(name, cls=kind)(function)
        made.statuses = meanings(done, found)
        return made

    return decorate


def format_option(*formats: str, help_text: str = "Table: for people; the others: for machines.") -> Callable[[F], F]:
    """Adds --format, which the command gets as `form`."""
    return click.option(
        "--format", "form", type=click.Choice(formats), default=formats[0], show_default=True, help=help_text
    )


def input_option(help_text: str, **more: Any) -> Callable[[F], F]:
    """Adds --input, which the command gets as `source`."""
    return click.option("--input", "source", type=click.Path(path_type=Path), help=help_text, **more)


def output_option(help_text: str, **more: Any) -> Callable[[F], F]:
    """Adds --output, which the command gets as `output`."""
    kind = click.Path(path_type=Path, file_okay=more.pop("file_okay", True))
    return click.option("--output", "-o", type=kind, help=help_text, **more)


def node_option(help_text: str, **more: Any) -> Callable[[F], F]:
    """Adds --node, which the command gets as `node`."""
    return click.option("--node", metavar="NAME", help=help_text, **more)


this_node_option = node_option(
    "This node's name in Slurm.  [default: $HAMI_HPC_NODE, else asked of slurm.conf]", envvar="HAMI_HPC_NODE"
)

config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The settings.  [default: $HAMI_HPC_CONFIG, else {settings_path({})}]",
)


def config_path(config: Path | None) -> str:
    """Returns the settings file's path: from --config, else from the environment, else the default."""
    return str(config.absolute()) if config else settings_path(os.environ)


def settings_of(config: Path | None) -> Settings:
    """Reads the settings. Raises HamiError when they cannot be read or are wrong."""
    return load_settings(config_path(config))
