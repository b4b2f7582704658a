# SPDX-License-Identifier: Apache-2.0
"""Lets jobs take turns on GPUs whose memory is oversold (docs/adr/080): reads who is there, and writes the orders that
core/residents.py decides into the jobs' records.

It works beside the agent's looks and on what the last one saw. Nothing is kept on disk: after a restart the records say
who is on the GPU, and turns begin anew. While no agent runs everybody stays where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hami_hpc.agent import slices
from hami_hpc.agent.kept_file import KEPT_MAX, KeptFile
from hami_hpc.agent.repeated import Repeated
from hami_hpc.contract import constants as c
from hami_hpc.core import residents, standing, swap
from hami_hpc.core.agent_state import Standing
from hami_hpc.core.grant import Grant
from hami_hpc.core.residents import Order, Tenant
from hami_hpc.core.watch import MIB, Look, Process, SliceKey, by_slice, slice_key
from hami_hpc.node import job_dirs, swapped, turn_notes
from hami_hpc.node.agent_file import now_boot_ns
from hami_hpc.node.config import Settings
from hami_hpc.node.turn_notes import TurnNotes
from hami_hpc.stages import common, turns

PERIOD_S = 0.5  # while somebody is about to leave or to come, and where looks are rarer than decisions
CALM_NS = 1_000_000_000  # else there is a decision in so much time, or at each look
SETTLED_NS = 2_750_000_000  # or, while looks show nothing new, after so much: at each third look
SECOND = 1_000_000_000
MOST_LEFT = 8  # a job is off the GPU that holds no more than such a part of what it was granted
NOTED_SLACK_MIB = 100  # by which NVML's numbers of one process differ from time to time
FEW = 64  # programs of a job that are asked each time; of more, but while they leave, so many each second
OLD_NS = 30 * SECOND  # nothing is decided on what was seen before: NVML hangs. Looks are 10 s apart at most
ESTIMATE_NS = 5 * SECOND
QUIET_NS = 3 * SECOND  # without a sample of NVML's of its work, until a job's own processes are asked


class Known(NamedTuple):
    """What is remembered of a run: its order, since when it is known to be so, when it last used the GPU's time, the
    time that its processes say they used, until when it is not asked to leave, and since when a program of it waits."""

    created_unix_ns: int
    order: int
    since_ns: int
    used_ns: int
    busy_ns: int = 0
    stays_until_ns: int = 0
    asked_ns: int = 0
    why: str = ""  # it could not leave
    words: tuple[swap.Process, ...] = ()  # of its many programs, and until when they are not asked again
    words_until_ns: int = 0
    left_mib: int | None = None  # what it held at least since its memory had left; None: it has not, since the order


class _Told(NamedTuple):
    """Where the jobs of a GPU stand, and when and from what that was worked out."""

    inputs: tuple[object, ...]
    at_ns: int
    standings: list[Standing]


class Place(NamedTuple):
    """What others are shown of a GPU: the level of its pressure, and how many jobs wait for their turn."""

    level: int = 0
    waiting: int = 0


@dataclass
class TurnsTaken:
    """`seen` returns the agent's last look. The clock is replaced in tests."""

    settings: Settings
    seen: Callable[[], Look | None]
    boot_ns: Callable[[], int] = now_boot_ns
    hurry: Callable[[], None] = lambda: None  # has the agent look at once
    # Of jobs whose memory has left: the bytes that they may hold. And what there is to be told of each GPU.
    may_hold: dict[SliceKey, int] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    standings: tuple[Standing, ...] = ()
    is_moving: bool = False  # somebody is about to leave, or to come: looks should be frequent
    _known: dict[int, Known] = field(default_factory=dict)
    _last_look_ns: int = 0
    _inputs: tuple[object, ...] = ()  # of the last look
    _is_settled: bool = False  # at the last decision: who is off the GPU waits for it
    _decided_ns: int = 0
    _said: str = ""
    _own: Mapping[SliceKey, tuple[Process, ...]] = field(default_factory=dict)  # of the look that is decided upon
    _records: dict[int, tuple[Grant, KeptFile]] = field(default_factory=dict)  # by job, of the looks' own grants
    _told: dict[str, _Told] = field(default_factory=dict)  # by GPU
    _notes: TurnNotes = field(init=False)
    _kept: dict[int, Standing] | None = None  # what an earlier agent noted

    def __post_init__(self) -> None:
        self._notes = TurnNotes(self.settings.run_dir)

    def sold_percent(self, model: str) -> int:
        """Returns what Slurm may give of a GPU of the model to slices, percent of its time."""
        return self.settings.gpu_size(model).sold_cores if model in self.settings.gpu_models else 100

    def once(self) -> str:
        """Decides for each GPU, and writes what changes. Returns "", or what is wrong."""
        look, now_ns = self.seen(), self.boot_ns()
        if look is None or now_ns - look.boot_ns > OLD_NS:
            return ""
        if self._kept is None:
            self._kept = self._notes.kept()
        grants = self._remember(look, now_ns)
        may_hold = {key: most for key, most in self.may_hold.items() if key[1] in look.silent}
        places: dict[str, Place] = {}
        given: dict[str, tuple[list[Grant], list[Order]]] = {}
        is_moving = False
        standings = [one for one in self.standings if one.gpu_uuid in look.silent]
        is_settled = True
        for uuid in sorted({grant.gpu_uuid for grant in grants} - look.silent):
            here = [grant for grant in grants if grant.gpu_uuid == uuid]
            tenants = [self._tenant(look, grant, now_ns) for grant in here]
            here_keys = set(map(slice_key, here))
            others = self._used(key for key in self._own if key[1] == uuid and key not in here_keys)
            others += look.unseen.get(uuid, 0) // MIB
            total_mib = here[0].gpu_total_mib
            orders = residents.decide(tenants, total_mib, others, self.settings.turn_s)
            may_hold |= self._may_hold(here)
            waiting = sum(t.wants and t.order in (c.SWAP_TURN, c.SWAP_WAIT) for t in tenants)
            places[uuid] = Place(residents.level(tenants, total_mib, others), waiting)
            leaving = (t for t in tenants if not t.is_on and not t.is_away and not residents.is_late(t))
            is_moving = is_moving or bool(orders) or any(leaving)
            is_settled = is_settled and all(t.is_on or t.wants for t in tenants)
            given |= {uuid: (here, orders)} if orders else {}
            standings += self._standings(here, standing.after(tenants, orders), others, now_ns)
        comes = {order.job_id for _here, orders in given.values() for order in orders}
        # Before those that come may take more.
        self.may_hold = {key: most for key, most in may_hold.items() if key[0] not in comes}
        before, self.standings = {one.job_id: one for one in self.standings}, tuple(standings)
        begins, self.places, self.is_moving = is_moving and not self.is_moving, places, is_moving
        self._is_settled = is_settled
        # Who has left is noted before others have their place, and no more once it may come back itself.
        comes = {
            order.job_id for _here, orders in given.values() for order in orders if order.order in standing.ON_ORDERS
        }
        told = [before.get(one.job_id, one)._replace(left_mib=-1) if one.job_id in comes else one for one in standings]
        self._note(told, grants)
        problems = [self._give(here, orders, now_ns) for here, orders in given.values()]
        if begins:
            self.hurry()
        return next(filter(None, problems), "")

    def _note(self, standings: Iterable[Standing], grants: Iterable[Grant]) -> None:
        uids = {grant.job_id: grant.uid for grant in grants}
        away = [one for one in standings if one.state != standing.ON and one.job_id in uids]
        self._notes.update({one: uids[one.job_id] for one in away})

    def if_due(self) -> str:
        """Does the same, unless nothing is new since the last time, which is not long ago; returns what it returned.
        Nothing is new in a look either that shows the same jobs with the same orders, silent GPUs and memory of each
        job, while each job that is off the GPU waits for it: then only time has passed."""
        look, now_ns = self.seen(), self.boot_ns()
        rest_ns = SETTLED_NS if self._is_settled else CALM_NS
        if self.is_moving or look is None or not 0 <= now_ns - self._decided_ns < rest_ns:
            return self._decide(now_ns)
        if look.boot_ns != self._last_look_ns:
            before = self._inputs
            self._remember(look, now_ns)  # who used the GPU
            if not self._is_settled or self._inputs != before:
                return self._decide(now_ns)
        return self._said

    def _decide(self, now_ns: int) -> str:
        self._decided_ns = now_ns
        self._said = self.once()
        return self._said

    def _used(self, keys: Iterable[SliceKey]) -> int:
        """Returns the MiB that NVML showed of these jobs' processes."""
        return sum(process.used_bytes for key in keys for process in self._own[key]) // MIB

    def _remember(self, look: Look, now_ns: int) -> list[Grant]:
        """Notes each run's order as its record has it now, and whether it used the GPU since the last look. Returns the
        slices that take part in turns."""
        self._own = by_slice(look)
        grants = [one.grant for one in look.slices if one.grant.mode == "share" and one.grant.slice_count == 1]
        busy = {key: sum(p.busy_ns for p in processes) for key, processes in self._own.items()}
        is_new_look = look.boot_ns != self._last_look_ns
        self._last_look_ns = look.boot_ns
        known = {}
        for grant in grants:
            order = self._order_of(grant)
            old = self._known.get(grant.job_id)
            if old is None or old.created_unix_ns != grant.created_unix_ns:
                old = Known(grant.created_unix_ns, order, now_ns, now_ns)
            if old.order != order:
                old = old._replace(order=order, since_ns=now_ns, left_mib=None, words_until_ns=0)
            if is_new_look and busy.get(slice_key(grant), 0):
                old = old._replace(used_ns=now_ns)
            elif order == c.SWAP_IN and now_ns - old.used_ns >= QUIET_NS:
                old = self._heard(grant, old, now_ns)
            known[grant.job_id] = old
        self._known = known
        self._records = {job_id: self._records[job_id] for job_id in known if job_id in self._records}
        used = {key: sum([process.used_bytes for process in own]) for key, own in self._own.items()}
        self._inputs = (grants, [one.order for one in known.values()], look.silent, look.unseen, used)
        return grants

    def _order_of(self, grant: Grant) -> int:
        """Returns the order in a job's record, which stays open while the looks have the same grant: they make another
        one when anything but the orders changed in the job's directory."""
        kept = self._records.get(grant.job_id)
        try:
            if kept is not None and kept[0] is grant:
                return slices.order(kept[1])
            file = KeptFile(f"{job_dirs.job_dir(self.settings.run_dir, grant.job_id)}/{c.FILE_JOB_LIMITS}")
            if len(self._records) < KEPT_MAX:
                self._records[grant.job_id] = grant, file
            return slices.order(file)
        except OSError:  # it has ended meanwhile
            self._records.pop(grant.job_id, None)
            return c.SWAP_NEVER

    def _heard(self, grant: Grant, known: Known, now_ns: int) -> Known:
        """Asks the job's own processes, of which one may use too little for NVML to show. A lie wins a full turn."""
        if now_ns < known.words_until_ns:
            return known
        words = swapped.processes(self.settings.run_dir, grant)
        known = known._replace(words_until_ns=_asked_again_ns(words, now_ns))
        busy_ns = sum(process.busy_ns for process in words)
        if busy_ns == known.busy_ns:
            return known
        return known._replace(busy_ns=busy_ns, used_ns=now_ns)

    def _tenant(self, look: Look, grant: Grant, now_ns: int) -> Tenant:
        known = self._known[grant.job_id]
        processes = self._own.get(slice_key(grant), ())
        used_bytes = sum(process.used_bytes for process in processes)
        own = self._words(grant, known, now_ns) if known.order in swap.OFF else ()
        known = self._known[grant.job_id]
        # NVML's number of before the order says nothing, and a process that has not answered may yet take memory.
        # Once it has left others have its place, so no word of its own brings it back: what it takes is a finding.
        used_mib = -(-used_bytes // MIB)
        known = self._as_noted(grant, known, used_mib)
        is_away = known.left_mib is not None or (
            look.boot_ns > known.since_ns
            and (swap.is_off(known.order, used_bytes, len(processes)) or _has_mostly_left(known, grant, used_bytes))
            and swap.is_done(own, out=True)
        )
        wants = any(process.state == "wanted" for process in own)
        asked_ns = (known.asked_ns or now_ns) if wants else 0
        left_mib = min(used_mib, used_mib if known.left_mib is None else known.left_mib) if is_away else known.left_mib
        if (asked_ns, left_mib) != (known.asked_ns, known.left_mib):
            known = self._known[grant.job_id] = known._replace(asked_ns=asked_ns, left_mib=left_mib)
        return Tenant(
            job_id=grant.job_id,
            mem_mib=grant.mem_mib,
            cores=grant.cores_percent,
            order=known.order,
            since_s=(now_ns - known.since_ns) / SECOND,
            used_mib=used_mib,
            is_away=is_away,
            wants=wants,
            waits_s=(now_ns - known.asked_ns) / SECOND if wants else 0.0,
            idle_s=(now_ns - known.used_ns) / SECOND,
            latency=bool(grant.latency),
            priority=grant.class_priority,
            stays=now_ns < known.stays_until_ns,
            processes=len(processes),
            is_leaving=any(process.state == "leaving" for process in own),
        )

    def _as_noted(self, grant: Grant, known: Known, used_mib: int) -> Known:
        """Returns what is known of a job, with what an earlier agent noted: that its memory had left. That counts where
        it still holds as little; else its programs came back while nobody looked."""
        note = (self._kept or {}).pop(grant.job_id, None)
        if note is None or known.order not in swap.OFF or note.created_unix_ns != grant.created_unix_ns:
            return known
        if note.left_mib < 0 or used_mib > note.left_mib + NOTED_SLACK_MIB:
            return known
        self._known[grant.job_id] = known = known._replace(left_mib=note.left_mib)
        return known

    def _words(self, grant: Grant, known: Known, now_ns: int) -> tuple[swap.Process, ...]:
        """Returns what the programs of a job that leaves, or is away, say. Of one that is away, or should have left by
        now, and has many, what they said some seconds ago: no user makes this work long by processes that all wait."""
        is_late = (now_ns - known.since_ns) / SECOND > swap.seconds_for(grant.mem_mib)
        if now_ns < known.words_until_ns and (known.left_mib is not None or is_late):
            return known.words
        words = tuple(swapped.processes(self.settings.run_dir, grant))
        if len(words) > FEW:
            until_ns = _asked_again_ns(words, now_ns)
            self._known[grant.job_id] = known._replace(words=words, words_until_ns=until_ns)
        return words

    def _standings(
        self, here: Sequence[Grant], tenants: Sequence[Tenant], others_mib: int, now_ns: int
    ) -> list[Standing]:
        """Returns where the jobs of one GPU stand, for people. While only time passes, that is worked out once in
        ESTIMATE_NS."""
        known = {grant.job_id: self._known[grant.job_id] for grant in here}
        moments = {
            job_id: standing.Moment(one.created_unix_ns, one.since_ns, one.asked_ns, one.why, one.left_mib)
            for job_id, one in known.items()
        }
        uuid = here[0].gpu_uuid
        inputs = (others_mib, moments, [standing.timeless(tenant) for tenant in tenants])
        told = self._told.get(uuid)
        if told is not None and told.inputs == inputs and 0 <= now_ns - told.at_ns < ESTIMATE_NS:
            return told.standings
        placed = standing.places(tenants, here[0].gpu_total_mib, others_mib, self.settings.turn_s)
        old = {one.job_id: one for one in self.standings if one.gpu_uuid == uuid}
        found = standing.standings(uuid, tenants, placed, moments, old, now_ns)
        self._told[uuid] = _Told(inputs, now_ns, found)
        return found

    def _give(self, here: Sequence[Grant], orders: Sequence[Order], now_ns: int) -> str:
        """Writes the orders. One that cannot be written is decided upon again. Returns "", or what is wrong."""
        decided_on = {grant.job_id: self._known[grant.job_id].order for grant in here}
        given, problem = turns.give(self.settings, here, orders, decided_on)
        for order in given:
            known = self._known[order.job_id]
            if known.order == c.SWAP_TURN and order.order == c.SWAP_IN and order.why == residents.CANNOT_LEAVE:
                stays_until_ns = now_ns + int(residents.STAYS_S * SECOND)
                why = turns.why_it_stays(self.settings, next(one for one in here if one.job_id == order.job_id))
                known = known._replace(stays_until_ns=stays_until_ns, why=why)
            self._known[order.job_id] = known._replace(
                order=order.order, since_ns=self.boot_ns(), left_mib=None, asked_ns=0, words_until_ns=0
            )
        return problem

    def _may_hold(self, here: Iterable[Grant]) -> dict[SliceKey, int]:
        """Returns the bytes that each job may hold whose memory has left: no call of it can add to the least since."""
        left = {slice_key(grant): self._known[grant.job_id].left_mib for grant in here}
        return {key: mib * MIB for key, mib in left.items() if mib is not None}


def _asked_again_ns(words: Sequence[swap.Process], now_ns: int) -> int:
    """Returns when a job's programs are to be asked again: at once, but for many."""
    return now_ns + len(words) * SECOND // FEW if len(words) > FEW else 0


def _has_mostly_left(known: Known, grant: Grant, used_bytes: int) -> bool:
    """Returns whether a job may be off the GPU that has more than usual there that cannot leave, as arrays and managed
    memory cannot: what it holds counts, and its place is the others'."""
    return known.order in swap.OFF and used_bytes <= grant.mem_mib * MIB // MOST_LEFT


def are_left(settings: Settings) -> bool:
    """Returns whether jobs wait for a turn that began when this node's memory was oversold, or will when root lets them
    come back."""
    off = swap.OFF if turn_notes.are_taken(settings) else (c.SWAP_TURN, c.SWAP_WAIT)
    names = (name for name in job_dirs.entries(settings.run_dir) if name.isascii() and name.isdigit())
    return any(swapped.order_of(settings.run_dir, int(name)) in off for name in names)


def make(taken: TurnsTaken, report: Callable[[str], None]) -> Repeated:
    """Returns the work, which first sees to what a killed agent left: the jobs that are on a GPU know of each other."""

    def see_to_neighbours() -> None:
        ledger = common.open_ledger(taken.settings)
        try:
            common.tell_neighbours("agent", taken.settings, ledger)
        finally:
            ledger.close()

    has_begun = False

    def work() -> str:
        nonlocal has_begun
        if not has_begun:
            see_to_neighbours()
            has_begun = True
        return taken.if_due()

    return Repeated("turns on an oversold GPU", PERIOD_S, work, report)
