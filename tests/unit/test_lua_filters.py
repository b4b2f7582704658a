# SPDX-License-Identifier: Apache-2.0
"""Runs tests/unit/lua/filters.lua, the filters' own tests, in every Lua that Slurm may be linked with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from lua_process import INTERPRETERS, MODULES, require

SCRIPT = Path(__file__).with_name("lua") / "filters.lua"
NAMES = re.findall(r'^test\("([^"]+)"', SCRIPT.read_text(encoding="ascii"), re.MULTILINE)


@pytest.fixture(scope="module", params=INTERPRETERS)
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Maps each test's name to what went wrong ('' if nothing)."""
    scratch = tmp_path_factory.mktemp("filters")
    environment = {"PATH": "/usr/bin:/bin", "SLURM_CONF": str(scratch / "slurm.conf")}
    done = subprocess.run(
        [require(request.param), str(SCRIPT), str(MODULES), str(scratch)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [re.fullmatch(r"(ok|failed) (.+?)(?:: (.*))?", line) for line in done.stdout.splitlines()]
    assert all(lines), done.stdout
    return {match[2]: "" if match[1] == "ok" else match[3] for match in lines if match}


@pytest.mark.parametrize("name", NAMES)
def test_filters(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name] == ""
