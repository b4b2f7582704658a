# SPDX-License-Identifier: Apache-2.0
"""The common part of the accounting commands: their shared options, their errors, and the site's settings."""

from __future__ import annotations

import gc
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import click
import duckdb

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.pricing import gpu_settings, rates_file
from hami_hpc.accounting.pricing.cluster_gpus import ClusterGpus
from hami_hpc.accounting.pricing.rates import Rates
from hami_hpc.accounting.sources import input_files, sacct, sacct_json
from hami_hpc.accounting.store import clusters, geometry_file, job_records, store_files
from hami_hpc.accounting.store.temporary import temporary_directory
from hami_hpc.accounting.times import Period, month_period, parse_instant, zone
from hami_hpc.cli.exit_codes import DONE, ExitCode
from hami_hpc.cli.options import Command, F, Failure, command, config_option, input_option, os_error_text, settings_of
from hami_hpc.errors import HamiError

_RESTORE = (
    "restore the store from a backup, or move its invoices/, register.json and payments.jsonl to an empty directory, "
    "and read the records into that: hami-hpc ingest --since FIRST_DAY --store DIRECTORY"
)


class AccountingCommand(Command):
    """A command that reports every failure in one line, also errors of DuckDB and of the disk."""

    def invoke(self, ctx: click.Context) -> Any:
        _refuse_other_bytes(ctx.params)
        with failing_with(ExitCode.FAILED), _no_collection():
            return super().invoke(ctx)


def _refuse_other_bytes(params: Mapping[str, Any]) -> None:
    """Raises Failure for a name or a store that is not UTF-8, with which DuckDB fails. Other paths may be any bytes."""
    for name, value in params.items():
        for word in value if isinstance(value, tuple) else (value,):
            text = word if isinstance(word, str) else str(word) if name == "store" else ""
            if text.encode(errors="ignore").decode() != text:
                raise wrong_usage(f"{text!r} is not in UTF-8, as all names and the path of the store must be")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Looks for no circular garbage meanwhile: a bill of 200,000 accounts has millions of objects, and looking through
    them again and again takes a quarter of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def accounting_command(name: str, *, done: str = DONE, found: str = "") -> Callable[[Callable[..., Any]], Command]:
    """Turns a function into the command ``name``, as options.command does."""
    return command(name, done=done, found=found, kind=AccountingCommand)


@contextmanager
def failing_with(code: ExitCode) -> Iterator[None]:
    """Turns errors in its block into one line on standard error and exit status ``code``: HamiError, a full disk, a
    file without read permission."""
    try:
        yield
    except BrokenPipeError:  # the reader (head, less) has closed the pipe; click handles that
        raise
    except HamiError as error:
        raise Failure(str(error), code) from error
    except OSError as error:
        raise Failure(os_error_text(error), code) from error
    except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
        if missing := re.match(r'IO Error: No files found that match the pattern "(.*)"', str(error)):
            raise Failure(f"{missing[1]} is missing; {_RESTORE}", code) from error
        cause = re.search(r'"exception_message":"(.*?)","errno"', str(error))
        said = cause[1].replace('\\"', "'") if cause else str(error).splitlines()[0]
        raise Failure(
            f"{said}; nothing of this step was kept: make room (or see --store), and run this again", code
        ) from error
    except duckdb.Error as error:
        # Of no other file: exports are CSV. The message has the file's name, but for damage within its pages.
        if not re.search("magic bytes|Parquet|TProtocol|Snappy|ZSTD", said := str(error).splitlines()[0]):
            raise
        raise Failure(f"a file of the store is damaged ({said}); {_RESTORE}", code) from error


def wrong_usage(message: str) -> click.ClickException:
    """Returns the error for a command line that makes no sense."""
    return Failure(message, ExitCode.USAGE)


# The commands that put records into the store, and so know with which sizes of slices these were made.
_FILL_THE_STORE = ("ingest", "collect-usage")


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """The values of --config, --rates, --store and --timezone."""

    config: Path | None
    rates: Path | None
    store: Path | None
    timezone: str | None

    def read(self) -> Setup:
        """Reads the settings. The file that --rates names must exist; the default rates.toml may be absent."""
        settings = settings_of(self.config)
        prices = rates_file.load_rates(self.rates) if self.rates else None
        beside = Path(settings.path).with_name("rates.toml")
        if prices is None and beside.exists():
            prices = rates_file.load_rates(beside)
        with failing_with(ExitCode.USAGE):
            tz = zone(self.timezone or (prices.timezone if prices else "UTC"))
        root = self.store or Path(settings.state_dir) / "accounting"
        remembered = geometry_file.read(root)
        undated = gpu_settings.undated(settings, prices, tz, remembered)
        context = click.get_current_context(silent=True)
        if context and context.info_name in _FILL_THE_STORE and not undated:
            context.call_on_close(partial(geometry_file.remember, root, gpu_settings.geometry_of(settings, prices, tz)))
        gpus = gpu_settings.cluster_gpus_of(settings, prices, tz, remembered)
        return Setup(gpus, prices, tz, root, self.store is not None, undated)


@dataclass(frozen=True, slots=True)
class Setup:
    """The data that every command needs: the cluster's GPUs, the site's rates (None without a rates.toml), its time
    zone, and its store. root_named: the store's path comes from --store. undated: what to do about sizes of slices
    that have changed without a date; empty if there is nothing to do."""

    gpus: ClusterGpus
    prices: Rates | None
    tz: ZoneInfo
    root: Path
    root_named: bool
    undated: str = ""

    @property
    def gaps(self) -> list[str]:
        """The notes that go with every price."""
        return [self.undated] if self.undated else []

    @property
    def usage_root(self) -> Path | None:
        """The store whose usage records go with job records that come from elsewhere: the one that --store names, if
        the rates need them."""
        needed = self.prices is not None and self.prices.needs_usage
        return self.root if needed and self.root_named else None


def site_options(command: F) -> F:
    """Adds --config, --rates, --store and --timezone, which the command gets as ``site``."""
    path = click.Path(path_type=Path)

    @wraps(command)
    def gathered(
        *words: Any, config: Path | None, rates: Path | None, store: Path | None, timezone: str | None, **options: Any
    ) -> Any:
        return command(*words, site=SiteOptions(config, rates, store, timezone), **options)

    decorated: Callable[..., Any] = gathered
    for option in (
        click.option(
            "--timezone",
            metavar="ZONE",
            help="The zone of dates and of --input's local times.  [default: that of rates.toml, else UTC]",
        ),
        click.option("--store", type=path, help="The accounting store.  [default: accounting/ in the state_dir]"),
        click.option("--rates", type=path, help="The prices.  [default: rates.toml beside the settings]"),
        config_option,
    ):
        decorated = option(decorated)
    return cast(F, decorated)


def month_option(help_text: str, **more: Any) -> Callable[[F], F]:
    """Adds --month, which the command gets as ``month``."""
    return click.option("--month", metavar="YYYY-MM", help=help_text, **more)


def clusters_option(help_text: str) -> Callable[[F], F]:
    """Adds --clusters, which the command gets as ``clusters``."""
    return click.option("--clusters", "-M", metavar="NAMES", default="", help=help_text)


def one_cluster(clusters: str) -> str:
    """Returns --clusters as one cluster's name. Exits with ExitCode.USAGE when it names several."""
    if "," in clusters or clusters == "all":
        raise wrong_usage(f"--clusters {clusters}: these records are of one cluster; give its name as sacct calls it")
    return clusters


templates_option = click.option(
    "--templates", type=click.Path(path_type=Path, exists=True, file_okay=False), help="A site's own templates."
)


def record_options(command: F) -> F:
    """Adds the options for the period and for the source of its records."""
    for option in (
        clusters_option(
            "Only these clusters: names, or all. With --input also the cluster of lines that name none.  "
            "[default: all; of sacct: this one]"
        ),
        click.option("--live", is_flag=True, help="Ask sacct now, although there is a store."),
        input_option(
            "A file of sacct --json, or of sacct -P lines with their header; - for standard input (may be repeated).",
            multiple=True,
        ),
        click.option("--end", metavar="TIME", help="The first instant no longer billed.  [default: now]"),
        click.option("--start", metavar="TIME", help="The first instant: 2026-11, 2026-11-21 or 2026-11-21T10:30."),
        month_option("A calendar month, 2026-11, instead of --start and --end."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """The values of record_options."""

    month: str | None
    start: str | None
    end: str | None
    source: tuple[Path, ...]
    live: bool
    clusters: str

    def period(self, tz: ZoneInfo) -> Period:
        """Returns the period. Exits with ExitCode.USAGE when no period, or a wrong one, is given."""
        with failing_with(ExitCode.USAGE):
            if self.month:
                if self.start or self.end:
                    raise AccountingError("give either --month or --start and --end")
                return month_period(self.month, tz)
            if not self.start:
                raise AccountingError("say which period: --month 2026-11, or --start 2026-11-01 --end 2026-11-08")
            end_s = parse_instant(self.end, tz) if self.end else int(time.time())
            return Period(parse_instant(self.start, tz), end_s)

    @contextmanager
    def records(self, setup: Setup, period: Period, also: Period | None = None) -> Iterator[job_records.JobRecords]:
        """Yields the period's records: from --input, else the store, else (no store yet, or --live) from sacct now. A
        store that --store names must exist. also: another time of which sacct is asked for the records."""
        with temporary_directory(Path(tempfile.gettempdir()), ".hami-hpc-records-") as folder:
            if self.source:
                inputs = [self._input(path, folder / str(number)) for number, path in enumerate(self.source)]
                cluster = next(iter(self.names)) if len(self.names) == 1 else ""
                records = job_records.from_exports(inputs, setup.tz, folder, cluster, setup.usage_root)
                yield job_records.of_clusters(records, self.names)
            elif self.live or not (setup.root_named or store_files.read_manifest(setup.root).generation):
                end_s = max(period.end_s, min(also.end_s, int(time.time()))) if also else period.end_s
                asked = Period(min(period.start_s, also.start_s), end_s) if also else period
                export = sacct.fetch(asked, folder / "sacct", self.clusters)
                inputs = [job_records.Input(export, "sacct", int(time.time()))]
                yield job_records.from_exports(inputs, setup.tz, folder, "", setup.usage_root)
            else:
                records = job_records.from_store(setup.root, period)
                known = clusters.of_store(setup.root, store_files.read_manifest(setup.root)) if self.names else ()
                yield job_records.of_clusters(records, self.names, known)

    @property
    def names(self) -> frozenset[str]:
        """The names in --clusters; none for all clusters."""
        return frozenset(name.strip() for name in self.clusters.split(",") if name.strip() not in ("", "all"))

    @staticmethod
    def _input(path: Path, scratch: Path) -> job_records.Input:
        made_s = input_files.made_s(path)
        scratch.mkdir()
        return job_records.Input(sacct_json.open_input(path, scratch), input_files.shown(path), made_s)
