# SPDX-License-Identifier: Apache-2.0
"""Accounting on the Slurm at hand, whatever its version: slurmdbd's own answers, as text and as JSON.

`make test-matrix` runs this in a chroot of each Debian release; pytest collects it only where it is named.
The private cluster is one without simulated GPUs or plugins of ours: accounting reads records, and needs neither.

HAMI_HPC_RECORD=DIRECTORY keeps what sacct printed there (tests/unit/test_accounting/records).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounting_week import CLUSTER, seconds
from billed_week import EXPECTED, RATES, TOTAL, WEEK, in_json, lines, read, records_in_json
from harness import accounts, config, daemons, services
from harness import cluster as private_cluster
from harness.layout import CHECKOUT, Layout, open_or_create

# The same tests as on the machine's own Slurm.
from test_billing import (  # noqa: F401
    hami,
    test_a_week_in_slurmdbd_comes_to_the_hours_and_cents_worked_out_by_hand,
    test_an_invoice_of_the_month_is_numbered_once_and_replaced_when_a_record_changes,
    test_the_week_agrees_with_sreport_but_for_differences_that_have_a_reason,
    week,
)

from hami_hpc.accounting.sources import sacct
from hami_hpc.accounting.times import Period

ROOT = CHECKOUT / "build" / "versions"
# From a week before to a day after, so that runs across its edges are there.
AROUND = Period(seconds("2026-10-12T00:00+00:00"), seconds("2026-10-27T00:00+00:00"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Layout]:
    """munged, MariaDB and slurmdbd of this machine's or chroot's Slurm."""
    private_cluster.remove(ROOT)
    layout = open_or_create(ROOT)
    config.write(layout.site_config, config.site_toml(layout))
    config.write(layout.slurm_conf, config.slurm_conf(layout))
    config.write(layout.etc / "slurm-hami-hpc.conf", "# nothing of hami_hpc\n")
    config.write(layout.etc / "slurmdbd.conf", config.slurmdbd_conf(layout), 0o600)
    services.make_database(layout)
    try:
        for name in ("munged", "mariadbd", "slurmdbd"):
            daemons.start(layout, services.describe(layout, name))
        accounts.make_accounts(layout)
        yield layout
    finally:
        private_cluster.remove(ROOT)


def test_json_and_text_of_the_week_are_the_same_records_and_bill(week: Layout, tmp_path: Path) -> None:  # noqa: F811
    text, document = tmp_path / "week.txt", tmp_path / "week.json"
    sacct_into(week, sacct.command(AROUND, CLUSTER), text)
    sacct_into(
        week, ["sacct", "-M", CLUSTER, *JSON, "-S", f"uts{AROUND.start_s}", "-E", f"uts{AROUND.end_s}"], document
    )
    keep(text, document)
    assert read(document, tmp_path) == records_in_json(*read(text, tmp_path))
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    words = ("--start", WEEK[0], "--end", WEEK[1], "--format", "json", "--rates", str(tmp_path / "rates.toml"))
    for path in (text, document):
        bill = json.loads(hami(week, "bill", "--input", str(path), *words))
        expected = EXPECTED if path == text else in_json(EXPECTED)
        assert (lines(bill), bill["total"], len(bill["rejected"])) == (expected, TOTAL, 2)


JSON = ("-a", "-D", "--json")


def sacct_into(layout: Layout, command: list[str], target: Path) -> None:
    """What a call of sacct prints, into a file."""
    # 22.05 hands --json its own times as text, and does not understand them in another form than its own.
    form = {} if "--json" in command else {"SLURM_TIME_FORMAT": "%s"}
    environment = {**services.clean_environment(layout), **form, "TZ": "UTC"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    target.write_text(done.stdout, encoding="utf-8")


def keep(*paths: Path) -> None:
    """Puts recorded files where HAMI_HPC_RECORD says."""
    if folder := os.environ.get("HAMI_HPC_RECORD"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path in paths:
            (Path(folder) / path.name).write_bytes(path.read_bytes())
