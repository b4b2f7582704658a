# SPDX-License-Identifier: Apache-2.0
"""How many shards of each GPU of a node a job has, from `scontrol show job -d`. Pure.

Slurm 22.05 prints a record of shards with the one GPU that they lie on, shard:a:60(IDX:0),shard:b:60(IDX:2); 24.11
and later print, in each record, all GPUs of the node: shard:a:60(60/100,0/100),shard:b:60(0/100,60/100). Shards that
were asked for without a type have a record for each type of the node, also with 0: shard:a:60(IDX:1),shard:b:0(IDX:).

A user can write the same into the job's name, comment or paths. slurmctld always prints the job's own line as well; so
what is said of the node holds only where all lines that name it agree.
"""

from __future__ import annotations

import re

from hami_hpc.contract import constants as c
from hami_hpc.core.contexts import suppress
from hami_hpc.core.inventory import MAX_INDEX, indices
from hami_hpc.core.node_names import names_node, split_list

# Both forms of scontrol: a line of its own, and --oneliner's.
_PLACE = re.compile(r"(?:^| ) +Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", re.MULTILINE)
_SHARDS = re.compile(rf"{c.GRES_SHARD}(?::[^:(]+)?:([0-9]{{1,18}})\((?:IDX:([0-9]{{0,4}})|([0-9/,-]+))\)", re.ASCII)
_WHOLE = re.compile(r"gpu(?::[^:(]+)?:[0-9]{1,4}\(IDX:([0-9,-]{0,999})\)", re.ASCII)
_PART = re.compile(r"(-|[0-9]{1,18})/[0-9]{1,18}", re.ASCII)
_ROW = re.compile(r"([0-9]+) ([0-9]+) ([0-9]+|N/A)", re.ASCII)
SHOWN_MAX = 200  # characters of Slurm's text in a message


def shards_of_node(job_lines: str, node: str, job_id: int = 0) -> dict[int, int]:
    """Returns GPU index on `node` -> shards of the job, in ascending order of the index.

    `job_lines` is what `scontrol show job -d` printed of one job. The id of an array is also that of one of its tasks,
    and shows all of them: where several are on the node, ask by the name that name_of_job returns. `job_id`, if given,
    is the job that the text must begin with. Raises ValueError, which says what was not understood.
    """
    return _by_gpu(_line_of_node(job_lines, node, job_id))


def _lines_of_node(job_lines: str, node: str, job_id: int) -> list[str]:
    """Returns the gres on the node by each line that names it, at least one."""
    if job_id and not job_lines.startswith(f"JobId={job_id} "):
        raise ValueError(f"scontrol show job -d printed '{_short(job_lines)}', not job {job_id}")
    lines = [str(gres) for nodes, gres in _PLACE.findall(job_lines) if names_node(nodes, node)]
    if not lines:
        raise ValueError(f"scontrol show job -d names no GPUs of node {node}")
    return lines


def _line_of_node(job_lines: str, node: str, job_id: int) -> str:
    """Returns the job's gres on the node, of which all lines that name the node say the same."""
    lines = _lines_of_node(job_lines, node, job_id)
    if len(set(lines)) > 1:
        shown = "' and '".join(_short(gres) for gres in list(dict.fromkeys(lines))[:2])
        raise ValueError(
            f"scontrol show job -d has {len(set(lines))} different lines about node {node}, '{shown}': tasks of an "
            "array, or a job name or comment that looks like such a line"
        )
    return lines[0]


def whole_gpus_of_node(job_lines: str, node: str, job_id: int = 0) -> frozenset[int]:
    """Returns the indices of the GPUs on `node` that the job holds whole. `job_id`, and errors: as shards_of_node."""
    return _whole(_line_of_node(job_lines, node, job_id))


def any_whole_gpus_of_node(job_lines: str, node: str, job_id: int = 0) -> frozenset[int]:
    """Returns the indices of the GPUs on `node` that the job holds whole by any line that names the node: what its user
    writes can add some, and hides none. `job_id`, and errors: as shards_of_node, but lines may differ."""
    gpus: set[int] = set()
    for gres in _lines_of_node(job_lines, node, job_id):
        with suppress(ValueError):  # a user's text
            gpus |= _whole(gres)
    return frozenset(gpus)


def _whole(gres: str) -> frozenset[int]:
    gpus: set[int] = set()
    for item in split_list(gres):
        match = _WHOLE.fullmatch(item)
        if match is not None and match[1]:
            gpus.update(indices(match[1]))
    return frozenset(gpus)


def name_of_job(rows: str, job_id: int) -> str:
    """Returns what names exactly this job to scontrol, 12_3 for a task of an array, from the lines of
    `squeue --noheader --jobs=ID --format="%A %F %K"`: numbers alone, of which a user writes none.

    Raises ValueError where they do not say, as the id alone may name all tasks of an array.
    """
    for row in rows.splitlines():
        match = _ROW.fullmatch(row.strip())
        if match is not None and int(match[1]) == job_id:
            return str(job_id) if match[3] == "N/A" else f"{match[2]}_{match[3]}"
    raise ValueError(f"squeue does not say whether job {job_id} is a task of an array")


def _by_gpu(gres: str) -> dict[int, int]:
    held: dict[int, int] = {}
    for item in split_list(gres):
        if item.partition(":")[0].partition("(")[0] != c.GRES_SHARD:
            continue
        match = _SHARDS.fullmatch(item)
        if match is None:
            raise ValueError(f"'{_short(item)}' does not say how many shards of which GPU there are")
        shards, index, parts = match.groups()
        found = _of_parts(item, parts) if parts else {int(index): int(shards)} if index else {}
        if sum(found.values()) != int(shards) or 0 in found.values():
            raise ValueError(f"'{_short(item)}' says {shards} shards, and {sum(found.values())} by GPU")
        for gpu, count in found.items():
            if gpu in held or gpu > MAX_INDEX:
                raise ValueError(f"'{_short(gres)}' has GPU {gpu} twice, or no node has that many")
            held[gpu] = count
    return dict(sorted(held.items()))


def _of_parts(item: str, parts: str) -> dict[int, int]:
    """Returns the shards by GPU of 60/100,0/100; `-` is a GPU that a job holds whole."""
    found = {}
    for index, part in enumerate(parts.split(",")):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"'{_short(item)}' does not say how many shards of which GPU there are")
        count = 0 if match[1] == "-" else int(match[1])
        if count:
            found[index] = count
    return found


def _short(text: str) -> str:
    """Returns the beginning of a text, printable."""
    shown = "".join(character if character.isprintable() else "?" for character in text[:SHOWN_MAX])
    return shown if len(text) <= SHOWN_MAX else shown + "..."
