# SPDX-License-Identifier: Apache-2.0
"""Parses what scontrol and squeue print of nodes and jobs. Pure.

A job's name and comment are its user's and may hold line ends, so scontrol's text of a job says nothing certain about
whose job it is: squeue's fields do (tried on 22.05.8). GresUsed shows the shards of each GPU from 23.11 on
(`shard:h200:846(446/559,400/559)`; 26.05 writes `-/559` for a GPU that is held whole). Before that they are added up
from the jobs' GRES (`shard:279(IDX:0)`), and taken only if the sum is what Slurm says is allocated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hami_hpc.contract import constants as c
from hami_hpc.core.by_node import ByNode
from hami_hpc.core.pool import Node
from hami_hpc.core.request_keys import is_mig_name
from hami_hpc.slurm.lines import split_list

SQUEUE_FIELDS = ("%A", "%i", "%F", "%K", "%U", "%u", "%T", "%P", "%q", "%M", "%l", "%S", "%V", "%N", "%r")
SQUEUE_FORMAT = "|".join(SQUEUE_FIELDS)
TO_REACH_SLURM = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")  # variables by which srun finds slurmctld
NO_VALUES = ("", "(null)", "N/A", "n/a", "None", "Unknown")
_PER_GPU = re.compile(rf"(?:^|,){c.GRES_SHARD}(?::[^,]*?)?:\d+\(((?:-|\d+)/\d+(?:,(?:-|\d+)/\d+)*)\)")
_WHOLE = re.compile(r"(?:^|,)gpu(?::[^,]*?)?:\d+\(IDX:([\d,-]+)\)")
_JOB_SHARDS = re.compile(rf"(?:^|,){c.GRES_SHARD}(?::[^,:(]*)?:(\d{{1,18}})\((?:IDX:(\d{{1,9}})|([\d,/-]+))\)")
_OF_ALL = re.compile(r"(\d{1,18}|-)/\d+")
_JOB_LINE = re.compile(r"^ {5}Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)", re.MULTILINE)
_GPU = re.compile(r"gpu(?::([^:]+))?:(\d+)")
_FIXED_USED = re.compile(rf"(?:^|,){c.GRES_FIXED}:(\d{{1,18}})(?![\d.])")
_FIXED_ASKED = re.compile(rf"\b{c.GRES_FIXED}[:=](\d{{1,18}})\b")
_SLICES_USED = re.compile(rf"(?:^|,){c.GRES_CLASS}:[^:,]*:(\d{{1,18}})")
_ASKED_PER_NODE = re.compile(r"gres[:/]([a-z_]+)(:[^:=]+)?[:=](\d{1,18})")
_UNITS = (c.GRES_SHARD, c.GRES_MEM, c.GRES_CORES)


@dataclass(frozen=True, slots=True)
class JobRow:
    """One line of squeue. `job_id` is the number that scontrol knows; `shown` is what users see: 10_3, 11+1."""

    job_id: int
    shown: str
    array_id: int
    tasks: str
    uid: int
    user: str
    state: str
    partitions: tuple[str, ...]
    qos: str
    elapsed: str
    time_limit: str
    start: str
    submitted: str
    nodes: str
    reason: str


def of_name(rows: Sequence[JobRow], name: str) -> list[JobRow]:
    """Returns the rows of a job's name. squeue lists all components of a heterogeneous job also for one (11+1)."""
    return [row for row in rows if "+" not in name or row.shown == name]


def in_job(shown: str, job_id: int) -> tuple[str, ...]:
    """Returns the options of srun for a step of a job: srun names a component of a heterogeneous job by the first's
    number."""
    first, plus, offset = shown.partition("+")
    return (f"--jobid={first}", f"--het-group={offset}") if plus else (f"--jobid={job_id}",)


def environment_for_step(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of an srun for a step of any job, without what the caller may have from a job of its own:
    srun would take it for options of that step."""
    return {
        name: value
        for name, value in environment.items()
        if name in TO_REACH_SLURM or not name.startswith(("SLURM_", "SRUN_"))
    }


def printable(text: str) -> str:
    """Returns the text with '?' for each character that a terminal may not show as it is."""
    return "".join(character if character.isprintable() else "?" for character in text)


def expand(indices: str) -> frozenset[int]:
    """Returns the numbers of `0-2,5`."""
    numbers: set[int] = set()
    for piece in indices.split(","):
        first, _, last = piece.partition("-")
        if first.isdigit() and (last or first).isdigit() and len(first) < 6 and len(last) < 6:
            numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def tres(text: str) -> dict[str, int]:
    """Returns the counts of `cpu=3,mem=1G,gres/shard=846`, gres without their prefix, memory in MiB."""
    counts = {}
    for item in text.split(","):
        name, _, value = item.partition("=")
        match = re.fullmatch(r"(\d+)(?:\.(\d+))?([KMGTP]?)", value)
        if match is not None:
            number = float(f"{match[1]}.{match[2] or 0}")
            factor = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}[match[3]]
            counts[name.removeprefix("gres/").removeprefix("gres:")] = int(number * factor)
    return counts


def job_shards(text: str) -> list[tuple[str, int, int]]:
    """Returns (hostlist, GPU, shards) of each job in `scontrol --details show jobs`."""
    found = []
    for nodes, gres in _JOB_LINE.findall(text):
        found += [(nodes, index, shards) for index, shards in _by_gpu(gres)]
    return found


def _by_gpu(gres: str) -> Iterator[tuple[int, int]]:
    """Yields (GPU, shards) in a job's gres on a node: `shard:279(IDX:1)`, or from 23.11 on `(0/559,279/559)`."""
    for shards, index, shares in _JOB_SHARDS.findall(gres):
        if index:
            yield int(index), int(shards)
            continue
        matches = [_OF_ALL.fullmatch(share) for share in shares.split(",")]
        held = [int(match[1].replace("-", "0")) for match in matches if match is not None]
        if len(held) == len(matches):
            yield from ((number, count) for number, count in enumerate(held) if count)


def parse_nodes(text: str, of_jobs: Sequence[tuple[str, int, int]]) -> list[Node]:
    """Returns the nodes with vGPUs in `scontrol --oneliner --details show nodes`, which prints one line for each."""
    by_node = ByNode[tuple[int, int]]()
    for nodes, index, shards in of_jobs:
        if nodes:
            by_node.add(nodes, (index, shards))
    parsed = (_parse_node(line, by_node) for line in text.splitlines())
    return [node for node in parsed if node is not None]


def _parse_node(line: str, of_jobs: ByNode[tuple[int, int]]) -> Node | None:
    facts: dict[str, str] = {}
    for key, value in re.findall(r"(?:^| )([A-Za-z_:/]+)=(\S*)", line):
        facts.setdefault(key, value)  # the free text of Reason and Comment stands after all of them
    total = _gres_counts(facts.get("Gres", ""))
    counted = [_GPU.fullmatch(re.sub(r"\(.*", "", item)) for item in split_list(facts.get("Gres", ""))]
    # A GPU with a static MIG layout has no slices; Slurm shows its instances as gpus, after the others.
    gpus = [match for match in counted if match is not None and not is_mig_name(match[1] or "")]
    count = sum(int(match[2]) for match in gpus)
    types = tuple(match[1] or "" for match in gpus for _ in range(int(match[2])))
    if "NodeName" not in facts or not count or not all(total.get(unit, 0) >= count for unit in _UNITS):
        return None
    allocated = _allocated(facts, of_jobs)
    reason = re.search(r" Reason=(.*?)(?: Comment=|$)", line)
    used = facts.get("GresUsed", "")
    return Node(
        name=facts["NodeName"],
        state=facts.get("State", "UNKNOWN"),
        reason=printable(reason[1].strip()) if reason else "",
        model=_model(types, _words(facts.get("ActiveFeatures", ""))),
        gpus=count,
        partitions=_words(facts.get("Partitions", "")),
        features=_words(facts.get("ActiveFeatures", "")),
        total=total,
        allocated=allocated,
        used=_used(used, facts["NodeName"], count, allocated.get(c.GRES_SHARD, 0), of_jobs),
        whole=frozenset().union(*(expand(indices) for indices in _WHOLE.findall(used))),
        cpus=_number(facts, "CPUEfctv") or _number(facts, "CPUTot"),
        cpus_allocated=_number(facts, "CPUAlloc"),
        memory_mib=_number(facts, "RealMemory"),
        memory_allocated_mib=_number(facts, "AllocMem"),
        places=types if _are_places(types) else (),
        fixed_used=int(fixed[1]) if (fixed := _FIXED_USED.search(used)) else None,
        owner="" if facts.get("Owner", "") in NO_VALUES else printable(facts["Owner"]),
    )


def _allocated(facts: Mapping[str, str], of_jobs: ByNode[tuple[int, int]]) -> dict[str, int]:
    """Returns what jobs hold of a node. Without slurmdbd it has no TRES for gres, so GresUsed says it; the shards, of
    which that has the number of GPUs before 23.11, are then the jobs', if all that have slices are known."""
    counts = tres(facts.get("AllocTRES", ""))
    if f"gres/{c.GRES_SHARD}=" in facts.get("CfgTRES", ""):
        return counts
    used = facts.get("GresUsed", "")
    held = [shards for _index, shards in of_jobs.of(facts["NodeName"])]
    is_known = not _PER_GPU.search(used) and len(held) == sum(map(int, _SLICES_USED.findall(used)))
    return counts | _gres_counts(used) | ({c.GRES_SHARD: sum(held)} if is_known else {})


def units_asked(tres_of_job: str, tres_per_node: str, nodes: int) -> dict[str, int]:
    """Returns a job's counts of all nodes: its TRES, and, without slurmdbd, which has none for gres, TresPerNode's."""
    counts = tres(tres_of_job)
    if c.GRES_CLASS in counts:
        return counts
    for item in tres_per_node.split(","):
        match = _ASKED_PER_NODE.fullmatch(item)
        if match is not None:
            names = dict.fromkeys((match[1], match[1] + (match[2] or "")))
            counts |= {name: counts.get(name, 0) + int(match[3]) * nodes for name in names}
    return counts


def fixed_asked(tres_per_node: str) -> int:
    """Returns how many shards that are never moved a job's TresPerNode has, 0 for none."""
    match = _FIXED_ASKED.search(tres_per_node)
    return int(match[1]) if match else 0


def _are_places(types: Sequence[str]) -> bool:
    """Returns whether the types of a node's GPUs are places, where jobs may have several slices (docs/adr/055)."""
    return all(len(name) == 1 and name in c.PLACES for name in types)


def _model(types: Sequence[str], features: Sequence[str]) -> str:
    """Returns the model of a node's GPUs: their type, or, where the types are places, the feature's."""
    prefix = c.FEATURE_TYPE.format(type="")
    models = {name.removeprefix(prefix) for name in features if name.startswith(prefix)}
    return ",".join(sorted(models if models and _are_places(types) else set(types))) or "gpu"


def _words(text: str) -> tuple[str, ...]:
    return () if text in NO_VALUES else tuple(text.split(","))


def _number(facts: Mapping[str, str], key: str) -> int:
    text = facts.get(key, "")
    return int(text) if text.isdigit() and len(text) < 19 else 0


def _gres_counts(gres: str) -> dict[str, int]:
    """Returns the count of each vgpu unit in `gpu:h200:2,shard:h200:1118,vgpu_mem:286312`."""
    counts: dict[str, int] = {}
    for item in split_list(gres):
        match = re.fullmatch(r"([a-z_]+)(?::[^:]*)?:(\d+)", re.sub(r"\(.*", "", item))
        if match is not None and match[1] in (*_UNITS, c.GRES_FIXED):
            counts[match[1]] = counts.get(match[1], 0) + int(match[2])
    return counts


def _used(
    gres_used: str, node: str, gpus: int, allocated: int, of_jobs: ByNode[tuple[int, int]]
) -> tuple[int, ...] | None:
    """Returns the allocated shards of each GPU, or None where neither GresUsed nor the jobs show them."""
    shown = [pair.split("/") for item in _PER_GPU.findall(gres_used) for pair in item.split(",")]
    if len(shown) >= gpus:  # the instances of a static MIG layout come after the GPUs, with no shards
        return tuple(int(total) if used == "-" else int(used) for used, total in shown[:gpus])
    used = [0] * gpus
    for index, shards in of_jobs.of(node):
        if index < gpus:
            used[index] += shards
    return tuple(used) if sum(used) == allocated else None


def parse_squeue(text: str) -> list[JobRow]:
    """Returns the lines that squeue printed in SQUEUE_FORMAT; leaves out what has another form."""
    rows = []
    for line in text.splitlines():
        words = line.split("|", len(SQUEUE_FIELDS) - 1)
        if len(words) != len(SQUEUE_FIELDS) or not all(words[at].isdigit() for at in (0, 2, 4)):
            continue
        job_id, shown, array_id, tasks, uid, user, state, partitions, *rest = (printable(word) for word in words)
        names = _words(partitions)
        rows.append(JobRow(int(job_id), shown, int(array_id), tasks, int(uid), user, state, names, *rest))
    return rows


def record_of(text: str, job_id: int) -> str:
    """Returns the part of `scontrol --details show job` about one job id; "" when there is none."""
    return records(text).get(job_id, "")


def records(text: str) -> dict[int, str]:
    """Returns the parts of `scontrol --details show job` by job id; of two for one id the first."""
    found: dict[int, str] = {}
    for part in re.split(r"^(?=JobId=\d+ )", text, flags=re.MULTILINE):
        if (match := re.match(r"JobId=(\d{1,18}) ", part)) is not None:
            found.setdefault(int(match[1]), part)
    return found


def value(record: str, key: str) -> str:
    """Returns the value of a key of a job's record; "" for none. Not from the first line, which has the job's name."""
    match = re.search(rf"^ +(?:\S+=\S* )*{re.escape(key)}=(\S*)", record, re.MULTILINE)
    return "" if match is None or match[1] in NO_VALUES else printable(match[1])


def placement(record: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns (hostlist, GPU indices) of each line of a running job's record."""
    found = []
    for nodes, gres in _JOB_LINE.findall(record):
        gpus = {index for index, _ in _by_gpu(gres)}
        for indices in _WHOLE.findall(gres):
            gpus |= expand(indices)
        found.append((printable(nodes), tuple(sorted(gpus))))
    return found
