# SPDX-License-Identifier: Apache-2.0
"""Whose memory is on a GPU that has less than it has given out (memory_scaling above 1): jobs take turns. Pure.

Who is on the GPU has what it asked for: the memory of all of them fits, and so do their cores. The others wait, with
their memory on the host. At each look `decide` says which orders change; it moves nobody in before the room is there.

Jobs of a class that allows it (`swap = true`) take turns: one that has had its turn, or that does not use the GPU,
leaves for one that waits. Jobs of other classes are never moved. One that arrives waits for as long as those that can
be moved need to leave; one for which even that is not enough waits until others end, and stands in nobody's way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.swap import seconds_for

CORES_OF_GPU = 100
# Part of the GPU's memory that is in use, percent, and for how long a job may keep its memory then without using the
# GPU, s. The last also holds as soon as somebody waits.
PRESSURE = ((75, 600.0), (85, 60.0), (95, 10.0))
# A turn lasts so many s for each GiB: to leave and to come back takes 0.1 s (docs/benchmarks/suspend.md), which is 3 %.
TURN_S_PER_GIB = 3.0
STAYS_S = 600.0  # for which a job that could not leave is not asked again
CANNOT_LEAVE = "it cannot leave"
SLOW_HOST = 3  # times as long for a job whose memory is being copied
ON = (c.SWAP_NEVER, c.SWAP_IN)


class Tenant(NamedTuple):
    """A job with a slice of the GPU. `order` is the one of its record, `since_s` for how long that has been so.

    `used_mib` is what NVML shows of its processes, `is_away` whether all of its memory has left that can leave.
    `wants`: a program of it waits for the GPU. `idle_s`: since it last used the GPU's time. `stays`: it could not leave
    a short while ago.
    """

    job_id: int
    mem_mib: int
    cores: int
    order: int
    since_s: float
    used_mib: int = 0
    is_away: bool = False
    wants: bool = False
    idle_s: float = 0.0
    latency: bool = False
    priority: int = 0
    stays: bool = False
    processes: int = 1  # of which NVML shows memory
    waits_s: float = 0.0  # for how long a program of it has waited
    is_leaving: bool = False  # a program of it says that its memory is being copied

    @property
    def is_on(self) -> bool:
        return self.order in ON

    @property
    def held_mib(self) -> int:
        """The memory that nobody else can have: until its memory has left, all that it was granted."""
        return self.used_mib if self.is_away and not self.is_on else max(self.mem_mib, self.used_mib)

    @property
    def held_cores(self) -> int:
        return self.cores if self.is_on or not self.is_away else 0


class Order(NamedTuple):
    """What a job's record is to say, and why."""

    job_id: int
    order: int
    why: str


def first_order(grant: Grant, live: Iterable[Grant], order: int) -> int:
    """Returns the order with which a job begins: `order` where there is room for it and for all others, wherever their
    memory is now; else the one by which its programs wait until the agent has seen to room for them.

    The job is in the ledger already when `live` is read. So of two that begin at once at least one sees the other.
    """
    here = [one for one in live if one.gpu_uuid == grant.gpu_uuid and one.job_id != grant.job_id] + [grant]
    mem_mib, cores = sum(one.mem_mib for one in here), sum(one.cores_percent for one in here)
    if mem_mib <= grant.gpu_total_mib and cores <= CORES_OF_GPU:
        return order
    return c.SWAP_WAIT if order == c.SWAP_NEVER else c.SWAP_TURN


def level(tenants: Iterable[Tenant], total_mib: int, others_mib: int = 0) -> int:
    """Returns how many of the limits in PRESSURE the memory in use has reached: 0 to 3."""
    used = others_mib + sum(tenant.used_mib for tenant in tenants)
    return sum(100 * used >= percent * total_mib for percent, _ in PRESSURE)


def turn_s(mem_mib: int, least_s: float) -> float:
    """Returns how long the turn of a job lasts at least when others wait."""
    return max(least_s, TURN_S_PER_GIB * mem_mib / 1024)


def decide(tenants: Sequence[Tenant], total_mib: int, others_mib: int, least_turn_s: float) -> list[Order]:
    """Returns the orders that change on one GPU. `others_mib` is the memory of processes that are no tenant's."""
    # Where others have its place it had left, whatever it says now, and waits for its turn.
    has_place = free_room(tenants, total_mib, others_mib).is_enough
    orders = [
        Order(tenant.job_id, c.SWAP_IN, CANNOT_LEAVE)
        for tenant in tenants
        if has_place and tenant.order == c.SWAP_TURN and not tenant.is_away and is_late(tenant)
    ]
    returned = {order.job_id for order in orders}
    tenants = [t._replace(order=c.SWAP_IN, stays=True) if t.job_id in returned else t for t in tenants]
    # Its record was lost and made again while it was on the GPU, where nobody else has its place.
    orders += [Order(t.job_id, c.SWAP_NEVER, "it is there") for t in tenants if has_place and _is_there(t)]
    room = free_room(tenants, total_mib, others_mib)
    # One that an administrator or Slurm sent away, and that has not left by now, may never leave.
    leaving = [
        t
        for t in tenants
        if t.order in (c.SWAP_OUT, c.SWAP_SUSPENDED, c.SWAP_TURN) and not t.is_away and not is_late(t)
    ]
    coming = row_of(tenants)
    movable = [t for t in tenants if t.order == c.SWAP_IN and not t.stays]
    gone: set[int] = set()
    is_blocked = False
    others_leave = NO_ROOM.after(leaving).after(movable)  # what there is then beside the room
    for tenant in coming:
        if not room.plus(others_leave).fits(tenant):
            continue  # it waits until others end
        if room.fits(tenant):
            is_new = tenant.order == c.SWAP_WAIT
            orders.append(Order(tenant.job_id, c.SWAP_NEVER if is_new else c.SWAP_IN, "the GPU has room for it"))
            room = room.before(tenant)
            continue
        victims = victims_for(tenant, room.after(leaving), movable, least_turn_s)
        if victims is None:
            is_blocked = True
            break  # the next in the row would take what it waits for
        orders += [Order(victim.job_id, c.SWAP_TURN, f"for job {tenant.job_id}") for victim in victims]
        gone.update(victim.job_id for victim in victims)
        leaving += victims
        break
    limits = [PRESSURE[-1]] if is_blocked else PRESSURE[: level(tenants, total_mib, others_mib)]
    idle_s = min((seconds for _, seconds in limits), default=math.inf)
    idle = [t for t in movable if t.job_id not in gone and t.idle_s >= idle_s and t.since_s >= idle_s and t.used_mib]
    return orders + [Order(t.job_id, c.SWAP_TURN, "it does not use the GPU") for t in idle]


class Room(NamedTuple):
    """What nobody holds."""

    mib: int
    cores: int

    @property
    def is_enough(self) -> bool:
        return self.mib >= 0 and self.cores >= 0

    def fits(self, tenant: Tenant) -> bool:
        return max(tenant.mem_mib - tenant.used_mib, 0) <= self.mib and tenant.cores <= self.cores

    def before(self, tenant: Tenant) -> Room:
        """Returns what is left when it has come."""
        return Room(self.mib - max(tenant.mem_mib - tenant.used_mib, 0), self.cores - tenant.cores)

    def plus(self, more: Room) -> Room:
        return Room(self.mib + more.mib, self.cores + more.cores)

    def minus(self, less: Room) -> Room:
        return Room(self.mib - less.mib, self.cores - less.cores)

    def after(self, tenants: Iterable[Tenant]) -> Room:
        """Returns what there is when they have left, but for what stays of them."""
        tenants = tuple(tenants)
        mib = sum(t.held_mib - min(t.used_mib, LEFT_OF_ONE_MIB * max(t.processes, 1)) for t in tenants)
        return Room(self.mib + mib, self.cores + sum(t.held_cores for t in tenants))


NO_ROOM = Room(0, 0)


def free_room(tenants: Iterable[Tenant], total_mib: int, others_mib: int) -> Room:
    """Returns what nobody holds of a GPU."""
    tenants = tuple(tenants)
    return Room(
        total_mib - others_mib - sum(tenant.held_mib for tenant in tenants),
        CORES_OF_GPU - sum(tenant.held_cores for tenant in tenants),
    )


LEFT_OF_ONE_MIB = 700  # what stays of a job with one process, as far as is known before it has left


def row_of(tenants: Iterable[Tenant]) -> list[Tenant]:
    """Returns those that wait for the GPU, the next one first."""
    return sorted((t for t in tenants if t.order in (c.SWAP_TURN, c.SWAP_WAIT) and t.wants and t.is_away), key=_place)


def _place(tenant: Tenant) -> tuple[bool, bool, float, int]:
    """Returns the place in the row: those that are never moved first, of these the latency-critical; then who has
    waited longest, where the wait of a class with a higher priority counts more."""
    is_new = tenant.order == c.SWAP_WAIT
    return not is_new, not (is_new and tenant.latency), -tenant.waits_s * (1 + tenant.priority), tenant.job_id


def victims_for(tenant: Tenant, room: Room, movable: Sequence[Tenant], least_turn_s: float) -> list[Tenant] | None:
    """Returns who leaves so that there is room for the tenant: nobody where enough are about to leave anyway. None when
    those that have not had their turn yet would have to."""
    is_new = tenant.order == c.SWAP_WAIT
    may = [
        t for t in movable if is_new or t.since_s >= turn_s(max(t.mem_mib, tenant.mem_mib), least_turn_s) or _is_idle(t)
    ]
    may.sort(key=lambda t: (not _is_idle(t), t.priority, t.since_s if is_new else -t.since_s, -t.job_id))
    victims: list[Tenant] = []
    while not room.fits(tenant):
        if not may:
            return None
        victims.append(may.pop(0))
        room = room.after(victims[-1:])
    needed = []
    for victim in victims:  # those that are not needed after all stay
        without = room.minus(NO_ROOM.after((victim,)))
        if without.fits(tenant):
            room = without
        else:
            needed.append(victim)
    return needed


def _is_there(tenant: Tenant) -> bool:
    return tenant.order == c.SWAP_WAIT and not tenant.is_away and is_late(tenant)


def is_late(tenant: Tenant) -> bool:
    """Returns whether its order is older than leaving takes; a host that copies slowly, or has to find its pages first,
    may take a few times as long."""
    return tenant.since_s > seconds_for(tenant.mem_mib) * (SLOW_HOST if tenant.is_leaving else 1)


def _is_idle(tenant: Tenant) -> bool:
    return min(tenant.idle_s, tenant.since_s) >= PRESSURE[-1][1]


def by_job(orders: Iterable[Order]) -> Mapping[int, Order]:
    return {order.job_id: order for order in orders}
