# SPDX-License-Identifier: Apache-2.0
"""What the accounting commands have in common: the site's settings, rates, zone and store."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
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
from hami_hpc.accounting.times import zone
from hami_hpc.shell.config import load_settings, settings_path

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Context:
    """What every command needs: the site, its rates (None without a rates.toml), its zone, and its store. root_named:
    --store says where that is."""

    gpus: ClusterGpus
    prices: Rates | None
    tz: ZoneInfo
    root: Path
    root_named: bool


def site_options(command: _F) -> _F:
    """--rates, --store and --timezone, with the site's settings behind them."""
    for option in (
        click.option("--timezone", help="zone of dates and of --input's local times; default: rates.toml's, else UTC"),
        click.option("--store", "root", type=click.Path(path_type=Path), help="default: accounting/ in the state_dir"),
        click.option(
            "--rates", "rates_path", type=click.Path(path_type=Path), help="default: /etc/hami-hpc/rates.toml"
        ),
    ):
        command = option(command)
    return cast(_F, _worded(command))


def _worded(command: _F) -> Callable[..., Any]:
    """The command, with a disk that is full or a file that may not be read told in a line."""

    @functools.wraps(command)
    def worded(*words: Any, **options: Any) -> Any:
        try:
            return command(*words, **options)
        except BrokenPipeError:  # the reader (head, less) has seen enough: click's to handle
            raise
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise AccountingError(f"{where}{error.strerror or error}") from error
        except (duckdb.IOException, duckdb.OutOfMemoryException) as error:
            cause = re.search(r'"exception_message":"(.*?)","errno"', str(error))
            said = cause[1].replace('\\"', "'") if cause else str(error).splitlines()[0]
            raise AccountingError(
                f"{said}; nothing of this step was kept: make room (or see --store), and run this again"
            ) from error

    return worded


def context(rates_path: Path | None, root: Path | None, timezone: str | None) -> Context:
    """Reads the settings. A rates.toml that is named must exist; the default one may be absent."""
    settings = load_settings(settings_path(os.environ))
    prices = rates_file.load_rates(rates_path) if rates_path else None
    beside = Path(settings.path).with_name("rates.toml")
    if prices is None and beside.exists():
        prices = rates_file.load_rates(beside)
    tz = zone(timezone or (prices.timezone if prices else "UTC"))
    site = cluster_gpus_of(settings, prices)
    return Context(site, prices, tz, root or Path(settings.state_dir) / "accounting", root is not None)
