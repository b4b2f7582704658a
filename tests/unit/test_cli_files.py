# SPDX-License-Identifier: Apache-2.0
"""The files of accounting's commands: whole or not there, and an older one is lost to no full disk."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.cli.accounting_files import write_file


def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    invoice = tmp_path / "2026-10-001.html"
    invoice.write_text("issued")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, before[1]))
    try:
        with pytest.raises(AccountingError, match=r"2026-10-001\.html cannot be written: File too large"):
            write_file(invoice, b"written again")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == [invoice.name]
    assert invoice.read_text() == "issued"


def test_a_file_that_is_written_again_keeps_its_permissions_and_its_links(tmp_path: Path) -> None:
    invoice, link = tmp_path / "invoice.html", tmp_path / "latest.html"
    invoice.write_text("old")
    invoice.chmod(0o640)
    link.symlink_to(invoice.name)
    write_file(link, b"new")
    assert link.is_symlink()
    assert invoice.read_text() == "new"
    assert invoice.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    write_file(tmp_path / "invoice.html", b"new")
    mask = os.umask(0o077)
    os.umask(mask)
    assert (tmp_path / "invoice.html").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_nobody_who_can_write_the_directory_has_root_write_elsewhere(tmp_path: Path) -> None:
    """By a link with the name of the file, or one that a file for a moment could have."""
    victim, report = tmp_path / "victim", tmp_path / "drop" / "report.html"
    report.parent.mkdir()
    report.parent.chmod(0o1777)
    victim.write_text("root's")
    for link in (report, report.with_name(f".{report.name}.new.{os.getpid()}")):
        link.symlink_to(victim)
        os.chown(link, 65534, -1, follow_symlinks=False)
        write_file(report, b"new")
        assert victim.read_text() == "root's"
        assert (report.is_symlink(), report.read_bytes(), report.stat().st_mode & 0o022) == (False, b"new", 0)


def test_a_link_to_itself_becomes_the_file(tmp_path: Path) -> None:
    loop = tmp_path / "loop.html"
    loop.symlink_to(loop.name)
    write_file(loop, b"new")
    assert loop.read_bytes() == b"new"


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, b"report")
    reader.join()
    assert read == [b"report"]
    assert pipe.is_fifo()
