# SPDX-License-Identifier: Apache-2.0
"""Returns a node to service that a stage drained because the run directory was full, once there is room again."""

from __future__ import annotations

import os
from contextlib import suppress

from hami_hpc.contract import constants as c
from hami_hpc.errors import NodeError
from hami_hpc.node import events, no_room
from hami_hpc.node.config import Settings
from hami_hpc.slurm import commands

TEXT = "the run directory has room again; node {} returns to service"


def is_due(settings: Settings) -> bool:
    """Returns whether a stage failed by a full run directory that has room now."""
    return os.path.lexists(no_room.path_of(settings.run_dir)) and not no_room.is_full(settings.run_dir)


def settle(settings: Settings, node: str, source: str) -> str:
    """Returns the node to service if it is due and drained for that reason. A drain by anybody else, or with a reason
    that somebody has changed, stays. Returns what was done, "" for nothing. Raises NodeError when slurmctld does not
    answer; the next call tries again."""
    if not is_due(settings):
        return ""
    with suppress(FileNotFoundError):
        os.unlink(no_room.path_of(settings.run_dir))  # first: a prolog that fails from now on notes it again
    try:
        shown = commands.show_node(node)
        state, _, reason = shown.partition(f" Reason={c.ERROR_PREFIX}")
        if "DRAIN" not in state.partition(" State=")[2].partition(" ")[0] or no_room.RETURNS not in reason:
            return ""
        commands.resume_node(node)
    except NodeError:
        no_room.write(settings.run_dir)
        raise
    text = TEXT.format(node)
    events.write(settings.state_dir, source, "node_resume", text=text)
    return text
