# SPDX-License-Identifier: Apache-2.0
"""Accounting's commands where Slurm's commands fail or print nothing, and with names that are no text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hami_hpc.accounting.store import store_files

from .samples import HOUR, Job, export_text
from .test_commands import _run, filled, site

__all__ = ["filled", "site"]  # fixtures


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 1", "{name} failed (1): it said nothing. Is slurmdbd up?"),
        ("echo one >&2; printf 'no \\351\\n' >&2; exit 2", "{name} failed (2): no \ufffd. Is slurmdbd up?"),
        ("kill -9 $$", "{name} failed (-9): it said nothing. Is slurmdbd up?"),
    ],
)
@pytest.mark.parametrize(("name", "command"), [("sacct", "bill --live"), ("sreport", "check-bill")])
def test_a_command_of_slurms_that_failed_is_named_with_what_to_do(
    site: Path, filled: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, name: str, command: str, body: str, said: str
) -> None:
    (site / name).write_text(f"#!/bin/sh\n{body}\n")
    (site / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(site))
    result = _run(*command.split(), "--month", "2026-09", *filled)
    assert (result.exit_code, result.stderr) == (1, f"Error: {said.format(name=name)}\n")


@pytest.mark.parametrize(
    "words",
    [
        *("bill --month 2026-09 --account X", "efficiency X", "efficiency --user X", "balance X", "ingest -M X"),
        "ledger --store X",
    ],
)
def test_a_name_or_store_that_is_not_utf_8_is_a_wrong_command_line(filled: tuple[str, Path], words: str) -> None:
    result = _run(words.split()[0], *filled, *words.replace("X", "caf\udce9").split()[1:])
    said = "Error: 'caf\\udce9' is not in UTF-8, as all names and the path of the store must be\n"
    assert (result.exit_code, result.stderr) == (2, said)


def test_a_sacct_that_printed_nothing_is_named_and_not_a_file_of_before(
    site: Path, filled: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (site / "sacct").write_text("#!/bin/sh\n")
    (site / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(site))
    result = _run("bill", "--live", "--month", "2026-09", *filled)
    assert (result.exit_code, result.stderr.startswith("Error: what sacct printed has no column JobIDRaw")) == (1, True)


def test_what_sacct_printed_and_was_cut_off_is_not_taken_for_all(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sacct does not notice that its output does not fit on the disk, and ends with 0. What it has not written would
    not be asked for again after two days."""
    now = int(time.time())
    text = export_text([Job(number, now - 2 * HOUR, now - 2 * HOUR, now - HOUR) for number in range(1, 30)])
    monkeypatch.setenv("PATH", f"{site}:/bin")
    store = ("--store", str(site / "cut"))
    for printed, status in ((text[: len(text) // 2], 1), (text, 0)):
        (site / "printed").write_text(printed)
        (site / "sacct").write_text(f"#!/bin/sh\ncat {site}/printed\n")
        (site / "sacct").chmod(0o755)
        result = _run("ingest", "--since", "2026-01-01", "--window-days", "366", *store)
        assert result.exit_code == status
        if status:
            assert result.stderr.startswith("Error: what sacct printed ends within a line, so records are missing")
            assert not store_files.read_manifest(site / "cut").read_until_s
    assert sum(file.rows for file in store_files.read_manifest(site / "cut").files) == 29
