# SPDX-License-Identifier: Apache-2.0
"""`hami-hpc explain`: a vGPU job's state in plain words, from what Slurm shows to the user who asks."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from hami_hpc.cli import colours, turn_view
from hami_hpc.cli.options import Failure, command, config_option, format_option
from hami_hpc.cli.pool_command import node_json, read_rooms, settings_here
from hami_hpc.core import pool as pool_of
from hami_hpc.core import reasons
from hami_hpc.core.asked import Asked, decode, has_features, needed_features
from hami_hpc.core.hostlist import HostlistError, named
from hami_hpc.core.pool import Need, Node, Room, Size
from hami_hpc.core.request_keys import slo_text
from hami_hpc.errors import NodeError
from hami_hpc.node import turn_notes
from hami_hpc.node.config import Settings
from hami_hpc.slurm import cluster_view, commands
from hami_hpc.slurm.cluster_view import NO_VALUES, JobRow
from hami_hpc.slurm.job_runs import records_of
from hami_hpc.slurm.lines import names_node

JOB = re.compile(r"[0-9]{1,10}(_[0-9]{1,10}|\+[0-9]{1,5})?")
RUNNING = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "SIGNALING", "STAGE_OUT", "STOPPED"})
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
NODES_SHOWN = 8
ASKED_MOST = 4  # running jobs of an array whose nodes are asked where they stand; of others the command is shown
Rooms = list[tuple[Node, Size, Room]]


@dataclass(frozen=True, slots=True)
class Job:
    """One job: squeue's line, scontrol's record, and what it asked for (None: no vGPU)."""

    row: JobRow
    record: str
    asked: Asked | None

    def value(self, key: str) -> str:
        return cluster_view.value(self.record, key)


def read_jobs(name: str) -> list[Job]:
    """Returns the parts of a job: one, or several for an array and a heterogeneous job.

    Raises Failure for a job that Slurm does not know, or that belongs to another user than the one who asks.
    """
    rows = cluster_view.of_name(cluster_view.parse_squeue(commands.queue_rows(name, cluster_view.SQUEUE_FORMAT)), name)
    if not rows:
        raise Failure(f"Slurm's controller shows no job {name} to this user; if it has ended: sacct -j {name}")
    if os.geteuid() not in (0, rows[0].uid):
        raise Failure(
            f"job {name} belongs to {rows[0].user}: only they and root get it explained; see squeue -j {name}"
        )
    records = records_of(name, rows)
    jobs = []
    for row in sorted(rows, key=lambda row: row.job_id):
        record = records[row.job_id]
        units = cluster_view.value(record, "AllocTRES") or cluster_view.value(record, "ReqTRES")
        units = units or cluster_view.value(record, "TRES")
        nodes = cluster_view.value(record, "NumNodes").partition("-")[0]
        features = cluster_view.value(record, "Features")
        per_node = cluster_view.value(record, "TresPerNode")
        count = int(nodes) if nodes.isdigit() else 1
        jobs.append(
            Job(row, record, decode(cluster_view.units_asked(units, per_node, count), features, count, per_node))
        )
    return jobs


def _asked_line(job: Job) -> str:
    asked = job.asked
    if asked is None:
        return "no vGPU, so that hami_hpc does not limit it"
    nodes = f" on each of {asked.nodes} nodes" if asked.nodes > 1 else ""
    slices = f"{asked.count} slices on as many GPUs{nodes}, each with " if asked.count > 1 else ""
    types = asked.gpu_type or asked.types.replace("|", " or ")
    extra = [f"type {types}"] if types else []
    extra += [f"mode {asked.mode}"] if asked.mode else []
    extra += [f"policy {asked.policy}"] if asked.policy else []
    extra += [f"requests within {slo_text(asked.slo_us)}"] if asked.slo_us else []
    return (
        f"{slices}{asked.mem_mib:,} MiB of GPU memory and {asked.cores} % of a GPU's time{'' if slices else nodes}, "
        f"{', '.join([f'class {asked.service_class}', *extra])} ({asked.request})"
    )


def candidates(job: Job, rooms: Rooms) -> Rooms:
    """Returns the nodes that the job may use: of its partitions, with its features, in its lists of nodes."""
    required, excluded = job.value("ReqNodeList"), job.value("ExcNodeList")
    return [
        (node, size, room)
        for node, size, room in rooms
        if set(job.row.partitions) & set(node.partitions)
        and has_features(node.features, job.value("Features"))
        and (not required or names_node(required, node.name))
        and not (excluded and names_node(excluded, node.name))
    ]


def _of_its_reservation(job: Job, rooms: Rooms) -> Rooms:
    """Returns the nodes of the job's reservation, as its jobs see them; all nodes for a job without one."""
    name = job.value("Reservation")
    if name in NO_VALUES:
        return rooms
    try:
        nodes = commands.reservation_nodes(name)
    except NodeError:  # a site may hide reservations (PrivateData), or this one was deleted
        return rooms
    inside = [(node.in_its_reservation, size) for node, size, _ in rooms if names_node(nodes, node.name)]
    return [(node, size, pool_of.room_of(node, size)) for node, size in inside]


def need_of(job: Job, asked: Asked) -> Need:
    """Returns what the job needs on each node."""
    units = cluster_view.tres(job.value("ReqTRES") or job.value("TRES"))
    cpus = job.value("NumCPUs").partition("-")[0]
    per_node = -(-int(cpus) // asked.nodes) if cpus.isdigit() else 1
    memory_mib = units.get("mem", 0) // asked.nodes
    count = asked.count
    fixed = cluster_view.fixed_asked(job.value("TresPerNode"))
    mem_mib, cores = count * asked.mem_mib, count * asked.cores
    return Need(asked.shards, mem_mib, cores, max(1, per_node), memory_mib, asked.places, fixed)


def _lacking(job: Job, need: Need, node: Node, size: Size, room: Room) -> list[str]:
    """Returns what the job lacks on a node."""
    lacks = pool_of.shortages(node, size, room, need)
    if node.owner and not node.owner.endswith(f"({job.row.uid})"):
        lacks.append(f"while jobs of {node.owner} run there it takes no others (ExclusiveUser)")
    return lacks


def _is_exclusive(job: Job) -> bool:
    """Returns whether the job is to have whole nodes: since Slurm 26.05 by a field of its own."""
    exclusive = job.value("Exclusive")
    return exclusive in ("NODE", "TOPO") if exclusive else job.value("OverSubscribe") == "NO"


def _words(job: Job) -> reasons.Explained:
    """Returns why the job waits, and what to do."""
    is_exclusive = job.asked is not None and job.row.state in WAITING and _is_exclusive(job)
    name = job.row.shown.partition("[")[0].rstrip("_")
    return reasons.explain(job.row.reason, name, is_exclusive=is_exclusive)


def _fit_lines(job: Job, asked: Asked, rooms: Rooms) -> list[str]:
    """Returns a line for each kind of nodes that the job may use: whether it fits now, and the largest free slice."""
    may_use = _of_its_reservation(job, candidates(job, rooms))
    absent = _absent_lines(job)
    if not may_use:
        return absent or [f"no node with vGPUs of partition {','.join(job.row.partitions)} has what it asks for"]
    need = need_of(job, asked)
    alike: dict[str, list[str]] = {}
    ranked = sorted(may_use, key=lambda item: -max((gpu.free_shards for gpu in item[2].gpus), default=0))
    for node, size, room in ranked:
        lacks = _lacking(job, need, node, size, room)
        verdict = f"does not fit: {'; '.join(lacks)}" if lacks else "this job fits, as far as Slurm shows it"
        best = ""
        if node.is_usable:
            bound = "" if room.is_exact else "at most "
            best = f"; largest free slice: {bound}{room.largest.text}" if room.largest else "; no slice is free"
        alike.setdefault(f"{verdict}{best}", []).append(node.name)
    kinds = list(alike.items())
    lines = [f"{named(names)}: {text}" for text, names in kinds[:NODES_SHOWN]]
    if len(kinds) > NODES_SHOWN:
        more = sum(len(names) for _, names in kinds[NODES_SHOWN:])
        lines.append(f"and {more} more nodes with less: hami-hpc pool")
    if needed_features(job.value("Features")) is None:
        lines.append("(its --constraint is more than a list joined by &, and was not taken into account)")
    return lines + absent


def _absent(job: Job) -> tuple[str, str]:
    """Returns the nodes of its partitions that are powered down in the cloud, and those that are not there yet."""
    try:
        return commands.absent_nodes(job.row.partitions)
    except (NodeError, HostlistError):  # a site may hide nodes and partitions (PrivateData)
        return "", ""


def _absent_lines(job: Job) -> list[str]:
    powered_down, future = _absent(job)
    lines = []
    if powered_down:
        unseen = "Without PrivateData=cloud Slurm does not show what they have"
        lines.append(f"{powered_down}: powered down in the cloud; this job may wake them. {unseen}")
    if future:
        lines.append(f"{future}: not there yet (State=FUTURE); jobs wait until they register")
    return lines


def _pending(job: Job, rooms: Rooms | None) -> list[tuple[str, str]]:
    words = _words(job)
    lines = [("why", f"{job.row.reason}: {words.why}"), ("do", words.advice)]
    if job.value("Dependency"):
        lines.append(("waits for", job.value("Dependency")))
    if job.row.start not in NO_VALUES:
        lines.append(
            ("start", f"about {job.row.start} by Slurm's present plan; jobs that end early or have priority change it")
        )
    if job.asked is not None and words.asks_what_fits and rooms is not None:
        lines += [("fits now" if not at else "", text) for at, text in enumerate(_fit_lines(job, job.asked, rooms))]
    return lines


def _running(job: Job, settings: Settings | None, may_ask: bool) -> list[tuple[str, str]]:
    places = [
        f"{nodes}, GPU {','.join(map(str, gpus))}" if gpus else nodes
        for nodes, gpus in cluster_view.placement(job.record)
    ]
    lines = [("where", "; ".join(places) or job.row.nodes)]
    end = job.value("EndTime")
    if job.asked is not None:
        each = " on a GPU" if job.asked.count > 1 else ""
        lines.append(("memory", f"requests beyond {job.asked.mem_mib:,} MiB{each} fail with CUDA's out of memory"))
        lines.append(("time", _time_text(job.asked, settings) + (", on each of its GPUs" if each else "")))
        lines += _processes(job.asked, settings)
        lines += [("turn" if not at else "", text) for at, text in enumerate(_turns(job, settings, may_ask))]
    lines.append(("ends", f"{end or 'without limit'} at the latest (time limit {job.row.time_limit})"))
    if job.row.state == "SUSPENDED":
        lines.append(
            (
                "stopped",
                "by Slurm until it resumes the job; this time neither counts nor costs, and the vGPU stays its own",
            )
        )
    if job.asked is not None and job.row.state == "RUNNING":
        step = " ".join(cluster_view.in_job(job.row.shown, job.row.job_id))
        use = f"srun {step} --overlap --gres=none hami-hpc usage {job.row.job_id}"
        lines.append(("uses now", use))
    return lines


def _turns(job: Job, settings: Settings | None, may_ask: bool) -> list[str]:
    """Returns where a running job stands on each of its oversold GPUs; nothing where none is oversold. Where it
    `may_ask`, its user's own step asks the nodes."""
    asked = job.asked
    if asked is None or asked.count > 1 or asked.mode not in ("", "share") or job.row.state != "RUNNING":
        return []
    if (settings is None and not may_ask) or not _is_oversold(job, settings):
        return []
    own = turn_view.here(settings, job.row.job_id) if asked.nodes == 1 else None
    if own is not None:
        return [own]
    if (
        may_ask
        and os.geteuid() == job.row.uid
        and (answers := turn_view.asked(job.row.job_id, job.row.shown, asked.nodes))
    ):
        return answers if asked.nodes > 1 else [answers[0].partition(": ")[2]]
    return [f"its GPU's memory is oversold, so it may wait for its turn: hami-hpc usage {job.row.job_id} on its node"]


def _is_oversold(job: Job, settings: Settings | None) -> bool:
    if settings is not None:
        return turn_notes.are_taken(settings)
    try:
        rooms = read_rooms(None)
    except NodeError:
        return False
    own = [size for node, size, _room in rooms if names_node(job.row.nodes, node.name)]
    return any(size.sold_shards > size.shards for size in own)


def _time_text(asked: Asked, settings: Settings | None) -> str:
    own_class = settings.classes.get(asked.service_class) if settings else None
    own = own_class.policy if own_class else ""
    policy = asked.policy or own
    of = "" if asked.policy else f" of class {asked.service_class}"
    if policy == "cap":
        return f"{asked.cores} % of the GPU and never more (policy cap{of})"
    if policy == "burst":
        return f"{asked.cores} % of the GPU, more while others leave it idle (policy burst{of})"
    if policy == "none":
        return f"not limited: the GPU divides its time among the jobs (policy none{of})"
    return f"{asked.cores} % of the GPU, by the policy of class {asked.service_class}"


def _processes(asked: Asked, settings: Settings | None) -> list[tuple[str, str]]:
    own_class = settings.classes.get(asked.service_class) if settings else None
    most = own_class.max_processes if own_class and asked.mode != "mig" else 0
    text = f"at most {most} use a slice at once (max_processes of class {asked.service_class}); one more gets no GPU"
    return [("processes", text)] if most else []


def _ended(job: Job) -> list[tuple[str, str]]:
    lines = [("where", job.row.nodes or "it never ran")]
    if job.row.reason not in NO_VALUES:
        words = reasons.explain(job.row.reason, job.row.shown)
        lines.append(("why", f"{job.row.reason}: {words.why} {words.advice}"))
    return [*lines, ("exit code", job.value("ExitCode")), ("used", f"hami-hpc efficiency {job.row.job_id}")]


def lines_of(job: Job, rooms: Rooms | None, settings: Settings | None, may_ask: bool = True) -> list[tuple[str, str]]:
    """Returns (label, text) of everything there is to say of a job."""
    asked = [("asked", _asked_line(job))]
    if job.row.state in WAITING:
        return asked + _pending(job, rooms)
    return asked + (_running(job, settings, may_ask) if job.row.state in RUNNING else _ended(job))


def _head(job: Job) -> str:
    row = job.row
    where = f"partition {','.join(row.partitions)}, QoS {row.qos}"
    if row.state in WAITING:
        return f"Job {row.shown} ({where}) is {row.state.lower()}, submitted {row.submitted}"
    return f"Job {row.shown} ({where}) is {row.state.lower()}, after {row.elapsed}"


def _json(job: Job, rooms: Rooms | None, settings: Settings | None, may_ask: bool) -> dict[str, object]:
    words = _words(job)
    is_waiting = job.row.state in WAITING
    fits, absent = [], ("", "")
    if is_waiting and job.asked is not None and rooms is not None:
        absent = _absent(job)
        need = need_of(job, job.asked)
        may_use = _of_its_reservation(job, candidates(job, rooms))
        fits = [node_json(*place) | {"lacks": _lacking(job, need, *place)} for place in may_use]
    return asdict(job.row) | {
        "why": words.why if is_waiting else "",
        "advice": words.advice if is_waiting else "",
        "asked": asdict(job.asked) | {"request": job.asked.request} if job.asked else None,
        "placed": [{"nodes": nodes, "gpus": gpus} for nodes, gpus in cluster_view.placement(job.record)],
        "may_use": None if rooms is None else fits,
        "powered_down": absent[0],
        "future": absent[1],
        "turns": _turns(job, settings, may_ask) if job.row.state in RUNNING else [],
    }


@command("explain")
@click.argument("job")
@format_option("text", "json", help_text="Text: for people; json: for machines.")
@config_option
def explain(job: str, form: str, config: Path | None) -> None:
    """Why a vGPU job waits or where it runs, what it asked for, and what would fit now.

    For the job's user and root, anywhere with Slurm's commands. JOB is 4711, 4711_3 of an array, or 4711+1 of a
    heterogeneous job. What other jobs hold is shown as sums only.
    """
    if JOB.fullmatch(job) is None:
        raise click.BadParameter(f"{job!r} is no job id such as 4711, 4711_3 or 4711+1", param_hint="'JOB'")
    settings = settings_here(config)
    jobs = read_jobs(job)
    waits = any(part.row.state in WAITING and part.asked is not None for part in jobs)
    try:
        rooms = read_rooms(settings) if waits else []
    except NodeError as error:  # PrivateData=nodes: the rest of the answer is not less true for it
        click.echo(f"what would fit now is not known: {error}", err=True)
        rooms = None
    asked = [part for part in jobs if part.row.state == "RUNNING"][:ASKED_MOST]
    if form == "json":
        click.echo(json.dumps([_json(part, rooms, settings, part in asked) for part in jobs], indent=2))
        return
    for number, part in enumerate(jobs):
        click.echo(("\n" if number else "") + colours.coloured(_head(part), bold=True))
        for label, text in lines_of(part, rooms, settings, part in asked):
            click.echo(f"  {label:9}  {text}")
