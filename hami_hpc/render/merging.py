# SPDX-License-Identifier: Apache-2.0
"""What hami_hpc needs of slurm.conf and gres.conf beside what a site has there already. Pure.

A key that the site has stays the site's: hami_hpc's fragment leaves it out, since Slurm would take the latest of two,
and the line that serves both is for the administrator to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hami_hpc.contract import constants as c
from hami_hpc.slurm.lines import ConfLine, Given, names_node, split_list

# Keys that hold a list, and what separates its items.
LISTS = {
    "GresTypes": ",",
    "JobSubmitPlugins": ",",
    "CliFilterPlugins": ",",
    "PrologFlags": ",",
    "AccountingStorageTRES": ",",
    "PluginDir": ":",
}
# Flags of PrologFlags that set another one as well (prolog_str2flags in Slurm).
IMPLIES_ALLOC = ("alloc", "contain", "x11")
GRES_NAMES = ("gpu", c.GRES_SHARD, c.GRES_CLASS, c.GRES_MEM, c.GRES_CORES)


@dataclass(frozen=True, slots=True)
class Merge:
    """One thing for the administrator to write: a sentence that ends with a colon, and the exact lines."""

    what: str
    lines: tuple[str, ...]


def merge_keys(wanted: Mapping[str, str], site: Mapping[str, list[Given]]) -> tuple[dict[str, str], list[Merge]]:
    """(what the fragment sets, what is to be merged by hand) for keys other than Prolog and Epilog."""
    ours: dict[str, str] = {}
    merges: list[Merge] = []
    for key, value in wanted.items():
        given = site.get(key.lower())
        if not given:
            ours[key] = value
            continue
        latest = given[-1]
        both = _union(latest.value, value, LISTS[key], key) if key in LISTS else value
        if both.lower() != latest.value.lower():
            merges.append(Merge(f"{latest.where}: instead of {key}={latest.value} write:", (f"{key}={both}",)))
    return ours, merges


def _union(site: str, wanted: str, separator: str, key: str) -> str:
    items = [item.strip() for item in site.split(separator) if item.strip()]
    there = {item.lower() for item in items}
    for item in wanted.split(separator):
        if item.lower() in there or (key == "PrologFlags" and item == "Alloc" and there & set(IMPLIES_ALLOC)):
            continue
        items.append(item)
    return separator.join(items)


def merge_stage(key: str, ours: str, given: Given, conf_dir: str) -> Merge:
    """How the site's own Prolog or Epilog and ours both run.

    Slurm before 24.05 takes one value, which may be a glob pattern, and all releases run what matches in reverse
    alphabetical order until one fails: the site's prolog before ours, our epilog before the site's.
    """
    name = "zz-hami-hpc" if key == "Epilog" else "00-hami-hpc"
    value = given.value
    site = value if value.startswith("/") else f"{conf_dir}/{value}"
    if any(character in value for character in "*?["):
        folder = site.rpartition("/")[0]
        return Merge(
            f"{given.where} has {key}={value}. So that ours runs too (its name must match that pattern), run:",
            (f"ln -s {ours} {folder}/{name}",),
        )
    folder = f"{conf_dir}/hami-hpc-{key.lower()}.d"
    return Merge(
        f"{given.where} has {key}={value}. So that both run, run the commands and instead of that line write the last:",
        (
            f"mkdir -p {folder}",
            f"printf '#!/bin/sh\\nexec {site}\\n' >{folder}/50-site",
            f"chmod 755 {folder}/50-site",
            f"ln -s {ours} {folder}/{name}",
            f"{key}={folder}/*",
        ),
    )


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The site's own NodeName line for a node, and the Gres and features in force there (its own, or DEFAULT's)."""

    line: ConfLine
    gres: str
    features: str
    feature_key: str


def node_record(lines: Iterable[ConfLine], node: str) -> NodeRecord | None:
    """The site's record of `node`, or None."""
    gres = features = ""
    for line in lines:
        if line.kind != "nodename":
            continue
        own_gres, own_features = line.get("Gres"), line.get("Feature") or line.get("Features")
        if line.get("NodeName").upper() == "DEFAULT":
            gres, features = own_gres or gres, own_features or features
        elif names_node(line.get("NodeName"), node):
            key = "Features" if line.get("Features") else "Feature"
            return NodeRecord(line, own_gres or gres, own_features or features, key)
    return None


def merge_node(record: NodeRecord, gres: str, features: Iterable[str]) -> Merge | None:
    """What to write in the site's NodeName line; None when it has all of it."""
    kept = [item for item in split_list(record.gres) if item.partition(":")[0] not in GRES_NAMES]
    both_gres = ",".join([*split_list(gres), *kept])
    there = [item for item in record.features.split(",") if item]
    both_features = ",".join([*there, *(item for item in features if item not in there)])
    if set(split_list(record.gres)) == set(split_list(both_gres)) and both_features == ",".join(there):
        return None
    name = record.line.get("NodeName")
    return Merge(
        f"{record.line.where}: in NodeName={name} write these two (for all of its nodes, which must be alike):",
        (f"Gres={both_gres} {record.feature_key}={both_features}",),
    )


def site_gres(lines: Iterable[ConfLine], node: str) -> list[ConfLine]:
    """The site's own gres.conf lines for this node that name a gres of ours."""
    return [
        line
        for line in lines
        if line.get("Name").lower() in GRES_NAMES
        and (not line.get("NodeName") or names_node(line.get("NodeName"), node))
    ]


def merge_gres(own: Iterable[ConfLine], model: str) -> list[Merge]:
    """What to change in the site's own gres.conf lines: gpu lines stay, with their Type; the rest is ours to count."""
    merges = []
    for line in own:
        if line.get("Name").lower() != "gpu":
            merges.append(
                Merge(f"{line.where}: delete this line; hami-hpc-gres.conf counts what it counts:", (line.text,))
            )
        elif line.get("Type") != model:
            words = [word for word in line.text.split() if not word.lower().startswith("type=")]
            at = next(index for index, word in enumerate(words) if word.lower().startswith("name=")) + 1
            text = " ".join([*words[:at], f"Type={model}", *words[at:]])
            merges.append(Merge(f"{line.where}: instead of {line.text} write:", (text,)))
    return merges
