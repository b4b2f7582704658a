# SPDX-License-Identifier: Apache-2.0
"""Where SPANK's line in plugstack.conf says that the stages and the settings are."""

from __future__ import annotations

from hami_hpc import installed, places
from hami_hpc.contract import constants as c


def spank_paths(config: str) -> str:
    """Returns these arguments, each after a blank; "" for an installation with its settings in the usual place. The
    plugin was built to know both, and one of an older hami_hpc refuses arguments that it does not know."""
    stages = "" if installed.STAGE_DIR else f" stages={places.STAGES}"
    return stages + ("" if config == (installed.CONFIG or c.FILE_CONFIG) else f" config={config}")
