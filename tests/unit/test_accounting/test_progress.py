# SPDX-License-Identifier: Apache-2.0
"""What a long ingest says while it goes on."""

from __future__ import annotations

import re
import threading
from io import StringIO

import pytest

from hami_hpc.accounting.store import progress
from hami_hpc.accounting.store.database import connect

SLOW = "SELECT sum(hash(a.range + b.range)::HUGEINT) FROM range(3000) a, range(20000) b"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def _said(out: StringIO) -> str:
    con = connect(threads=1)
    with progress.shown(con, "export: reading", out):
        con.execute(SLOW).fetchall()
    con.close()
    return out.getvalue()


def test_a_log_gets_whole_lines_with_the_percentage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOG_S", 0.01)
    lines = _said(StringIO()).splitlines()
    assert lines
    assert all(re.fullmatch(r"export: reading(, \d+ %)?", line) for line in lines), lines
    assert any(line.endswith("%") for line in lines)


def test_a_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_TERMINAL_S", 0.01)
    text = _said(Terminal())
    assert "export: reading" in text
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")


def test_what_is_over_at_once_says_nothing_and_leaves_no_thread() -> None:
    out, con = StringIO(), connect()
    with pytest.raises(ZeroDivisionError), progress.shown(con, "export", out):
        raise ZeroDivisionError
    assert out.getvalue() == ""
    assert "progress" not in [thread.name for thread in threading.enumerate()]
