# SPDX-License-Identifier: Apache-2.0
"""The checks of `hami-hpc doctor` for mode=mig: the GPUs' mode, the profiles, others' instances, and the fence."""

from __future__ import annotations

from collections.abc import Iterator

from hami_hpc.core.finding import Finding, Level, finding
from hami_hpc.isolation.mig_instances import offered
from hami_hpc.node import mig_caps, mig_list
from hami_hpc.node.config import Settings
from hami_hpc.node.mig_list import ListedGpu


def check(settings: Settings) -> Iterator[Finding]:
    """Yields the findings of all checks. Raises NodeError when a check cannot be made."""
    gpus = mig_list.read(settings)
    if getattr(settings, "mig_nodes", ()):  # whole nodes are divided or not, and no job of another mode is sent there
        detail = ", ".join(f"GPU {gpu.minor}: {gpu.mode}" for gpu in gpus)
        advice = "hami-hpc mig enable or disable: mig_nodes names whole nodes"
        yield finding("MIG mode", len({gpu.mode for gpu in gpus}) == 1, f"MIG by GPU: {detail}", advice)
    else:
        yield from _modes(settings, gpus)
    for gpu in gpus:
        names = offered(settings, gpu.model)
        foreign = [one for one in gpu.instances if one.owner == mig_list.FOREIGN]
        if foreign:
            detail = f"GPU {gpu.minor}: {len(foreign)} instance(s) that hami_hpc did not make take places from jobs"
            advice = "see hami-hpc mig list; nvidia-smi mig -dci, then -dgi, removes them"
            yield Finding("MIG instances", Level.WARN, detail, advice)
        if names and gpu.profiles and not any(profile.name in names for profile in gpu.profiles):
            detail = f"GPU {gpu.minor} has none of mig_profiles: {', '.join(sorted(names))}"
            advice = f"add to mig_profiles of {', '.join(profile.name for profile in gpu.profiles)}"
            yield Finding("MIG profiles", Level.FAIL, detail, advice)
    may_open = mig_caps.modprobe_may_open(settings.driver_root)
    detail = "nvidia-modprobe makes the devices of new instances readable by all, until the prolog has them"
    yield finding(
        "MIG devices",
        not may_open,
        detail if may_open else "only the prolog makes the devices of instances",
        "options nvidia NVreg_ModifyDeviceFiles=0 in /etc/modprobe.d, then load the driver again (docs/security.md)",
        Level.WARN,
    )


def _modes(settings: Settings, gpus: tuple[ListedGpu, ...]) -> Iterator[Finding]:
    """Checks that each GPU can serve each mode that the node offers."""
    for gpu in gpus:
        advice = f"hami-hpc mig enable {gpu.minor}, or take mig out of modes in [vgpu]"
        detail = f"GPU {gpu.minor}: MIG is {gpu.mode}"
        yield finding("MIG mode", gpu.mode == "on", detail, advice)
        if gpu.mode == "on" and "share" in settings.modes:
            detail = f"GPU {gpu.minor}: MIG is on, and modes offers share, too: Slurm may give it to a job of that mode"
            yield Finding("MIG and share", Level.FAIL, detail, f"hami-hpc mig disable {gpu.minor}, or correct modes")
