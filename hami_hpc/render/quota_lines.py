# SPDX-License-Identifier: Apache-2.0
"""What slurm.conf needs so that Slurm counts a slice as its part of a GPU, and keeps quotas (docs/adr/071). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hami_hpc.core.quota import Quotas, billing_weights
from hami_hpc.render import qos_lines
from hami_hpc.render.merging import Merge
from hami_hpc.render.qos_lines import Site
from hami_hpc.slurm.lines import ConfLine, pair_text

WEIGHTS = "TRESBillingWeights"
# Slurm's default is 0: fair share changes no order.
FAIRSHARE_WEIGHT = 10000


def merge_lines(quotas: Quotas, site: Site, version: int, path: str) -> list[Merge]:
    """Returns what is left to write into slurm.conf for limits, guarantees and fair share."""
    # Fair share needs limits too: without, slurmctld does not count a job's time since it last looked at all jobs, each
    # PriorityCalcPeriod, so that short jobs hardly count (acct_policy.c calls priority_g_job_end only with limits).
    pairs = qos_lines.needed_pairs(quotas.guarantees, site, version, any(quota.values for quota in quotas.accounts))
    if any("fairshare" in quota.values for quota in quotas.accounts):
        pairs.append(("PriorityType", "priority/multifactor"))
        if _value(site, "PriorityWeightFairshare") in ("", "0"):
            pairs.append(("PriorityWeightFairshare", str(FAIRSHARE_WEIGHT)))
    return qos_lines.merge_pairs(pairs, site, path)


def merge_partitions(shards: Mapping[str, Sequence[int]], lines: Iterable[ConfLine]) -> list[Merge]:
    """Returns what to write into the site's lines of partitions. shards: partition -> shards of a GPU of each model."""
    merges = []
    default = ""
    for line in lines:
        if line.kind != "partitionname":
            continue
        name, own = line.get("PartitionName"), line.get(WEIGHTS)
        if name.upper() == "DEFAULT":
            default = own or default
            continue
        if not shards.get(name):
            continue
        weights = billing_weights(shards[name], own or default)
        if sorted(weights.lower().split(",")) != sorted((own or default).lower().split(",")):
            merges.append(Merge(f"{line.where}: in PartitionName={name} write:", (pair_text(WEIGHTS, weights),)))
    return merges


def remarks(quotas: Quotas, shards: Mapping[str, Sequence[int]], lines: Iterable[ConfLine], site: Site) -> list[str]:
    """Returns what Slurm counts otherwise than quotas.toml sounds."""
    found = []
    named = {line.get("PartitionName") for line in lines if line.kind == "partitionname"}
    missing = [name for name in shards if name not in named]
    if missing:
        found.append(f"slurm.conf has no PartitionName={missing[0]}, which [partitions.{missing[0]}] describes")
    others = sorted(
        {
            item.partition("=")[0]
            for line in lines
            if line.kind == "partitionname"
            for item in line.get(WEIGHTS).split(",")
            if item and not item.lower().startswith("gres/")
        }
    )
    if others and quotas.accounts and "max_tres" not in _value(site, "PriorityFlags").lower():
        found.append(
            f"{', '.join(others)} have billing weights, too, and billing is the sum: a GPU's job counts more than its "
            "part of GPUs in quotas. PriorityFlags=MAX_TRES makes it the largest of them"
        )
    mixed = [name for name, counts in shards.items() if len(set(counts)) > 1]
    if mixed:
        found.append(
            f"GPUs of partition {', '.join(mixed)} differ in size: a slice counts by its MiB, a whole GPU as one GPU "
            "whatever its model"
        )
    return found


def _value(site: Site, key: str) -> str:
    given = site.get(key.lower())
    return given[-1].value if given else ""
