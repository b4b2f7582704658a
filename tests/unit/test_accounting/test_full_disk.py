# SPDX-License-Identifier: Apache-2.0
"""A disk that has no room stays as it was: what a writer could not finish does not fill it for the next one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.accounting.store import store_files, synced_files

from .samples import HOUR, Job, run, write_export, write_settings

START = 1_790_000_000  # in September 2026
RATES = 'version = 1\ntimezone = "UTC"\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 2.5\n'


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """Settings, and a store on a file system of 400 KiB with the jobs of 300 accounts."""
    write_settings(tmp_path)
    (tmp_path / "rates.toml").write_text(RATES, encoding="utf-8")
    store = tmp_path / "store"
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", store], check=True)
    try:
        jobs = [
            Job(job_id=number, start=START, end=START + HOUR, account=f"a{number}", user=f"u{number}")
            for number in range(300)
        ]
        export = write_export(tmp_path / "export", jobs)
        assert run(tmp_path, "ingest", "--new-cluster", "--input", str(export)).exit_code == 0
        yield tmp_path
    finally:
        subprocess.run(["umount", store], check=True)


def _files(store: Path) -> dict[str, int]:
    return {str(path.relative_to(store)): path.stat().st_size for path in store.rglob("*") if path.is_file()}


def test_invoices_that_do_not_fit_leave_the_disk_as_it_was_and_are_issued_when_they_do(site: Path) -> None:
    store = site / "store"
    before = _files(store)
    result = run(site, "invoice", "--month", "2026-09")
    assert result.exit_code == 1
    assert ".register.json cannot be written (No space left on device): make room, and run this again" in result.output
    assert _files(store) == before
    subprocess.run(["mount", "-o", "remount,size=8m", store], check=True)
    assert run(site, "invoice", "--month", "2026-09").exit_code == 0
    assert len(list((store / "invoices").iterdir())) == 300


@pytest.mark.parametrize("room_kib", range(8, 64, 8))
def test_records_that_do_not_fit_leave_the_disk_as_it_was(site: Path, room_kib: int) -> None:
    store = site / "store"
    state = os.statvfs(store)
    (store / "filler").write_bytes(bytes(state.f_bavail * state.f_frsize - (room_kib << 10)))
    before = _files(store)
    jobs = [
        Job(job_id=number, start=START, end=START + HOUR + number * 7919 % 86_400, user=f"u{number * 31_337 % 8191}")
        for number in range(1000, 9000)
    ]
    result = run(site, "ingest", "--input", str(write_export(site / "export", jobs)))
    assert result.exit_code == 1
    assert "No space left on device" in result.output
    assert _files(store) == before


def _fail(store: Path) -> None:
    with store_files.locked(store):
        (store / "jobs" / "g000009.parquet").write_bytes(b"half")
        raise AccountingError("wrong")


def test_a_writer_that_fails_removes_what_no_manifest_has(site: Path) -> None:
    store = site / "store"
    before = _files(store)
    with pytest.raises(AccountingError, match="wrong"):
        _fail(store)
    assert _files(store) == before


def test_without_a_manifest_a_writer_that_fails_removes_nothing(site: Path) -> None:
    store = site / "store"
    (store / "manifest.json").unlink()
    before = _files(store)
    with pytest.raises(AccountingError, match="wrong"):
        _fail(store)
    assert _files(store) == {**before, "jobs/g000009.parquet": 4}


def test_a_file_that_does_not_fit_is_named_and_removed(site: Path) -> None:
    path = site / "store" / "large"
    with pytest.raises(OSError, match="No space left on device") as raised:
        synced_files.write_new(path, "x" * (1 << 20), synced=True)
    assert raised.value.filename == str(path)
    assert not path.exists()
