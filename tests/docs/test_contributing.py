# SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md: the table of where things are added has its rows, and what it names exists."""

from __future__ import annotations

import re

import pytest
from documents import ROOT, text_of

TABLE = text_of("CONTRIBUTING.md").partition("## Where do I add X")[2]
ROWS = dict(re.findall(r"^\| (.+?) \| (.+) \|$", TABLE, re.MULTILINE))
ASKED = (
    *("request key", "isolation backend", "hook", "driver version", "GPU model", "prices", "document", "form"),
    *("metric", "Slurm version", "setting", "check"),
)


@pytest.mark.parametrize("what", ASKED)
def test_there_is_a_row_for(what: str) -> None:
    assert [row for row in ROWS if what in row]


def paths() -> list[str]:
    names = [path.rstrip("*") for files in ROWS.values() for path in re.findall(r"`([\w./-]+/[\w./*-]+)`", files)]
    return sorted(set(names))


def test_every_path_in_the_table_exists() -> None:
    assert len(paths()) > 40
    assert [path for path in paths() if not (ROOT / path).exists()] == []


def test_the_names_within_files_that_the_table_gives_exist() -> None:
    for path, name in (
        ("hami_hpc/contract/contract.toml", "[request.keys."),
        ("hami_hpc/contract/contract.toml", "[request.modes]"),
        ("hami_hpc/contract/contract.toml", "[layout.usage]"),
        ("hami_hpc/contract/contract.toml", "[spool"),
        ("hami_hpc/core/request_keys.py", "KEYS: "),
        ("hami_hpc/core/request.py", "class Request:"),
        ("hami_hpc/core/site.py", "class Site"),
        ("pyproject.toml", "\nbuild = ["),
    ):
        assert name in (ROOT / path).read_text(encoding="utf-8"), f"{path}: {name}"


def test_the_makefile_has_every_tier_that_is_named() -> None:
    targets = set(re.findall(r"make (test[a-z-]*)", text_of("CONTRIBUTING.md")))
    made = set(re.findall(r"^(test[a-z-]*):", text_of("Makefile"), re.MULTILINE))
    assert targets <= made
