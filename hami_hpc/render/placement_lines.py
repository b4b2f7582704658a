# SPDX-License-Identifier: Apache-2.0
"""What slurm.conf needs so that Slurm places jobs as [placement] of the settings says (docs/adr/073). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hami_hpc.errors import NodeError
from hami_hpc.node.placement_settings import BINPACK, SITE, SPREAD, TABLE, Placement
from hami_hpc.node.settings_lines import where
from hami_hpc.render.merging import Merge
from hami_hpc.slurm.commands import version_text
from hami_hpc.slurm.lines import ConfLine, Setting, pair_text

KEY, LLN = "SelectTypeParameters", "LLN"
LEAST_LOADED_NODE, LEAST_LOADED_GPU = "CR_LLN", "LL_SHARED_GRES"
LEAST_LOADED_GPU_SINCE = 23 << 16 | 2 << 8 | 4
DEFAULT = "CR_Core_Memory"  # Slurm's own without the key, from 21.08.1 on
YES = ("yes", "up", "true", "1")


def check_release(placement: Placement, version: int | None, path: str) -> None:
    """Raises NodeError, with the settings' line, for what this machine's Slurm has no means for. None: no Slurm."""
    if placement.gpus == SPREAD and version is not None and version < LEAST_LOADED_GPU_SINCE:
        raise NodeError(
            f'{where(path, TABLE, "gpus")}: gpus = "{SPREAD}" needs {LEAST_LOADED_GPU}, which Slurm has from '
            f"{version_text(LEAST_LOADED_GPU_SINCE)} on, and this is {version_text(version)}: leave gpus out, or set "
            'numa = "prefer", with which GPUs of different sockets are taken in turn'
        )


def merge_lines(
    placement: Placement,
    site: Mapping[str, Sequence[Setting]],
    lines: Sequence[ConfLine],
    partitions: Iterable[str],
    path: str,
) -> list[Merge]:
    """Returns what is left to write into slurm.conf. partitions: those of the settings. path: of slurm.conf."""
    given = site.get(KEY.lower(), ())
    items = [item for item in (given[-1].value if given else DEFAULT).split(",") if item]
    wanted = [item for item in items if placement.nodes != BINPACK or item.upper() != LEAST_LOADED_NODE]
    if placement.gpus == BINPACK:
        wanted = [item for item in wanted if item.upper() != LEAST_LOADED_GPU]
    if placement.gpus == SPREAD and LEAST_LOADED_GPU not in {item.upper() for item in wanted}:
        wanted.append(LEAST_LOADED_GPU)
    merges = []
    if wanted != items:
        pair = (pair_text(KEY, ",".join(wanted)),)
        what = f"{given[-1].where}: instead of {KEY}={given[-1].value} write:" if given else f"{path}: add the line:"
        merges.append(Merge(what, pair))
    if placement.nodes != SITE:
        is_global = LEAST_LOADED_NODE in {item.upper() for item in wanted}
        merges += _partitions(placement.nodes == SPREAD, is_global, lines, set(partitions))
    return merges


def remarks(placement: Placement, lines: Iterable[ConfLine], partitions: Iterable[str]) -> list[str]:
    """Returns for which of the settings' partitions slurm.conf has no line to write something into."""
    named = {line.get("PartitionName") for line in lines if line.kind == "partitionname"}
    return [
        f'slurm.conf has no PartitionName={name}, for which [placement] wants nodes = "{SPREAD}": write LLN=YES where '
        "it is"
        for name in partitions
        if placement.nodes == SPREAD and name not in named
    ]


def _partitions(is_spread: bool, is_global: bool, lines: Iterable[ConfLine], names: set[str]) -> list[Merge]:
    merges = []
    default = False
    for line in lines:
        if line.kind != "partitionname":
            continue
        name, own = line.get("PartitionName"), line.get(LLN)
        has = own.lower() in YES if own else default
        if name.upper() == "DEFAULT":
            default = has
        elif name in names and has != is_spread and not (is_global and is_spread):
            text = pair_text(LLN, "YES" if is_spread else "NO")
            merges.append(Merge(f"{line.where}: in PartitionName={name} write:", (text,)))
    return merges
