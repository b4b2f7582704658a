# SPDX-License-Identifier: Apache-2.0
"""Runs each test that is marked `own_process` in a pytest of its own.

These tests fork hundreds of times, and a fork costs what its parent is large: 16 ms of CPU time from a worker that has
collected all of tests/, 6 from a pytest that has collected one file.
Their files are in memory: they make and remove them some hundred thousand times.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from harness.mounting import folder_in_memory
from harness.run_directory import IN_MEMORY

VARIABLE = "HAMI_HPC_OWN_PROCESS"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs the marked test by its node id, and fails where that one did not pass. The test's fixtures have been made
    here too, and go unused."""
    if pyfuncitem.get_closest_marker("own_process") is None or VARIABLE in os.environ:
        return None
    left_out = (IN_MEMORY, "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid]
    with folder_in_memory("o-") as folder:
        given = {VARIABLE: "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(folder)}
        done = subprocess.run(
            command,
            cwd=pyfuncitem.config.rootpath,
            env=environment | given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode != 0 or "1 passed" not in done.stdout:
        pytest.fail(done.stdout, pytrace=False)
    return True
