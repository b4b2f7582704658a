# SPDX-License-Identifier: Apache-2.0
"""Who on a GPU gives way to whom: what each job is told about the others there. Pure.

Jobs divide a common period into turns. They keep to them while a latency-critical job is on the GPU, which then waits
for at most one timeslice of another job, and where sharing by timeslices serves somebody badly
(native/interposer/arbitration/slice.h).

A job with mode=mps is a client of an MPS server, which has the GPU's time and gives its clients multiprocessors. So
all clients of one server are one tenant with all their cores: the server's timeslice follows from them, and its turn
while somebody latency-critical is on the GPU; else it has none. Nothing keeps it to a class's floor: its jobs are never
counted as latency-critical.

A job with mode=mig has a MIG instance to itself, with compute units of its own: nobody is beside it.

Several latency-critical jobs leave the others the floor of their classes together: those that use more than their
shares, or have work nearly always, keep to a turn of their own period, outside of which all of them are paused.

A latency-critical job that wants more than its cores may be treated as any other, until it does not
(core/latency_beyond.py).

Latency-critical jobs have an order: higher priority of the class first, then the shorter slo; a job without one has the
longest. Equal ones have none. A job that others come before has short timeslices
(native/interposer/arbitration/terms.c).
"""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.grant import Grant
from hami_hpc.core.in_step import slices_beside
from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

PERIOD_PERMILLE = 1000
# native/interposer/arbitration/terms.c: the timeslice that follows from cores; and the driver's own, of policy none.
TIMESLICE_US_PER_CORE = 450
DRIVERS_TIMESLICE_US = 2048
ALONE = frozenset({"mig"})  # modes whose jobs share no compute units with others
BY_SERVER = frozenset({"mps"})  # modes whose jobs have the time of a server


class Turn(NamedTuple):
    """What a job is told about the others on its GPU. Permille of the common period, or of a latency-critical job's own
    (HAMI_LEFT_EVERY_NS); length 0 means always open.

    The names are those of the limits record's fields.
    """

    latency_others: int
    turn_begin_permille: int
    turn_length_permille: int
    others_least_cores: int
    others_capped: int
    latency_above: int
    beside_slice_us: int = 0
    step_begin_permille: int = 0
    latency_cores: int = 0
    server_cores: int = 0
    latency_beyond: int = 0
    only_other_cores: int = 0


NOBODY_BESIDE = Turn(0, 0, 0, 0, 0, 0)


def make_turns(
    live: Iterable[Grant],
    one_server: bool = False,
    begins: Mapping[int, int] | None = None,
    beyond: Collection[int] = (),
) -> dict[int, Turn]:
    """Returns the turn of each job, by job id, from the live grants of one GPU.

    Latency-critical jobs have one where they are several, beside others. Jobs that are not latency-critical and keep to
    turns have some when they are at least two. Each turn is in proportion to the job's cores, in the order of job ids;
    together they fill the period exactly. `one_server`: all users of the GPU share one MPS server (multi_user in
    [mps]). `begins` are those of make_begins, of the whole node. `beyond`: latency-critical jobs that want more than
    their cores. Where others are on the GPU they are treated as any other, with the timeslice of their cores.
    """
    live = tuple(live)
    if sum(grant.mode not in ALONE for grant in live) < 2:
        beyond = ()
    as_others = {grant.job_id for grant in live if is_latency(grant) and grant.job_id in beyond}
    live = [one._replace(latency=0, slice_us=0) if one.job_id in as_others else one for one in live]
    everybody = sorted(live, key=lambda grant: grant.job_id)
    grants = [grant for grant in everybody if grant.mode not in ALONE]
    latency_count = sum(is_latency(grant) for grant in grants)
    least = _least_of_others(grants, one_server)
    only = _only_others(grants, one_server)
    above = _above(grants)
    cap_count = sum(grant.policy == "cap" for grant in grants)
    beside = slices_beside(grants)
    servers = _cores_of_servers(grants, one_server)
    turns = {
        grant.job_id: Turn(
            latency_others=latency_count - is_latency(grant),
            turn_begin_permille=0,
            turn_length_permille=0,
            others_least_cores=least[grant.job_id],
            others_capped=cap_count - (grant.policy == "cap"),
            latency_above=above[grant.job_id],
            beside_slice_us=beside[grant.job_id],
            step_begin_permille=(begins or {}).get(grant.job_id, 0),
            server_cores=servers.get(_tenant(grant, one_server), 0),
            latency_beyond=int(grant.job_id in as_others),
            only_other_cores=only[grant.job_id],
        )
        for grant in grants
    }
    turns |= {grant.job_id: NOBODY_BESIDE for grant in everybody if grant.mode in ALONE}
    others: dict[tuple[str, int], list[Grant]] = {}  # by tenant, in the order of the first job
    for grant in grants:
        if not is_latency(grant) and (latency_count or grant.mode not in BY_SERVER):
            others.setdefault(_tenant(grant, one_server), []).append(grant)
    if len(grants) > latency_count > 1:
        latency_cores = sum(grant.cores_percent for grant in grants if is_latency(grant) and grant.floor_percent)
        for grant in grants:
            if is_latency(grant) and grant.floor_percent:
                length = PERIOD_PERMILLE - 10 * grant.floor_percent
                turns[grant.job_id] = turns[grant.job_id]._replace(
                    turn_length_permille=length, latency_cores=latency_cores
                )
    if not 2 <= len(others) <= PERIOD_PERMILLE:
        return turns
    cores = [sum(grant.cores_percent for grant in jobs) for jobs in others.values()]
    # Rounding would leave a small job nothing among very many: then each has one permille before the rest is divided.
    share_least = int(any(percent * PERIOD_PERMILLE < sum(cores) for percent in cores))
    divided = PERIOD_PERMILLE - share_least * len(others)
    begin = percent_so_far = 0
    for i, (jobs, percent) in enumerate(zip(others.values(), cores, strict=True), start=1):
        percent_so_far += percent
        end = share_least * i + divided * percent_so_far // sum(cores)
        turns |= {
            grant.job_id: turns[grant.job_id]._replace(turn_begin_permille=begin, turn_length_permille=end - begin)
            for grant in jobs
        }
        begin = end
    return turns


def is_latency(grant: Grant) -> bool:
    """Returns whether the others on its GPU give way to this job, while it does not want more than its cores."""
    return bool(grant.latency) and grant.mode not in BY_SERVER and grant.mode not in ALONE


def cores_of_tenants(grants: Iterable[Grant], one_server: bool = False) -> dict[int, int]:
    """Returns, by job id, its cores, or those of all jobs of its MPS server, percent: what its time is to be held
    against. `one_server` is as in make_turns."""
    grants = tuple(grants)
    servers = _cores_of_servers(grants, one_server)
    return {grant.job_id: servers.get(_tenant(grant, one_server), grant.cores_percent) for grant in grants}


def _above(grants: Iterable[Grant]) -> dict[int, int]:
    """Returns, by job id, how many latency-critical jobs come before a latency-critical one; 0 for all others."""
    above: dict[tuple[int, int], int] = {}
    for i, rank in enumerate(sorted(_rank(grant) for grant in grants if is_latency(grant))):
        above.setdefault(rank, i)
    return {grant.job_id: above[_rank(grant)] if is_latency(grant) else 0 for grant in grants}


def _rank(grant: Grant) -> tuple[int, int]:
    """Returns the place of a latency-critical job, the least first: the class's priority, then the shortest slo."""
    return -grant.class_priority, grant.slo_us or c.SLO_US_MAX + 1


def _least_of_others(grants: Sequence[Grant], one_server: bool) -> dict[int, int]:
    """Returns, by job id, the fewest cores of another tenant; 0 without one. Timeslices follow from cores, but not
    those of MPS servers among themselves: a small one would have little time, and few multiprocessors in it.
    """
    slices = {grant.job_id: _timeslice_in_cores(grant) for grant in grants if grant.mode not in BY_SERVER}
    tenants = {("job", job_id): cores for job_id, cores in slices.items()} | _cores_of_servers(grants, one_server)
    two_least = sorted(tenants.items(), key=lambda pair: pair[1])[:2]
    return {
        grant.job_id: min(slices.values(), default=0)
        if grant.mode in BY_SERVER
        else next((value for tenant, value in two_least if tenant != _tenant(grant, one_server)), 0)
        for grant in grants
    }


def _only_others(grants: Sequence[Grant], one_server: bool) -> dict[int, int]:
    """Returns, by job id, the cores of the only other tenant, if its timeslice follows from them; else 0."""
    cores = {
        _tenant(one, one_server): one.cores_percent * (one.policy != "none" and not one.slice_us) for one in grants
    }
    cores |= _cores_of_servers(grants, one_server)
    both = sum(cores.values())
    return {one.job_id: both - cores[_tenant(one, one_server)] if len(cores) == 2 else 0 for one in grants}


def _cores_of_servers(grants: Iterable[Grant], one_server: bool) -> dict[tuple[str, int], int]:
    """Returns the cores of all jobs of each MPS server, at most 100 percent, by tenant."""
    cores: dict[tuple[str, int], int] = {}
    for grant in grants:
        if grant.mode in BY_SERVER:
            tenant = _tenant(grant, one_server)
            cores[tenant] = min(100, cores.get(tenant, 0) + grant.cores_percent)
    return cores


def _tenant(grant: Grant, one_server: bool) -> tuple[str, int]:
    """Returns whose timeslices a job has: its own, or those of its MPS server."""
    if grant.mode not in BY_SERVER:
        return "job", grant.job_id
    return grant.mode, 0 if one_server else grant.uid


def _timeslice_in_cores(grant: Grant) -> int:
    """Returns the cores from which a job's timeslice follows, or would follow."""
    if grant.policy == "none":
        return DRIVERS_TIMESLICE_US // TIMESLICE_US_PER_CORE
    if grant.slice_us:
        return min(100, max(1, grant.slice_us // TIMESLICE_US_PER_CORE))
    return grant.cores_percent
