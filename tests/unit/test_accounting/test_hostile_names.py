# SPDX-License-Identifier: Apache-2.0
"""Names that users chose, on the terminal of who makes bills."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_hpc.accounting.formats.tables import safe_cell

from .samples import Job, run, write_export, write_settings


def test_a_name_with_commands_for_the_terminal_is_shown_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(tmp_path)
    (tmp_path / "rates.toml").write_text(
        'version = 1\ntimezone = "UTC"\n[[rates]]\nmodel = "h200"\nper_gpu_hour = 2.5\n', encoding="utf-8"
    )
    name = "red\x1b[31m\u202e\x9b2J"
    export = write_export(tmp_path / "export", [Job(account=name, user=name, suspended=60)])
    assert run(tmp_path, "ingest", "--new-cluster", "--input", str(export)).exit_code == 0
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_: False)  # as on a terminal
    for words in (["bill"], ["bill", "--by", "account"], ["invoice", "--draft"], ["invoice"], ["ledger"]):
        result = run(tmp_path, *words, *([] if words == ["ledger"] else ["--month", "2026-09"]))
        assert result.exit_code == 0, result.output
        assert "red?[31m??2J" in result.output
        assert not {"\x1b", "\u202e", "\x9b"} & set(result.output), words


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff20"])
def test_no_cell_of_a_csv_begins_as_a_formula_does(first: str) -> None:
    assert safe_cell(f"{first}A1") == f"'{first}A1"
    assert safe_cell(f"a{first}") == f"a{first}"
