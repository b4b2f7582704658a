# SPDX-License-Identifier: Apache-2.0
"""What ps and top show, and to whom: the agent's state, else the run directory's jobs of the user who asks."""

from __future__ import annotations

import os
import pwd
import time
from dataclasses import dataclass

from hami_hpc.core import gpu_rows
from hami_hpc.core.agent_state import AgentState
from hami_hpc.core.gpu_rows import Row
from hami_hpc.errors import NodeError
from hami_hpc.node import agent_file, turn_notes
from hami_hpc.node.boot import boot_id
from hami_hpc.node.running_job import is_beyond, read_all_running


@dataclass(frozen=True, slots=True)
class View:
    """One look. `state` is None where the agent was not asked; `note` then says why in one line."""

    state: AgentState | None
    seconds_old: float
    rows: tuple[Row, ...]
    note: str

    @property
    def source(self) -> str:
        return "agent" if self.state is not None else "run directory"


def user_name(uid: int) -> str:
    """Returns a user's name, or the number for a user whom this node does not know."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
    return "".join(character if character.isprintable() else "?" for character in name)


def look(run_dir: str, has_turns: bool = False) -> View:
    """Returns what the user who runs this may see. Never more of others' jobs than squeue shows them: nothing but sums,
    unless the agent's state file is readable for them."""
    uid = os.geteuid()
    try:
        state = agent_file.read(run_dir, boot_id())
        why = "the agent (hami-hpc agent) does not run on this node"
    except NodeError:
        state, why = None, "the agent's view of all jobs is for root and the group of [agent]"
    if state is not None:
        seconds_old = agent_file.seconds_old(state)
        note = ""
        if gpu_rows.is_stale(state, seconds_old):
            note = (
                f"the agent last looked {seconds_old:.0f} s ago: it is stopped or stuck, and this is what it saw then"
            )
        return View(state, seconds_old, tuple(gpu_rows.of_state(state, user_name)), note)
    now_ns = time.time_ns()
    running = read_all_running(run_dir, uid, now_ns)
    shared = [grant for grant, _usage in running if has_turns and grant.mode == "share"]
    standings = {grant.job_id: turn_notes.standing_of(run_dir, grant) for grant in shared}
    beyond = {grant.job_id for grant, _usage in running if grant.latency and is_beyond(run_dir, grant)}
    rows = gpu_rows.of_usage(running, now_ns, user_name, standings, beyond)
    whose = "the vGPU jobs" if uid == 0 else "your own vGPU jobs"
    note = f"{why}: shown are {whose} here, as they count themselves; busy is since each began"
    return View(None, 0.0, tuple(rows), note)
