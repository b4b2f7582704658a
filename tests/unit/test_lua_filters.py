# SPDX-License-Identifier: Apache-2.0
"""Runs tests/unit/lua/filters.lua, the filters' own tests, in every Lua that Slurm may be linked with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from lua_process import INTERPRETERS, MODULES, require

FOLDER = Path(__file__).with_name("lua")
SUBJECTS = (
    *("submit", "partitions", "policy", "mig", "slo", "modify", "client"),
    *("site", "long", "classes", "places", "types", "fixed"),
)
FILES = tuple(f"filters_{subject}.lua" for subject in SUBJECTS)


def names_in(file: str) -> list[str]:
    return re.findall(r'^test\("([^"]+)"', (FOLDER / file).read_text(encoding="ascii"), re.MULTILINE)


def run_tests(interpreter: str, file: str, scratch: Path) -> dict[str, str]:
    """Runs one file's tests; maps each test's name to what went wrong ('' if nothing)."""
    done = subprocess.run(
        [require(interpreter), str(FOLDER / "filters.lua"), str(FOLDER / file), str(MODULES), str(scratch)],
        env={"PATH": "/usr/bin:/bin", "SLURM_CONF": str(scratch / "slurm.conf")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [re.fullmatch(r"(ok|failed) (.+?)(?:: (.*))?", line) for line in done.stdout.splitlines()]
    assert all(lines), done.stdout
    return {match[2]: "" if match[1] == "ok" else match[3] for match in lines if match}


@pytest.fixture(scope="module", params=INTERPRETERS)
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    scratch = tmp_path_factory.mktemp("filters")
    return {file: run_tests(request.param, file, scratch) for file in FILES}


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES for name in names_in(file)])
def test_filters(outcomes: dict[str, dict[str, str]], file: str, name: str) -> None:
    assert outcomes[file][name] == ""
