# SPDX-License-Identifier: Apache-2.0
"""Paths in SPANK's line in plugstack.conf and in PAM's line for sshd."""

from __future__ import annotations

from pathlib import Path

from hami_hpc import installed, places
from hami_hpc.contract import constants as c


def spank_paths(config: str) -> str:
    """Returns the arguments that say where stages and settings are, each after a blank; "" for an installation with its
    settings in the usual place. The plugin was built to know both, and one of an older hami_hpc refuses arguments that
    it does not know."""
    stages = "" if installed.STAGE_DIR else f" stages={places.STAGES}"
    return stages + ("" if config == (installed.CONFIG or c.FILE_CONFIG) else f" config={config}")


def pam_module(interposer: str) -> str:
    """Returns the path of PAM's module, which is installed beside the interposer."""
    return f"{Path(interposer).parent}/pam_hami_hpc.so"
