# SPDX-License-Identifier: Apache-2.0
"""Starts a module of stages as a process of its own, which outlives the prolog or epilog that starts it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping

from hami_hpc.core.contexts import suppress
from hami_hpc.node import drain
from hami_hpc.node.config import Settings
from hami_hpc.slurm import placeholders

_CODE = (
    "import sys; sys.path[:] = sys.argv[1].split(':'); import importlib; "
    "sys.exit(importlib.import_module(sys.argv[2]).main(sys.argv[3:]))"
)


def start(module: str, settings: Settings, environment: Mapping[str, str], wait_s: float) -> None:
    """Runs the module's `main` with the settings' path. Waits until it writes a byte on standard output or ends, but at
    most `wait_s`. Never fails."""
    program = drain.find_scontrol()
    env = placeholders.environment(environment, program.rpartition("/")[0] if program else "")
    env["SLURMD_NODENAME"] = environment.get("SLURMD_NODENAME", "")
    python = (sys.executable, "-I", "-S", "-X", "utf8", "-c", _CODE)
    command = (*python, ":".join(sys.path), module, "--config", settings.path)
    with suppress(OSError):
        reader, writer = os.pipe()
        with suppress(OSError):
            subprocess.Popen(
                command, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        os.close(writer)
        select.select([reader], [], [], wait_s)
        os.close(reader)
