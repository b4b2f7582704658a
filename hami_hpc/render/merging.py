# SPDX-License-Identifier: Apache-2.0
"""Compares what hami_hpc needs in slurm.conf and gres.conf with what the site has there, and lists the changes. Pure.

hami_hpc's fragment does not set a key that the site sets, because Slurm would use the last of the two. Instead the
administrator gets a line with both values to write.
"""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hami_hpc.contract import constants as c
from hami_hpc.core.by_node import ByNode
from hami_hpc.errors import shorten
from hami_hpc.render.node_lines import NodeLine, NodeLines
from hami_hpc.slurm.lines import ConfLine, Setting, pair_text, split_list

# Keys that hold a list, and what separates its items.
LISTS = {
    "GresTypes": ",",
    "JobSubmitPlugins": ",",
    "CliFilterPlugins": ",",
    "PrologFlags": ",",
    "AccountingStorageTRES": ",",
    "PluginDir": ":",
}
# In a remark or merge: the nodes that it is for, to be read, and as a word of a shell (gathering.py).
NODES, HOSTS = "@NODES@", "@HOSTS@"
# Flags of PrologFlags that also set Alloc (prolog_str2flags in Slurm).
IMPLIES_ALLOC = ("alloc", "contain", "x11")
MPS = "mps"  # Slurm's own gres of shares of a GPU, which hami_hpc does not offer (docs/migration.md)
GRES_NAMES = ("gpu", MPS, c.GRES_SHARD, c.GRES_CLASS, c.GRES_MEM, c.GRES_CORES, c.GRES_SLO, c.GRES_FIXED)


NO_SLURMDBD = (
    "slurm.conf has no AccountingStorageType=accounting_storage/slurmdbd, so AccountingStorageTRES is left out, with "
    "which slurmctld would not start. Slices work without slurmdbd, all of class std; there are no QoS and no bills"
)


@dataclass(frozen=True, slots=True)
class Merge:
    """One change for the administrator to make: a sentence that ends with a colon, and the exact lines.

    `line` and `pairs`: a line that describes nodes, and what one of them needs there; without `lines` it has that.
    `of_many`: the sentence where many lines need the same, without their numbers.
    """

    what: str
    lines: tuple[str, ...]
    line: ConfLine | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    of_many: str = ""


def has_slurmdbd(site: Mapping[str, list[Setting]]) -> bool:
    """Returns whether the site has slurmdbd, which alone stores gres; Slurm's default is none."""
    settings = site.get("accountingstoragetype", [])
    return bool(settings) and settings[-1].value.lower().endswith("slurmdbd")


def merge_keys(wanted: Mapping[str, str], site: Mapping[str, list[Setting]]) -> tuple[dict[str, str], list[Merge]]:
    """Returns (keys that the fragment sets, merges for the administrator) for all keys but Prolog and Epilog."""
    fragment_keys: dict[str, str] = {}
    merges: list[Merge] = []
    for key, value in wanted.items():
        settings = site.get(key.lower())
        if not settings:
            fragment_keys[key] = value
            continue
        last = settings[-1]
        merged = _union(last.value, value, LISTS[key], key) if key in LISTS else value
        if merged.lower() != last.value.lower():
            merges.append(Merge(f"{last.where}: instead of {key}={last.value} write:", (pair_text(key, merged),)))
    return fragment_keys, merges


def _union(site: str, wanted: str, separator: str, key: str) -> str:
    items = [item.strip() for item in site.split(separator) if item.strip()]
    present = {item.lower() for item in items}
    if key.endswith("Plugins"):  # Slurm takes cli_filter/lua for lua
        present |= {item.rpartition("/")[2] for item in present}
    for item in wanted.split(separator):
        if item.lower() in present or (key == "PrologFlags" and item == "Alloc" and present & set(IMPLIES_ALLOC)):
            continue
        items.append(item)
    return separator.join(items)


def merge_stage(key: str, program: str, site_setting: Setting, conf_dir: str) -> Merge:
    """Returns the merge after which the site's own Prolog or Epilog and hami_hpc's `program` both run.

    Slurm before 24.05 takes one value, which may be a glob pattern. All releases run the matching files in reverse
    alphabetical order until one fails. So the names make the site's prolog run before ours, and our epilog before the
    site's.
    """
    name = "zz-hami-hpc" if key == "Epilog" else "00-hami-hpc"
    value, where = site_setting.value, site_setting.where
    site_program = value if value.startswith("/") else f"{conf_dir}/{value}"
    if any(character in value for character in "*?["):
        folder, _, pattern = site_program.rpartition("/")
        if pattern.count("*") == 1 and fnmatch.fnmatchcase(matching := pattern.replace("*", name), pattern):
            name = matching
        return Merge(
            f"{where} has {key}={value}. To run hami_hpc's too (its name must match that pattern), run:",
            (f"ln -s {program} {folder}/{name}",),
        )
    folder = f"{conf_dir}/hami-hpc-{key.lower()}.d"
    return Merge(
        f"{where} has {key}={value}. To run both, run these commands, then replace that line with the last line here:",
        (
            f"mkdir -p {folder}",
            f"printf '%s\\n' '#!/bin/sh' {shlex.quote(f'exec {shlex.quote(site_program)}')} >{folder}/50-site",
            f"chmod 755 {folder}/50-site",
            f"ln -s {program} {folder}/{name}",
            f"{key}={folder}/*",
        ),
    )


def unnamed_remark(path: str, nodes: NodeLines, node: str, fragment: str) -> str:
    """Returns a remark where slurm.conf at `path` has NodeName lines, and none for `node`, or NODES; else ""."""
    if nodes.first is None:
        return ""
    there = f"{nodes.first.where} has {shorten(nodes.first.get('NodeName'))}"
    if other := nodes.other_spelling(node):
        there = f"it has this name {other}"
    return (
        f"{path} has no NodeName={NODES} ({there}), so {fragment} adds that, with one CPU a node unless "
        f"--node-parameters says more. What has another name in Slurm: run hami-hpc forget-node {HOSTS}, then this "
        "command again with --node NAME, or with inventories that hami-hpc inventory --node NAME printed"
    )


def merge_node(site: NodeLine, gres: str, features: Iterable[str]) -> Merge:
    """Returns what to change in the site's NodeName line; without lines when nothing."""
    other_gres = [item for item in split_list(site.gres) if item.partition(":")[0] not in GRES_NAMES]
    merged_gres = ",".join([*split_list(gres), *other_gres])
    site_features = [item for item in site.features.split(",") if item]
    merged_features = ",".join([*site_features, *(item for item in features if item not in site_features)])
    pairs = (("Gres", merged_gres), (site.feature_key, merged_features))
    has_all = set(split_list(site.gres)) == set(split_list(merged_gres)) and merged_features == ",".join(site_features)
    return Merge(
        f"{site.line.where}: in NodeName={site.line.get('NodeName')} write these two (for all of its nodes, which must "
        "be alike):",
        () if has_all else (" ".join(pair_text(key, value) for key, value in pairs),),
        site.line,
        pairs,
        "write these two into each of these NodeName lines:",
    )


def site_gres(lines: Iterable[ConfLine]) -> ByNode[ConfLine]:
    """Returns the site's own gres.conf lines that name a gres which hami_hpc uses, or gres/mps, by node."""
    by_node = ByNode[ConfLine]()
    for line in lines:
        if line.get("Name").lower() in GRES_NAMES:
            by_node.add(line.get("NodeName"), line)
    return by_node


def merge_static(site_lines: Iterable[ConfLine], static: Sequence[tuple[str, str]], path: str) -> list[Merge]:
    """Returns the gpu lines that the site's own gres.conf lacks for the instances (type, device) of a static layout."""
    there = {(line.get("Type"), line.get("File")) for line in site_lines}
    lacking = [pair for pair in static if pair not in there]
    lines = tuple(f"NodeName={NODES} Name=gpu Type={name} File={device}" for name, device in lacking)
    return [Merge(f"{path}: add the line(s) of the static MIG layout:", lines)] if lines else []


def merge_gres(site_lines: Iterable[ConfLine], model: str, static: Sequence[tuple[str, str]] = ()) -> list[Merge]:
    """Returns what to change in the site's own gres.conf lines: gpu lines get the Type `model`, others are deleted.
    Lines of gres/mps go when no job has it.
    With "" gpu lines are deleted as well: the GPUs of a node have several types then. Those of `static`, (type, device)
    of a static MIG layout, stay. A line that has the type already is among them, without lines to write."""
    merges = []
    for line in site_lines:
        if (line.get("Type"), line.get("File")) in static:
            continue
        if line.get("Name").lower() == MPS:
            merges.append(_without_mps(line))
        elif line.get("Name").lower() != "gpu" or not model:
            merges.append(
                Merge(
                    f"{line.where}: delete this line; hami-hpc-gres.conf has one for the same gres:",
                    (line.text,),
                    line,
                    of_many="delete these lines; hami-hpc-gres.conf has those for the same gres:",
                )
            )
        else:
            pairs = [pair for pair in line.pairs if pair[0].lower() != "type"]
            after_name = next(index for index, (key, _) in enumerate(pairs) if key.lower() == "name") + 1
            text = " ".join(
                pair_text(key, value) for key, value in (*pairs[:after_name], ("Type", model), *pairs[after_name:])
            )
            lines = () if line.get("Type") == model else (text,)
            what, of_many = f"{line.where}: instead of {line.text} write:", "write this into each of these gpu lines:"
            merges.append(Merge(what, lines, line, (("Type", model),), of_many))
    return merges


def _without_mps(line: ConfLine) -> Merge:
    what = (
        "once no job has gres/mps, which cannot be beside slices on a GPU (instead: vgpu:cores=50,mem=16G,mode=mps),"
        " take mps out of GresTypes, Gres= and AccountingStorageTRES of slurm.conf, and delete"
    )
    return Merge(f"{line.where}: {what} this line:", (line.text,), line, of_many=f"{what} these lines:")
