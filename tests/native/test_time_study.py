# SPDX-License-Identifier: Apache-2.0
"""The study of how a GPU's time is shared: a short version makes its claims true, and the same bytes each time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conformance import ROOT

PAGE = ROOT / "docs/time-study.md"


def study(folder: Path, seed: int, seconds: float) -> dict[str, bytes]:
    """Writes the page for so much simulated time. Returns its files; claims hold where it is 2 s at least."""
    folder.mkdir()
    page = folder / "page.md"
    page.write_bytes(PAGE.read_bytes())
    program = str(ROOT / "benchmarks/time_study.py")
    command = [sys.executable, program, "--seconds", str(seconds), "--seed", str(seed), "--page", str(page)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0 or (seconds < 2 and "Traceback" not in result.stderr), result.stdout + result.stderr
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_claims_of_the_study_hold(tmp_path: Path) -> None:
    study(tmp_path / "page", 1, 2)


def test_a_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again = study(tmp_path / "first", 1, 0.6), study(tmp_path / "again", 1, 0.6)
    assert first == again
    assert study(tmp_path / "other", 2, 0.6) != first


def test_the_page_has_every_table_and_chart_of_the_study() -> None:
    text = PAGE.read_text(encoding="utf-8")
    parts = ("time", "fit", "order", "restart")
    source = "".join((ROOT / f"benchmarks/{part}_study.py").read_text(encoding="utf-8") for part in parts)
    names = re.findall(r'\.table\(\s*"([\w-]+)"', source)
    assert len(names) == 16
    for name in names:
        assert re.search(rf"<!-- {name} -->\n\|.*?\n<!-- end -->", text, re.DOTALL), name
    for chart in re.findall(r'study\.charts\["([\w.-]+)"\]', source):
        assert f"]({chart})" in text
        assert (PAGE.parent / chart).read_text(encoding="utf-8").startswith("<svg ")
