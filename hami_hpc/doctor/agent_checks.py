# SPDX-License-Identifier: Apache-2.0
"""Checks that somebody watches this node's GPUs from outside the jobs' processes."""

from __future__ import annotations

from collections.abc import Iterator

from hami_hpc.core.agent_state import OK
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.doctor.facts import Facts
from hami_hpc.node import agent_file, boot
from hami_hpc.node.agent_settings import read_agent

SILENT_PERIODS = 10


def check_agent(facts: Facts) -> Iterator[Finding]:
    """Warns of settings without [agent], as nobody finds who evades the interposer; with it, the agent must look."""
    settings = facts.settings
    own = read_agent(settings)
    if settings.agent is None:
        detail = "none: nobody finds programs that evade their limits, and usage is what jobs count themselves"
        advice = f"add a line [agent] to {settings.path}, then: systemctl enable --now hami-hpc-agent (docs/agent.md)"
        yield Finding("agent", Level.WARN, detail, advice)
        return
    advice = "systemctl status hami-hpc-agent; journalctl -u hami-hpc-agent"
    state = agent_file.read(settings.run_dir, boot.boot_id())
    if state is None:
        yield Finding("agent", Level.FAIL, "has not looked in this boot", advice)
        return
    age_s = agent_file.seconds_old(state)
    actions = ", ".join(f"{kind.value}: {action.value}" for kind, action in own.actions.items())
    is_alive = age_s <= SILENT_PERIODS * own.period_ms / 1000
    detail = f"pid {state.pid}, {len(state.jobs)} slice(s); {actions}" if is_alive else f"silent for {age_s:.0f} s"
    yield finding("agent", is_alive, detail, advice)
    if is_alive and not state.gpus:
        yield Finding("agent", Level.FAIL, "sees no GPU", f"nvidia-smi; {advice}")
    for gpu in state.gpus if is_alive else ():
        if gpu.state != OK:
            advice = "see dmesg (Xid) and nvidia-smi; drain the node, then reset the GPU or reboot"
            yield Finding(f"agent, GPU {gpu.minor}", Level.FAIL, f"{gpu.state}: {gpu.detail}", advice)


CHECKS = (("agent", check_agent),)
