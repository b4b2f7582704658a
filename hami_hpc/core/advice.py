# SPDX-License-Identifier: Apache-2.0
"""Which way of having a part of a GPU fits a workload: sharing, MPS, MIG, or the whole GPU; and why. Pure.

The rules say what each way gives and takes; the first of ORDER that fits, by trust and by kind of work, is advised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hami_hpc.core import advice_figures as figures
from hami_hpc.core.advice_figures import Figure
from hami_hpc.core.mig_layout import Profile, covering, whole

SHARE, MPS, MIG, WHOLE = "share", "mps", "mig", "whole"
WAYS = (SHARE, MPS, MIG, WHOLE)
FULL = 100  # percent


class Trust(StrEnum):
    """Whose programs are on the GPU beside this one."""

    OWN = "own"  # the same user's
    GROUP = "group"  # users who wish each other no harm
    NONE = "none"  # users who may attack, stop or measure each other's work


class Kernels(StrEnum):
    """What the program has the GPU do."""

    BUSY = "busy"  # always has work that fills its share
    SHORT = "short"  # launches short pieces and waits for them, or leaves gaps
    SMALL = "small"  # its kernels leave multiprocessors idle


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to run: `count` programs at a time, each with this memory and share. `latency`: it answers requests."""

    mem_mib: int
    cores: int
    count: int = 1
    latency: bool = False
    trust: Trust = Trust.GROUP
    kernels: Kernels = Kernels.BUSY


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU model, and what the site offers on it. `profiles` are those of MIG that requests may have, with the whole
    GPU's; () where the site has none. `modes` are the site's. `shared_mib` is what the slices of a GPU may have without
    taking turns, and what one of them may have at most."""

    model: str
    total_mib: int
    shared_mib: int
    modes: tuple[str, ...]
    profiles: tuple[Profile, ...] = ()


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that speaks for a way (`is_for`), against it, or neither (None); with its figure, if there is one."""

    topic: str
    text: str
    is_for: bool | None = None
    figure: Figure | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """One way: whether the workload can have it there (`fits`), whether the site offers it, how many fit a GPU."""

    way: str
    fits: bool
    is_offered: bool
    per_gpu: int
    request: str
    reasons: tuple[Reason, ...]


def advise(work: Workload, hardware: Hardware) -> tuple[Advice, ...]:
    """Returns all ways, the advised one first. It is one that fits and, if any such is, one that the site offers.

    Raises ValueError when the workload does not fit a whole GPU.
    """
    if work.mem_mib > hardware.total_mib:
        raise ValueError(f"a {hardware.model} has {hardware.total_mib} MiB")
    found = {advice.way: advice for advice in (_share(work, hardware), _mps(work, hardware), _mig(work, hardware))}
    found[WHOLE] = _whole(work)
    ranks = {way: rank for rank, way in enumerate(order(work))}
    return tuple(sorted(found.values(), key=lambda one: (not one.fits, not one.is_offered, ranks[one.way])))


def order(work: Workload) -> tuple[str, ...]:
    """Returns the ways in the order in which they suit the workload, where all fit."""
    if work.mem_mib and work.cores >= FULL:
        return (WHOLE, SHARE, MIG, MPS)
    if work.trust is Trust.NONE:
        return (MIG, WHOLE, SHARE, MPS)
    if work.latency:
        return (SHARE, MIG, WHOLE, MPS) if work.trust is Trust.GROUP else (SHARE, MPS, MIG, WHOLE)
    if work.trust is Trust.OWN and work.count > 1 and work.kernels is Kernels.SMALL:
        return (MPS, SHARE, MIG, WHOLE)
    return (SHARE, MIG, MPS, WHOLE) if work.trust is Trust.GROUP else (SHARE, MPS, MIG, WHOLE)


def _share(work: Workload, hardware: Hardware) -> Advice:
    reasons = [
        Reason("granularity", "memory by the MiB, time by 1 %", True, figures.SHARE_CAP),
        Reason("overhead", "tenants divide the time with little loss", True, figures.SHARE_TOTAL),
        Reason("overhead", "launches cost what they cost without", None, figures.SHARE_LAUNCH),
        Reason("fault", "a program's fault ends its own processes; an error of the GPU itself concerns all on it"),
    ]
    if work.kernels is Kernels.SHORT:
        reasons.append(Reason("latency", "short pieces get their share", True, figures.SHARE_SHORT))
    if work.latency:
        text = "a class with latency = true comes before the others of its GPU"
        reasons.append(Reason("latency", text, True, figures.SHARE_LATENCY))
        reasons.append(Reason("latency", "for comparison: alone on the GPU", None, figures.ALONE_LATENCY))
        reasons.append(Reason("latency", "for comparison: shared as the driver does it", None, figures.STOCK_LATENCY))
    if work.trust is Trust.NONE:
        text = (
            "a library in the programs keeps users apart: it can be evaded, and others' work can be stopped or measured"
        )
        reasons.append(Reason("isolation", f"{text} (docs/security.md)", False))
    else:
        reasons.append(Reason("isolation", "against mistakes; with the agent also against programs that evade it"))
    per_gpu = _per_gpu(work, hardware.shared_mib)
    return _advice(SHARE, work.trust is not Trust.NONE, work, hardware, per_gpu, reasons)


def _mps(work: Workload, hardware: Hardware) -> Advice:
    is_own = work.trust is Trust.OWN
    reasons = [
        Reason("granularity", "memory by the MiB, multiprocessors by 1 %: kernels run side by side", None),
        Reason("fault", "a fault of one program ends all programs of the MPS server", False, figures.MPS_FAULT),
        Reason("start", "a daemon for each user and GPU", None, figures.MPS_START),
    ]
    if is_own:
        reasons.append(Reason("overhead", "programs of one user run side by side", True, figures.MPS_ONE_USER))
    else:
        text = "each user has a server, and servers share the GPU by timeslices"
        reasons.append(Reason("overhead", text, False, figures.MPS_TWO_USERS))
    if work.latency:
        text = "nothing holds others back for it: a latency-critical class has no effect in this mode"
        reasons.append(Reason("latency", text, False, figures.MPS_LATENCY))
        text = "kernels that fill the chip get it as others' blocks end"
        reasons.append(Reason("latency", text, False, figures.MPS_LATENCY_LONG))
    reasons.append(Reason("isolation", "of memory only, by the interposer; a user can leave MPS (docs/security.md)"))
    return _advice(MPS, is_own, work, hardware, _per_gpu(work, hardware.shared_mib), reasons)


def _mig(work: Workload, hardware: Hardware) -> Advice:
    reasons = [
        Reason("isolation", "by the hardware: memory, caches and multiprocessors of its own", True),
        Reason("fault", "a fault of one program stays in its instance", True),
        Reason("overhead", "no figure: no hardware has seen mode=mig of hami_hpc yet (docs/status.md)"),
    ]
    named = tuple(each for each in hardware.profiles if each.name)
    if not named:
        text = (
            f"the settings have no MIG profiles of {hardware.model}: `hami-hpc mig profiles` prints them on such a node"
        )
        return _advice(MIG, False, work, hardware, 0, [*reasons, Reason("granularity", text, False)])
    names = frozenset(each.name for each in named)
    profile = covering(hardware.profiles, work.mem_mib, work.cores, names)
    if profile is None:
        text = f"no profile that the site offers has {work.mem_mib} MiB and {work.cores} %: {', '.join(sorted(names))}"
        return _advice(MIG, False, work, hardware, 0, [*reasons, Reason("granularity", text, False)])
    full = whole(hardware.profiles)
    percent = FULL * profile.compute_slices // full.compute_slices if full else 0
    text = f"{profile.name} has {profile.mem_mib} MiB and {percent} %: {profile.mem_mib - work.mem_mib} MiB and "
    text += f"{max(0, percent - work.cores)} % more than asked for"
    reasons.append(Reason("granularity", text, None))
    if profile.instances_max > 1:
        reasons.append(
            Reason("start", "an instance cannot be moved, so a job may find no place", None, figures.MIG_PUT_BACK)
        )
    request = f"--gres=vgpu:{hardware.model}:mig={profile.name}"
    return _advice(MIG, True, work, hardware, profile.instances_max, reasons, request)


def _whole(work: Workload) -> Advice:
    reasons = (
        Reason("isolation", "nobody else is on the GPU", True),
        Reason("fault", "nobody else's fault reaches it", True),
        Reason("overhead", "nothing is limited, and nothing costs", True),
        Reason(
            "granularity",
            f"one program for each GPU: {max(0, FULL - work.cores)} % of the time asked for by nobody",
            None if work.cores >= FULL else False,
        ),
    )
    return Advice(WHOLE, True, True, 1, "--gres=gpu:1", reasons)


def _per_gpu(work: Workload, shared_mib: int) -> int:
    """Returns how many such programs a GPU takes."""
    return min(shared_mib // max(1, work.mem_mib), FULL // max(1, work.cores))


def _advice(
    way: str,
    fits: bool,
    work: Workload,
    hardware: Hardware,
    per_gpu: int,
    reasons: Sequence[Reason],
    request: str = "",
) -> Advice:
    request = request or f"--gres=vgpu:{hardware.model}:mem={work.mem_mib}M,cores={work.cores},mode={way}"
    is_offered = way in hardware.modes
    if not is_offered:
        reasons = (*reasons, Reason("site", f"modes of the settings does not offer {way}", False))
    return Advice(way, fits and per_gpu > 0, is_offered, per_gpu, request if fits else "", tuple(reasons))
