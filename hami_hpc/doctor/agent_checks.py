# SPDX-License-Identifier: Apache-2.0
"""Checks that somebody watches this node's GPUs from outside the jobs' processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hami_hpc.core.agent_state import OK
from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.core.inventory import make_inventory
from hami_hpc.core.sizes import is_oversold, sold_mib
from hami_hpc.doctor.facts import Facts
from hami_hpc.node import agent_file, boot, nvml, turn_notes
from hami_hpc.node.agent_settings import read_agent

SILENT_PERIODS = 10
TURNS_SILENT_S = 60.0  # it may wait for 30 s for the ledger


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
        yield Finding("agent", Level.FAIL, f"has not looked in this boot{_waits(facts)}", advice)
        return
    age_s = agent_file.seconds_old(state)
    actions = ", ".join(f"{kind.value}: {action.value}" for kind, action in own.actions.items())
    is_alive = age_s <= SILENT_PERIODS * own.period_ms / 1000
    detail = (
        f"pid {state.pid}, {len(state.jobs)} slice(s); {actions}"
        if is_alive
        else f"silent for {age_s:.0f} s{_waits(facts)}"
    )
    yield finding("agent", is_alive, detail, advice)
    if (
        is_alive
        and is_oversold(settings.memory_scaling)
        and turn_notes.seconds_silent(settings.run_dir) > TURNS_SILENT_S
    ):
        detail = "does not decide whose turn it is: it began before memory_scaling was above 1, or NVML hangs"
        yield Finding("agent, turns", Level.FAIL, detail, "systemctl restart hami-hpc-agent")
    if is_alive and not state.gpus:
        yield Finding("agent", Level.FAIL, "sees no GPU", f"nvidia-smi; {advice}")
    for gpu in state.gpus if is_alive else ():
        if gpu.state != OK:
            advice = "see dmesg (Xid) and nvidia-smi; drain the node, then reset the GPU or reboot"
            yield Finding(f"agent, GPU {gpu.minor}", Level.FAIL, f"{gpu.state}: {gpu.detail}", advice)


def _waits(facts: Facts) -> str:
    return "; jobs wait for their turn until it does" if is_oversold(facts.settings.memory_scaling) else ""


def check_host_memory(facts: Facts) -> Iterator[Finding]:
    """Warns where the host cannot hold what jobs have to move off GPUs whose memory is oversold."""
    settings = facts.settings
    if not is_oversold(settings.memory_scaling):
        return
    gpus = make_inventory(nvml.read_devices(), settings.gpu_models)
    moved_mib = sum(sold_mib(gpu.total_mib, settings.memory_scaling) - gpu.total_mib for gpu in gpus)
    host_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    detail = f"{host_mib} MiB; up to {moved_mib} MiB of GPU memory are on the host while jobs wait for their turn"
    advice = f"jobs that find no room stay on the GPU: lower memory_scaling in {settings.path}, or add memory"
    yield finding("host memory", host_mib > moved_mib, detail, advice, Level.WARN)


CHECKS = (("agent", check_agent), ("host memory", check_host_memory))
