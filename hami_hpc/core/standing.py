# SPDX-License-Identifier: Apache-2.0
"""Where each job stands on a GPU whose memory is oversold (core/residents.py): on it, in the row of those that wait, or
away; for people to read. Pure, and nothing of it decides anything.

What is said of a job's neighbours are sums, so that a job's user may see all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hami_hpc.contract import constants as c
from hami_hpc.core.agent_state import Standing
from hami_hpc.core.grant import Grant
from hami_hpc.core.residents import (
    CANNOT_LEAVE,
    Order,
    Room,
    Tenant,
    by_job,
    free_room,
    is_late,
    row_of,
    turn_s,
    victims_for,
)

# Of those that wait on a GPU so many get an estimate: a later one depends on all before it.
ESTIMATED = 4
STATES = ("on", "stays", "leaves", "waits", "room", "away", "out", "suspended")
ON, STAYS, LEAVES, WAITS, ROOM, AWAY, MOVED_OUT, SUSPENDED = STATES


class Place(NamedTuple):
    """The part of a Standing that follows from a GPU's tenants. `due_s` is from now, None where it is not known."""

    state: str
    place: int = 0
    due_s: float | None = None
    lacks_mib: int = 0
    lacks_cores: int = 0


class Moment(NamedTuple):
    """What else a Standing says of one slice."""

    created_unix_ns: int
    since_boot_ns: int  # of its order
    asked_boot_ns: int  # since when a program of it waits; 0: none does
    why: str
    left_mib: int | None = None


TOLD = (WAITS, ROOM, STAYS)  # what ps and top say in a sentence
ON_ORDERS = (c.SWAP_NEVER, c.SWAP_IN)
DUE_NS = 2_000_000_000  # an estimate that changes by less stays as it was


def standings(
    gpu_uuid: str,
    tenants: Sequence[Tenant],
    placed: Mapping[int, Place],
    moments: Mapping[int, Moment],
    old: Mapping[int, Standing],
    now_boot_ns: int,
) -> list[Standing]:
    """Returns where the jobs of one GPU stand; `placed` is what places() returned, `old` what was said before."""
    on_gpu = sum(t.is_on for t in tenants)
    unmovable = sum(t.order == c.SWAP_NEVER or (t.is_on and t.stays) for t in tenants)
    waiting = sum(place.place > 0 for place in placed.values())
    found = []
    for tenant in tenants:
        place, moment = placed[tenant.job_id], moments[tenant.job_id]
        before = old.get(tenant.job_id)
        due_ns = 0 if place.due_s is None else now_boot_ns + int(place.due_s * 1e9)
        if due_ns and before is not None and before.due_boot_ns:
            is_over = max(due_ns, before.due_boot_ns) <= now_boot_ns
            due_ns = before.due_boot_ns if is_over or abs(due_ns - before.due_boot_ns) < DUE_NS else due_ns
        found.append(
            Standing(
                job_id=tenant.job_id,
                created_unix_ns=moment.created_unix_ns,
                gpu_uuid=gpu_uuid,
                state=place.state,
                since_boot_ns=(moment.asked_boot_ns if place.state in (WAITS, ROOM) else 0) or moment.since_boot_ns,
                place=place.place,
                waiting=waiting if place.place else 0,
                due_boot_ns=due_ns,
                on_gpu=on_gpu,
                unmovable=unmovable,
                lacks_mib=place.lacks_mib,
                lacks_cores=place.lacks_cores,
                why=moment.why if place.state == STAYS else "",
                left_mib=-1 if moment.left_mib is None or tenant.is_on else moment.left_mib,
            )
        )
    return found


def after(tenants: Iterable[Tenant], orders: Iterable[Order]) -> list[Tenant]:
    """Returns the tenants as they are when the orders are written."""
    new = by_job(orders)
    return [_with(tenant, new[tenant.job_id]) if tenant.job_id in new else tenant for tenant in tenants]


def _with(tenant: Tenant, order: Order) -> Tenant:
    return tenant._replace(order=order.order, since_s=0.0, stays=tenant.stays or order.why == CANNOT_LEAVE)


def places(tenants: Sequence[Tenant], total_mib: int, others_mib: int, least_turn_s: float) -> dict[int, Place]:
    """Returns where each job of one GPU stands."""
    room = free_room(tenants, total_mib, others_mib)
    leaving = [t for t in tenants if not t.is_on and not t.is_away and not is_late(t)]
    movable = [t for t in tenants if t.order == c.SWAP_IN and not t.stays]
    most = room.after(leaving).after(movable)
    row = row_of(tenants)
    due = _due(row, room.after(leaving), movable, least_turn_s)
    found = {tenant.job_id: Place(_state(tenant)) for tenant in tenants}
    number = 0
    for tenant in row:
        if most.fits(tenant):
            number += 1
            found[tenant.job_id] = Place(WAITS, number, due.get(tenant.job_id))
        else:
            lacks_mib = max(0, max(tenant.mem_mib - tenant.used_mib, 0) - most.mib)
            found[tenant.job_id] = Place(ROOM, 0, None, lacks_mib, max(0, tenant.cores - most.cores))
    return found


def timeless(tenant: Tenant) -> Tenant:
    """Returns what places() goes by, but for how long things have been so."""
    return tenant._replace(since_s=0.0, idle_s=0.0, waits_s=0.0)


def _state(tenant: Tenant) -> str:
    if tenant.is_on:
        return STAYS if tenant.stays else ON
    if tenant.order in (c.SWAP_OUT, c.SWAP_SUSPENDED):
        return MOVED_OUT if tenant.order == c.SWAP_OUT else SUSPENDED
    # One that never began has nothing that could leave.
    return AWAY if tenant.is_away or tenant.order == c.SWAP_WAIT else LEAVES


def _due(row: Sequence[Tenant], room: Room, movable: Sequence[Tenant], least_turn_s: float) -> dict[int, float]:
    """Returns after how many s the turn of the first in the row comes, and of those behind it, if all on the GPU use
    it for as long as they may. What nobody has to leave for comes now."""
    due: dict[int, float] = {}
    now_s, here = 0.0, list(movable)
    most = room.after(here)
    for tenant in row:
        if not most.fits(tenant):
            continue  # it stands in nobody's way
        if len(due) == ESTIMATED:
            break
        gone = victims_for(tenant, room, here, least_turn_s)
        if gone is None:
            waits = sorted({max(0.0, turn_s(max(t.mem_mib, tenant.mem_mib), least_turn_s) - t.since_s) for t in here})
            step_s, gone = _first(tenant, room, here, least_turn_s, waits)
            now_s += step_s
            here = [t._replace(since_s=t.since_s + step_s) for t in here]
        left = {t.job_id for t in gone}
        room = room.after(gone).before(tenant)
        here = [t for t in here if t.job_id not in left]
        here += [tenant._replace(order=c.SWAP_IN, since_s=0.0, idle_s=0.0)] if tenant.order == c.SWAP_TURN else []
        most = room.after(here)
        due[tenant.job_id] = now_s
    return due


def _first(
    tenant: Tenant, room: Room, here: Sequence[Tenant], least_turn_s: float, waits: Sequence[float]
) -> tuple[float, list[Tenant]]:
    """Returns the shortest of the times after which those whose turn is over leave enough, and who leaves. After the
    longest, all may."""
    low, high = 0, len(waits) - 1
    gone = list(here)
    while low <= high:
        middle = (low + high) // 2
        later = [t._replace(since_s=t.since_s + waits[middle]) for t in here]
        found = victims_for(tenant, room, later, least_turn_s)
        if found is None:
            low = middle + 1
        else:
            gone, high = found, middle - 1
    return waits[min(low, len(waits) - 1)], gone


def by_order(grant: Grant, order: int, wants: bool) -> Standing:
    """Returns what a job's record alone says, where no agent has said more; since when is not known."""
    state = {c.SWAP_OUT: MOVED_OUT, c.SWAP_SUSPENDED: SUSPENDED, c.SWAP_TURN: AWAY, c.SWAP_WAIT: AWAY}.get(order, ON)
    state = WAITS if wants and state == AWAY else state
    return Standing(grant.job_id, grant.created_unix_ns, grant.gpu_uuid, state, 0)


def cell(standing: Standing, now_boot_ns: int) -> str:
    """Returns the state in a few characters, for a table: `on 5m`, `waits 2m 1/3`."""
    since = f" {_since(standing, now_boot_ns)}" if standing.since_boot_ns else ""
    at = f" {standing.place}/{standing.waiting}" if standing.place else ""
    return f"{standing.state}{since}{at}"


def _since(standing: Standing, now_boot_ns: int) -> str:
    return short(max(0, now_boot_ns - standing.since_boot_ns) / 1e9)


def counts(standings: Iterable[Standing]) -> str:
    """Returns how many jobs of one GPU are on it, wait, and are away, in a few words; "" for none."""
    states = [one.state for one in standings]
    if not states:
        return ""
    on, waits = sum(states.count(state) for state in (ON, STAYS)), sum(states.count(state) for state in (WAITS, ROOM))
    parts = [f"{on} on it", f"{waits} wait{'s' if waits == 1 else ''}"]
    away = len(states) - on - waits
    return ", ".join([*parts, *([f"{away} away"] if away else [])])


def short(seconds: float) -> str:
    """Returns a duration in one unit: 9s, 5m, 3h, 2d; rounded down."""
    whole = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def text(standing: Standing, now_boot_ns: int) -> str:
    """Returns what the job waits for, or why it is not on the GPU or stays there, in one line; "" for one that is on
    the GPU."""
    since = f" for {_since(standing, now_boot_ns)} now" if standing.since_boot_ns else ""
    if standing.state == WAITS:
        return f"waits for the GPU{since}: {_row(standing)}; {_due_text(standing, now_boot_ns)}"
    if standing.state == ROOM:
        lacks = [f"{standing.lacks_mib:,} MiB"] if standing.lacks_mib else []
        lacks += [f"{standing.lacks_cores} % of the time"] if standing.lacks_cores else []
        return (
            f"waits for room on the GPU{since}: it lacks {' and '.join(lacks) or 'memory'} even without the jobs that "
            f"can be moved. {_jobs(standing.on_gpu)} on the GPU, {standing.unmovable} of which cannot be moved; it "
            "begins when such a job ends"
        )
    return {
        STAYS: f"stays on the GPU{since}, though its turn was over: {standing.why}",
        LEAVES: "its turn is over: its memory leaves the GPU",
        AWAY: f"off the GPU{since}, and no program of it asks for the GPU; when one does, it waits for its turn",
        MOVED_OUT: "moved to the host by an administrator (hami-hpc swap in brings it back)",
        SUSPENDED: "moved to the host until Slurm resumes the job",
    }.get(standing.state, "")


def _row(standing: Standing) -> str:
    if not standing.place:
        return "no agent (hami-hpc agent) decides whose turn it is"
    place = "next" if standing.place == 1 else f"number {standing.place}"
    return f"{place} of {standing.waiting} in the row, {_jobs(standing.on_gpu)} on the GPU"


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def _due_text(standing: Standing, now_boot_ns: int) -> str:
    if not standing.due_boot_ns:
        return "when its turn comes is not known"
    left_s = (standing.due_boot_ns - now_boot_ns) / 1e9
    if left_s <= 0:
        return "its turn comes as soon as others have left"
    return f"its turn comes within {short(left_s + 1)}, or later if more urgent jobs come"


def to_table(standing: Standing, now_boot_ns: int) -> dict[str, object]:
    """Returns the standing for machines: times as s before and from now, None where they are not known."""
    since_s = (now_boot_ns - standing.since_boot_ns) / 1e9 if standing.since_boot_ns else None
    due_s = max(0.0, (standing.due_boot_ns - now_boot_ns) / 1e9) if standing.due_boot_ns else None
    left_out = ("job_id", "created_unix_ns", "gpu_uuid", "since_boot_ns", "due_boot_ns", "left_mib")
    kept = {name: value for name, value in standing._asdict().items() if name not in left_out}
    return {**kept, "since_s": since_s, "due_s": due_s, "text": text(standing, now_boot_ns)}
