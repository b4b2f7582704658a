# SPDX-License-Identifier: Apache-2.0
"""Tenants of the simulated GPU (gpu_time.py): what they do, and their keepers.

What keepers do follows native/interposer/limits/share.c and region/budget.c; their rules are the compiled ones, called
through tests/native/arbitration.py. A keeper's jitter comes from the tenant's number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import arbitration as a
import fitting
import using

US, MS, S = 1000, 1_000_000, 1_000_000_000
FOREVER = a.FOREVER

# Of an H200: docs/time-study.md says from which measurements. `full`: the context had the chip full of work.
SAVE_NS = {True: 157_600, False: 10_000}
LOAD_NS = {True: 75_000, False: 22_400}
# From the beginning of a call until it takes effect, and until it returns.
PAUSE_NS, PAUSE_CALL_NS = 550 * US, 700 * US
RESUME_NS, RESUME_CALL_NS = 420 * US, 450 * US
DRIVERS_TIMESLICE_US = 2048

# share.c
SAMPLE_NS_MOST, SAMPLE_NS_LEAST, SAMPLE_NS_UNCAPPED = 2 * MS, MS // 2, 10 * MS
FIT_NS = a.ROUND_NS * 3 // 4
IDLE_NS, REST_NS, SLEEP_NS_LEAST = 100 * MS, 100 * MS, MS // 20
TOLD_PAUSED_NS = 5 * MS  # meter.c: a paused process is off the engine, whatever was told
CONTENDED_NS = 2 * a.ROUND_NS  # how long a tenant that others interrupted counts as contended


@dataclass(frozen=True)
class Load:
    """What a tenant does: always has work, or requests (arrival ns, length ns) served in order."""

    saturating: bool = False
    think: tuple[int, int] = (0, 0)  # works for the first, then waits for the second, ns
    plan: Callable[[int], tuple[int, int]] | None = None  # the same, as of the time
    requests: Sequence[tuple[int, int]] = ()
    full: bool = True

    def piece(self, now: int) -> tuple[int, int]:
        """Returns how long it works next, and how long it waits after that, ns; (0, 0): it has requests instead."""
        return self.plan(now) if self.plan else self.think


@dataclass
class Tenant:
    """A tenant of one process, or one process of a job. `slice_us`: instead of the timeslice of its terms."""

    terms: a.Terms
    load: Load
    job: str = ""  # its processes share a budget and divide a timeslice; "": it is of one process
    slice_us: int | None = None
    dies_ns: int = FOREVER
    keeper_stops_ns: int = FOREVER  # SIGSTOP, or a tenant that runs without a keeper
    forges_credit: bool = False  # writes itself a full budget before each look
    # The rest is the simulation's.
    number: int = 0
    processes: int = 1
    rank: int = 0  # among them
    left_ns: int = 0
    pending: list[tuple[int, int]] = field(default_factory=list)  # (arrival, length), the first is at work
    head: int = 0
    open: bool = True
    alive: bool = True
    worked_ns: int = 0
    waits_ns: list[int] = field(default_factory=list)  # per request: done less arrival less length
    switches: list[tuple[int, bool]] = field(default_factory=list)
    shut_ns: list[int] = field(default_factory=list)  # lengths of pauses

    slice: fitting.Slice = field(default_factory=fitting.Slice)
    greed: fitting.Greed = field(default_factory=fitting.Greed)
    set_ns: int = 0  # the timeslice that its keeper gave its channels; 0: it has none

    @property
    def slice_ns(self) -> int:
        return self.set_ns or self.wanted_ns

    @property
    def wanted_ns(self) -> int:
        terms = replace(self.terms, greedy=self.greed.greedy)
        longest = terms.timeslice_us(self.sharers)
        us = self.slice.timeslice_us(longest) if self.slice_us is None else self.slice_us
        return (us or DRIVERS_TIMESLICE_US) * US

    @property
    def sharers(self) -> float:
        """How many processes divide a timeslice, all of which use all of theirs."""
        return self.terms.sharers((self.rank, self.processes), a.FULL * self.processes) / a.FULL

    def has_work(self) -> bool:
        return self.alive and (self.load.saturating or self.head < len(self.pending))


class Keeper:
    """The thread that measures, and pauses or opens: share.c."""

    def __init__(self, tenants: Sequence[Tenant], number: int, budget: a.Budget, stays: Sequence[tuple[int, int, int]]):
        self.tenant, self.budget = tenants[number], budget
        tenant = self.tenant
        self.of_job = {t.number for t in tenants if tenant.job and t.job == tenant.job} | {number}
        self.costed, self.pause_ns = 0, 0  # stays that were looked at, and a pause that is not paid for
        self.stays, self.stays_told = stays, 0
        self.between: list[tuple[int, bool]] = []  # of the others' stays since the own one: length, left much
        self.own_stay = FOREVER
        self.fitted, self.fit_used, self.fit_held_back = 0, 0, False
        self.fit_samples: list[tuple[int, bool]] = []
        self.cap = tenant.terms.cap()
        self.use = using.Use(0)
        self.samples: list[tuple[int, bool]] = []
        self.told = 0
        self.shut = False
        self.change = self.counted = self.sampled = self.busy = 0
        self.gap = SAMPLE_NS_MOST
        self.open, self.closed, self.resting, self.on = True, 0, False, True
        self.opened, self.interrupted, self.held_back = 0, -CONTENDED_NS, False
        self.random = 2 * tenant.number + 1
        self.next = 0  # look
        self.tenant.set_ns = self.tenant.wanted_ns
        self.due = FOREVER  # when the channels get the timeslice that is wanted; FOREVER: they have it

    def needed(self) -> bool:
        """Whether it can ever pause: else nothing of it is simulated."""
        terms = self.tenant.terms
        in_turns = 0 < terms.turn_length < 1000 or self.tenant.processes > terms.at_once()
        return self.cap < 100 or in_turns or self.fits()

    def fits(self) -> bool:
        t = self.tenant
        return t.slice_us is None and t.terms.others_timeslice_us() > 0

    def _jittered(self) -> int:
        x = self.random
        x = (x ^ x << 13) & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 7
        self.random = (x ^ x << 17) & 0xFFFFFFFFFFFFFFFF
        return self.gap // 2 + self.random % self.gap

    def _count_gap(self) -> int:
        """How long, ns, until the next count at most."""
        uses = self.open or self.counted - self.closed < a.COUNT_NS_SEVERAL
        return a.COUNT_NS_SEVERAL if uses and self.tenant.processes > 1 else a.ROUND_NS

    def _count(self, now: int) -> None:
        switches = self.tenant.switches[self.told :]
        self.on = switches[-1][1] if switches else self.on
        for at, on in switches:  # others took the engine, or it waited for them: it was open
            taken = not on or (self.tenant.terms.has_long_rounds() and self._after_others(at))
            if taken and (self.open or at < self.closed) and at - self.opened > TOLD_PAUSED_NS:
                self.interrupted = at
        if self.on and not self.open and now - self.closed > TOLD_PAUSED_NS:
            switches.append((self.closed + TOLD_PAUSED_NS, False))
            self.on = False
        since, samples = self.counted, self.samples
        used = self.use.count(switches, samples, now, self._after_others)
        self.arrived = [at for at, on in switches if on and self._after_others(at)]
        self.told, self.samples = len(self.tenant.switches), []
        self.counted = now
        self.held_back = self.shut
        if self.cap >= 100:
            self.change, self.gap = now + S, SAMPLE_NS_UNCAPPED
        else:
            self._spend(since, now, used + (self._costs(since, now, used) if self.tenant.terms.latency else 0))
        self.fit_used += used
        self.fit_samples += samples
        self.fit_held_back = self.fit_held_back or self.held_back
        if self.tenant.terms.latency and self.tenant.terms.latency_others and now - self.fitted >= FIT_NS:
            working = sum(yes for _, yes in self.fit_samples)
            share, count = self.tenant.terms.latency_share(), len(self.fit_samples)
            others = sum(left - came for who, came, left in self.stays[self.stays_told :] if who not in self.of_job)
            self.stays_told = len(self.stays)
            cores = self.tenant.terms.cores_percent
            self.tenant.greed.step(now - self.fitted, self.fit_used, share, cores, count, working, others)
            self.fitted, self.fit_used, self.fit_samples = now, 0, []
            self._set_timeslice(now)
        elif self.fits() and self._fit_is_due(now):
            mode = self.tenant.slice.mode
            self._fit(now)
            if self.tenant.slice.mode != mode:
                self.due = now
            self._set_timeslice(now)
        elif now >= self.due:
            self._set_timeslice(now)

    def _fit_is_due(self, now: int) -> bool:
        enough = now - self.fitted >= FIT_NS and self.due == FOREVER
        return enough or now >= self.tenant.slice.next_ns(self.fitted)

    def _set_timeslice(self, now: int) -> None:
        """Gives the channels the timeslice that is wanted, at the next instant for that."""
        wanted = self.tenant.wanted_ns
        if wanted == self.tenant.slice_ns:
            self.due = FOREVER
            return
        if self.due == FOREVER:
            self.due = fitting.instant_ns(now)
        if now >= self.due:
            self.tenant.set_ns, self.due = wanted, FOREVER

    def _after_others(self, at: int) -> bool:
        before = (who for who, _, left in reversed(self.stays) if left <= at)
        return next(before, self.tenant.number) not in self.of_job

    def _costs(self, since: int, now: int, used: int) -> int:
        """Returns what it cost others, who give way, that it was on the engine, ns."""
        theirs = (left - came for who, came, left in self.stays[self.costed :] if who != self.tenant.number)
        others = sum(map(using.of_stay, theirs))
        self.costed = len(self.stays)
        paused = self.pause_ns if self.arrived and self.open else 0
        self.pause_ns -= paused
        on, own = self.use.there_ns, self.tenant.slice_ns
        return using.costs(len(self.arrived), used, others, now - since, on_ns=on, paused_ns=paused, slice_ns=own)

    def _spend(self, since: int, now: int, used: int) -> None:
        """Takes what was used from the budget."""
        budget = self.budget
        if self.tenant.forges_credit:
            budget.full_at = 0
        budget.use(since, now, used)
        contended = now - self.interrupted < CONTENDED_NS
        self.shut = budget.decide(contended)
        self.held_back = self.held_back or self.shut
        self.change = now + min(S, a.budget_wait(budget.credit, self.shut, self.cap, contended))
        self.gap = max(SAMPLE_NS_LEAST, min(SAMPLE_NS_MOST, a.budget_half(self.cap) // 4))

    def _fit(self, now: int) -> None:
        """Shortens or lengthens the timeslice, by what was seen of the others."""
        tenant = self.tenant
        longest, others = tenant.terms.timeslice_us(tenant.sharers), tenant.terms.others_timeslice_us()
        others = min(others, longest) if tenant.processes > 1 else others
        theirs = tenant.slice.others_ns(others)
        own = tenant.slice_ns
        time_of_others = worked = unused = tiny = returns = met = pressed = thrashed = 0
        for who, came, left in self.stays[self.stays_told :]:
            if who != tenant.number:
                left_over = fitting.slice_unused(left - came, theirs)
                time_of_others += left - came
                worked += fitting.slice_worked(left - came, others * US)
                unused += left_over
                tiny += left - came < fitting.slice_tiny_ns(theirs)
                self.between.append((left - came, left_over >= fitting.MUCH))
                continue
            returns += 1
            cut = own * 3 // 4 <= self.own_stay <= own * 5 // 4 + using.SAVE_NS
            met += cut and any(much for _, much in self.between)
            pressed += cut and bool(self.between) and all(much for _, much in self.between)
            tiny_only = (
                bool(self.between) and max(self.own_stay, *(stay for stay, _ in self.between)) < fitting.THRASH_NS
            )
            thrashed += tiny_only and not cut
            self.own_stay, self.between = left - came, []
        self.stays_told = len(self.stays)
        outstanding = sum(yes for _, yes in self.fit_samples)
        seen = fitting.Seen(
            now_ns=now,
            elapsed_ns=now - self.fitted,
            used_ns=self.fit_used,
            begun_ns=now - self.use.came_ns if self.use.came_ns and tenant.processes == 1 else 0,
            begun_used_ns=self.use.used_ns,
            caps=tenant.terms.others_capped + (self.cap < 100),
            capped=self.cap < 100,
            others_least_percent=tenant.terms.others_least_percent,
            other_percent=tenant.terms.other_percent(tenant.sharers),
            held_back=self.fit_held_back,
            samples=len(self.fit_samples),
            outstanding=outstanding,
            others_ns=time_of_others,
            worked=worked,
            unused=unused,
            tiny=tiny,
            returns=returns,
            met=met,
            pressed=pressed,
            thrashed=thrashed,
        )
        tenant.slice.step(seen, tenant.terms.cores_percent, longest)
        self.fitted, self.fit_used, self.fit_samples, self.fit_held_back = now, 0, [], False

    def look(self, now: int) -> tuple[int, bool]:
        """Returns when to look again, and whether the tenant's channels have to be open."""
        if self.resting:
            if not self.tenant.has_work():
                self._begin(now)
                return now + REST_NS, True
            self.resting = False
            self._works(now)
        if self.open and now >= self.sampled:
            work = self.tenant.has_work()
            self.samples.append((now, work))
            self.busy = now if work else self.busy
            self.sampled = now + self._jittered()
        due = now >= min(self.due, self.tenant.slice.next_ns(self.fitted))
        if now >= self.change or now - self.counted >= self._count_gap() or due:
            self._count(now)
        tenant = self.tenant
        yields = tenant.greed.yields if tenant.terms.latency else tenant.slice.yields
        turn, until = tenant.terms.turn(now, yields, tenant.slice.longer_ns)
        part, part_ends = tenant.terms.part(tenant.rank, tenant.processes, now)
        opened, self.open = self.open, not self.shut and turn and part
        if opened and not self.open:
            self.closed = now
        if self.open and not opened:
            self.tenant.shut_ns.append(now - self.closed)
            self.pause_ns = now - self.closed
            self.busy = self.opened = now
        if self.open and now - self.busy > IDLE_NS:
            self._count(now)
            self.resting = True
            return now + REST_NS, True
        fit = min(self.due, tenant.slice.next_ns(self.fitted))
        following = min(self.change, self.counted + self._count_gap(), until, part_ends, fit)
        if self.open:
            following = min(following, self.sampled)
        call = 0 if opened == self.open else RESUME_CALL_NS if self.open else PAUSE_CALL_NS
        return max(following, now + call + SLEEP_NS_LEAST), self.open

    def _begin(self, now: int) -> None:
        """Measures from here on."""
        self.use, self.told, self.on, self.samples = using.Use(now), len(self.tenant.switches), True, []

    def wake(self, now: int) -> None:
        """A launch ends the rest."""
        self.resting = False
        self._begin(now)
        self._works(now)

    def _works(self, now: int) -> None:
        """Has work again."""
        if self.tenant.terms.latency:
            self.fit_samples += [(now, False)] * ((now - self.busy) // SAMPLE_NS_MOST)
        else:
            self.fitted = now
        self.busy = self.counted = self.sampled = self.change = now


def tenants_of(specs: Sequence[tuple[int, str, Load]], fits: bool = True) -> list[Tenant]:
    """Returns tenants of (cores, policy, load) with the turns and the others that hami_hpc/core/turns.py gives them.

    Without `fits` nothing is known of the others, so that timeslices stay long.
    """
    total, begin, tenants = sum(cores for cores, _, _ in specs), 0, []
    for i, (cores, policy, load) in enumerate(specs):
        others = [(c, p) for k, (c, p, _) in enumerate(specs) if k != i]
        terms = a.Terms(
            cores,
            policy,
            turn_begin=begin,
            turn_length=1000 * cores // total,
            others_least_percent=min((4 if p == "none" else c for c, p in others), default=0) if fits else 0,
            only_other_percent=others[0][0] if fits and len(others) == 1 and others[0][1] != "none" else 0,
            others_capped=sum(p == "cap" for _, p in others),
        )
        tenants.append(Tenant(terms, load))
        begin += 1000 * cores // total
    return tenants
