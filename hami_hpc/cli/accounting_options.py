# SPDX-License-Identifier: Apache-2.0
"""What the accounting commands have in common: one spelling of each option, exit statuses, and the site's settings."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo

import click
import duckdb

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing import rates_file
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.gpu_settings import cluster_gpus_of
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.sources import sacct, sacct_json
from hami_hpc.accounting.store import job_records, store_files
from hami_hpc.accounting.times import Period, month_period, parse_instant, zone
from hami_hpc.contract import constants as contract
from hami_hpc.errors import HamiError
from hami_hpc.node.config import load_settings, settings_path

_F = TypeVar("_F", bound=Callable[..., Any])

WRONG_USAGE = 2
EXIT_STATUS = ("0  done", "1  not done; why is on standard error", "2  the command line is wrong")
# Option as it was once spelled -> what it is today.
_OLD_OPTIONS = {"--json": "--format=json", "--out": "--output"}


def note_old(old: str, new: str) -> None:
    """Tells the user of an old spelling, which goes on working, what it is called now."""
    click.echo(f"note: {old} is now called {new}", err=True)


class AccountingCommand(click.Command):
    """A command that understands the old spellings of options and words whatever fails in one line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {spelling for option in self.params for spelling in option.opts}
        return super().parse_args(ctx, [self._current(word, known) for word in args])

    def invoke(self, ctx: click.Context) -> Any:
        with failing_with(1):
            return super().invoke(ctx)

    def _current(self, word: str, known: set[str]) -> str:
        old, equals, value = word.partition("=")
        new = _OLD_OPTIONS.get(old, "")
        if not new or old in known or new.partition("=")[0] not in known:
            return word
        note_old(f"{self.name} {old}", f"{self.name} {new.replace('=', ' ')}")
        return new + equals + value


def accounting_command(name: str, exit_status: tuple[str, ...] = EXIT_STATUS) -> Callable[[_F], AccountingCommand]:
    """Makes a function the command ``name``, whose help lists its exit statuses."""
    epilog = "\n".join(("\b", "Exit status:", *(f"  {line}" for line in exit_status)))
    return click.command(name, cls=AccountingCommand, epilog=epilog)


class _WrongUsageError(click.ClickException):
    exit_code = WRONG_USAGE


def _failure(message: str, status: int) -> click.ClickException:
    kind = _WrongUsageError if status == WRONG_USAGE else click.ClickException
    return kind(message.removeprefix(contract.ERROR_PREFIX))


@contextmanager
def failing_with(status: int) -> Iterator[None]:
    """Turns what fails within into one line on standard error and exit status 1 or WRONG_USAGE: our own errors, a full
    disk, a file that may not be read."""
    try:
        yield
    except BrokenPipeError:  # the reader (head, less) has seen enough: click's to handle
        raise
    except HamiError as error:
        raise _failure(str(error), status) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise _failure(f"{where}{error.strerror or error}", status) from error
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        cause = re.search(r'"exception_message":"(.*?)","errno"', str(error))
        said = cause[1].replace('\\"', "'") if cause else str(error).splitlines()[0]
        raise _failure(
            f"{said}; nothing of this step was kept: make room (or see --store), and run this again", status
        ) from error


def wrong_usage(message: str) -> click.ClickException:
    """The error for a command line that asks for nothing that can be done."""
    return _failure(message, WRONG_USAGE)


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """--config, --rates, --store and --timezone as they were given."""

    config: Path | None
    rates: Path | None
    store: Path | None
    timezone: str | None

    def read(self) -> Setup:
        """Reads the settings. A rates.toml that is named must exist; the default one may be absent."""
        settings = load_settings(str(self.config.absolute()) if self.config else settings_path(os.environ))
        prices = rates_file.load_rates(self.rates) if self.rates else None
        beside = Path(settings.path).with_name("rates.toml")
        if prices is None and beside.exists():
            prices = rates_file.load_rates(beside)
        with failing_with(WRONG_USAGE):
            tz = zone(self.timezone or (prices.timezone if prices else "UTC"))
        root = self.store or Path(settings.state_dir) / "accounting"
        return Setup(cluster_gpus_of(settings, prices), prices, tz, root, self.store is not None)


@dataclass(frozen=True, slots=True)
class Setup:
    """What every command needs: the cluster's GPUs, the site's rates (None without a rates.toml), its zone, and its
    store. root_named: --store says where that is."""

    gpus: ClusterGpus
    prices: Rates | None
    tz: ZoneInfo
    root: Path
    root_named: bool


def site_options(command: _F) -> _F:
    """--config, --rates, --store and --timezone, which the command gets as ``site``."""
    path = click.Path(path_type=Path)
    default_config = "the settings, instead of $HAMI_HPC_CONFIG or the default"

    @wraps(command)
    def gathered(
        *words: Any, config: Path | None, rates: Path | None, store: Path | None, timezone: str | None, **options: Any
    ) -> Any:
        return command(*words, site=SiteOptions(config, rates, store, timezone), **options)

    decorated: Callable[..., Any] = gathered
    for option in (
        click.option("--timezone", help="zone of dates and of --input's local times; default: rates.toml's, else UTC"),
        click.option("--store", type=path, help="default: accounting/ in the state_dir"),
        click.option("--rates", type=path, help="default: rates.toml beside the settings"),
        click.option("--config", type=path, help=default_config),
    ):
        decorated = option(decorated)
    return cast(_F, decorated)


def format_option(*formats: str) -> Callable[[_F], _F]:
    """--format, which the command gets as ``form``."""
    help_text = "table: for people; the others for machines"
    return click.option(
        "--format", "form", type=click.Choice(formats), default=formats[0], show_default=True, help=help_text
    )


def input_option(help_text: str, **more: Any) -> Callable[[_F], _F]:
    """--input, which the command gets as ``source``."""
    return click.option("--input", "source", type=click.Path(path_type=Path), help=help_text, **more)


def output_option(help_text: str, **more: Any) -> Callable[[_F], _F]:
    """--output, which the command gets as ``output``."""
    kind = click.Path(path_type=Path, file_okay=more.pop("file_okay", True))
    return click.option("--output", "-o", type=kind, help=help_text, **more)


def clusters_option(help_text: str) -> Callable[[_F], _F]:
    """--clusters, which the command gets as ``clusters``."""
    return click.option("--clusters", "-M", default="", help=help_text)


def one_cluster(clusters: str) -> str:
    """--clusters where records need a name. Exits with WRONG_USAGE when it is several."""
    if "," in clusters or clusters == "all":
        raise wrong_usage(f"--clusters {clusters}: these records are of one cluster; give its name as sacct calls it")
    return clusters


templates_option = click.option(
    "--templates", type=click.Path(path_type=Path, exists=True, file_okay=False), help="a site's own templates"
)


def record_options(command: _F) -> _F:
    """The period, and where its records come from."""
    for option in (
        clusters_option("clusters to ask sacct for, as its -M: names, or all; default: this one"),
        click.option("--live", is_flag=True, help="ask sacct now, although there is a store"),
        input_option("a file of sacct -P lines with its header, or of sacct --json"),
        click.option("--end", help="first instant no longer billed; default: now"),
        click.option("--start", help="first instant: 2026-11, 2026-11-21 or 2026-11-21T10:30"),
        click.option("--month", help="a calendar month, 2026-11, instead of --start and --end"),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What record_options were given."""

    month: str | None
    start: str | None
    end: str | None
    source: Path | None
    live: bool
    clusters: str

    def period(self, tz: ZoneInfo) -> Period:
        """The period. Exits with WRONG_USAGE when there is none."""
        with failing_with(WRONG_USAGE):
            if self.month:
                if self.start or self.end:
                    raise AccountingError("give either --month or --start and --end")
                return month_period(self.month, tz)
            if not self.start:
                raise AccountingError("say which period: --month 2026-11, or --start 2026-11-01 --end 2026-11-08")
            end_s = parse_instant(self.end, tz) if self.end else int(time.time())
            return Period(parse_instant(self.start, tz), end_s)

    @contextmanager
    def records(self, setup: Setup, period: Period) -> Iterator[job_records.JobRecords]:
        """The period's records: from --input, else the store, else (no store yet, or --live) from sacct now. A store
        that is named must be there."""
        with tempfile.TemporaryDirectory(prefix="hami-hpc-") as directory:
            scratch = Path(directory)
            if self.source:
                export = sacct_json.open_input(self.source, scratch)
                yield job_records.from_export(export, setup.tz, int(self.source.stat().st_mtime), scratch)
            elif self.live or not (setup.root_named or store_files.read_manifest(setup.root).generation):
                export = sacct.fetch(period, scratch / "sacct", self.clusters)
                yield job_records.from_export(export, setup.tz, int(time.time()), scratch)
            else:
                yield job_records.from_store(setup.root, period)
