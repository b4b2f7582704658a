# SPDX-License-Identifier: Apache-2.0
"""Runs promtool, of the machine or of build/promtool, where scripts/setup unpacks it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def promtool(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Returns the ended process; its output is standard output and error together."""
    program = shutil.which("promtool") or shutil.which("promtool", path=ROOT / "build/promtool")
    if program is None:
        pytest.fail("promtool is missing: run scripts/setup test")
    return subprocess.run(
        [program, *arguments], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


def run_rule_tests(folder: Path, rules: str, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Runs `promtool test rules` on a rules file's text, with a point of each series per minute."""
    (folder / "rules.yml").write_text(rules, encoding="utf-8")
    table = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yml").write_text(json.dumps(table), encoding="utf-8")  # JSON is YAML
    return promtool("test", "rules", str(folder / "tests.yml"))
