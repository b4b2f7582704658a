# SPDX-License-Identifier: Apache-2.0
"""The files of accounting's commands: whole or not there, and an older one is lost to no full disk."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from hami_hpc.accounting.errors import AccountingError
from hami_hpc.cli.accounting_files import write_file


def test_a_disk_that_fills_up_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoice = tmp_path / "2026-10-001.html"
    invoice.write_text("issued")
    write = Path.write_bytes

    def fills_up(path: Path, content: bytes) -> int:
        write(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", fills_up)
    with pytest.raises(AccountingError, match=r"2026-10-001\.html cannot be written: No space left on device"):
        write_file(invoice, b"written again")
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
