# SPDX-License-Identifier: Apache-2.0
"""Checks of what else fences a slice's memory: the driver's own limits by cgroup, whether they exist here and for which
slices they stand; and that GPUs do not use memory that nobody counts."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.doctor.facts import Facts
from hami_hpc.errors import NodeError
from hami_hpc.node import memory_limits, nvml, sluids
from hami_hpc.node.agent_settings import read_agent
from hami_hpc.stages import common

WHAT = "driver's memory limits"
PAGEABLE = "memory from malloc()"
ADDRESSING = {1: "HMM", 2: "ATS"}  # nvmlDeviceAddressingModeType_t
LISTED_MAX = 8


def check_driver_limits(facts: Facts) -> Iterator[Finding]:
    """Says whether the driver limits each slice's memory, besides the interposer. Nothing needs that it does."""
    settings = facts.settings
    module = nvml.open_nvml()
    try:
        has = memory_limits.are_known(module)
        try:
            if has and module.nvmlDeviceGetCount():
                memory_limits.read(module, module.nvmlDeviceGetHandleByIndex(0), memory_limits.ROOT)
        except module.NVMLError as error:
            has = False
            if error.value != module.NVML_ERROR_FUNCTION_NOT_FOUND:
                advice = "they need cgroup version 2, and its controller dmem or the driver's own accounting"
                yield Finding(WHAT, Level.WARN, f"the driver has them, and NVML says: {error}", advice)
                return
        if not has:
            yield Finding(WHAT, Level.OK, "none: a driver from r615 on has them; slices are limited by the interposer")
        elif settings.agent is None or not read_agent(settings).driver_limits:
            advice = f"add [agent] to {settings.path}, without driver_limits = false: the agent sets them"
            yield Finding(WHAT, Level.WARN, "the driver has them, and nothing sets them for slices", advice)
        else:
            yield _slices(facts, module)
    except module.NVMLError as error:
        raise NodeError(f"NVML failed while reading memory limits ({error}). Check with nvidia-smi") from error
    finally:
        module.nvmlShutdown()


def _slices(facts: Facts, module: ModuleType) -> Finding:
    """Compares what the driver has for each running slice with its grant."""
    slack_bytes = read_agent(facts.settings).limits.memory_slack_bytes
    ledger = common.read_ledger(facts.settings)
    try:
        grants = [grant for grant in ledger.grants() if grant.mode not in memory_limits.WITHOUT]
    finally:
        ledger.close()
    without, names = [], sluids.jobs_by_sluid(facts.settings.run_dir)
    for grant in grants:
        path = memory_limits.cgroup_of_job(facts.node, grant.job_id, memory_limits.ROOT, names)
        wanted = (grant.mem_mib << 20) + slack_bytes
        handle = module.nvmlDeviceGetHandleByUUID(grant.gpu_uuid) if path else None
        if path is None or memory_limits.read(module, handle, path).hard != wanted:
            without.append(str(grant.job_id))
    detail = f"stand for {len(grants) - len(without)} of {len(grants)} slice(s)"
    if without:
        detail += f", not for job {', '.join(without[:LISTED_MAX])}{' ...' if len(without) > LISTED_MAX else ''}"
    advice = "journalctl -u hami-hpc-agent says why; jobs that have just begun have them at the agent's next look"
    return finding(WHAT, not without, detail, advice, Level.WARN)


def check_pageable_memory(facts: Facts) -> Iterator[Finding]:
    """Warns where memory from malloc() can move to a GPU (NVML's addressing mode HMM or ATS): the resource manager is
    not asked for it, so no slice is charged. Says nothing where the driver or nvidia-ml-py does not tell."""
    if all(mode == "mig" for mode in facts.settings.modes):
        return
    module = nvml.open_nvml()
    try:
        handles = [module.nvmlDeviceGetHandleByIndex(i) for i in range(module.nvmlDeviceGetCount())]
        moving = {ADDRESSING[mode] for mode in map(module.nvmlDeviceGetAddressingMode, handles) if mode in ADDRESSING}
    except (AttributeError, module.NVMLError):
        return
    finally:
        module.nvmlShutdown()
    names = " and ".join(sorted(moving))
    detail = f"can move to the GPU, where no slice counts it ({names})" if moving else "is not used by GPUs"
    advice = "no setting turns ATS off; docs/security.md says what it means"
    if "HMM" in moving:
        advice = "options nvidia-uvm uvm_disable_hmm=1 in a file of /etc/modprobe.d, and a reboot, turn HMM off"
    yield finding(PAGEABLE, not moving, detail, advice, Level.WARN)


CHECKS = ((WHAT, check_driver_limits), (PAGEABLE, check_pageable_memory))
