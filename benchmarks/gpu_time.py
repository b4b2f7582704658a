# SPDX-License-Identifier: Apache-2.0
"""A discrete-event simulation of who is at work on one GPU: its own scheduler, and the tenants' keepers.

The scheduler serves the tenants that have work and are not paused, in a ring, each for at most its timeslice; a tenant
that is alone goes on without a switch. A switch saves the leaving context and loads the coming one. Tenants and
keepers: gpu_tenants.py. Times are whole ns. The same arguments give the same results.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

import arbitration as a
from gpu_tenants import (
    DRIVERS_TIMESLICE_US,
    FOREVER,
    LOAD_NS,
    MS,
    PAUSE_NS,
    RESUME_NS,
    SAVE_NS,
    US,
    Keeper,
    Load,
    S,
    Tenant,
    tenants_of,
)

__all__ = ["DRIVERS_TIMESLICE_US", "LOAD_NS", "MS", "SAVE_NS", "US", "Gpu", "Load", "S", "Tenant", "tenants_of"]


class Gpu:
    """One GPU with its tenants. `run` ends at a time; what happened is in the tenants.

    A pause of a tenant ends the stay of whoever is on the engine, and the next one follows. A change of a timeslice
    ends it too, and the round begins anew with the first tenant that has work (seen on an H200, docs/adr/119).
    `restarts`: False for changes of timeslices that nobody feels.
    """

    def __init__(self, tenants: Sequence[Tenant], restarts: bool = True) -> None:
        self.tenants, self.restarts = list(tenants), restarts
        self.restart_count = 0
        self.served = -1  # the last one that was served in this round
        self.stays: list[tuple[int, int, int]] = []  # whose, from, to
        self.now = 0
        self.events: list[tuple[int, int, str, int]] = []
        self.order = count()
        self.current = -1
        self.phase, self.phase_ends, self.version = "idle", FOREVER, 0  # idle, load, work, save
        self.since = self.slice_ends = 0
        self.switch_count = 0
        self.keepers: list[Keeper | None] = []
        self.cursors = [0] * len(self.tenants)
        jobs: dict[str, a.Budget] = {}
        for number, tenant in enumerate(self.tenants):
            tenant.number = number
            of_job = [other is tenant for other in self.tenants if tenant.job and other.job == tenant.job] or [True]
            tenant.processes, tenant.rank = len(of_job), of_job.index(True)
            budget = a.Budget(tenant.terms.cap(), tenant.processes > 1)
            shared = jobs.setdefault(tenant.job, budget) if tenant.job else budget
            keeper = Keeper(self.tenants, number, shared, self.stays)
            self.keepers.append(keeper if keeper.needed() else None)
            if keeper.needed():
                self._at((number * 137) * US, "look", number)
            if tenant.load.piece(0)[0]:
                self._at(tenant.load.piece(0)[1], "arrival", number)
            if tenant.load.requests:
                self._at(tenant.load.requests[0][0], "arrival", number)
            if tenant.dies_ns < FOREVER:
                self._at(tenant.dies_ns, "death", number)

    def _at(self, when: int, what: str, number: int) -> None:
        heapq.heappush(self.events, (when, next(self.order), what, number))

    def run(self, until_ns: int) -> None:
        """Simulates up to a time, ns."""
        self._begin_next()
        while True:
            when = self.events[0][0] if self.events else FOREVER
            if min(when, self.phase_ends) >= until_ns:
                break
            if self.phase_ends <= when:
                self.now = self.phase_ends
                self._phase_over()
            else:
                self.now, _, what, number = heapq.heappop(self.events)
                getattr(self, f"_{what}")(number)
        self.now = until_ns
        self._charge()

    def _ready(self, number: int) -> bool:
        tenant = self.tenants[number]
        return tenant.open and tenant.has_work()

    def _charge(self) -> None:
        """Books the current one's work up to now."""
        if self.phase == "work":
            tenant = self.tenants[self.current]
            tenant.worked_ns += self.now - self.since
            tenant.left_ns -= 0 if tenant.load.saturating else self.now - self.since
            self.since = self.now

    def _next(self) -> int:
        n = len(self.tenants)
        for step in range(1, n + 1):
            number = (self.served + step) % n
            if self._ready(number):
                return number
        return -1

    def _begin_next(self) -> None:
        """Loads the next one in the ring; the engine is free."""
        following = self._next()
        if following < 0:
            self.phase, self.phase_ends = "idle", FOREVER
            return
        self.switch_count += 1
        self.current = self.served = following
        self.phase = "load"
        self.phase_ends = self.now + LOAD_NS[self.tenants[following].load.full]

    def _work(self) -> None:
        """The current one works, to the end of its slice or of its request."""
        tenant = self.tenants[self.current]
        self.phase, self.since = "work", self.now
        if not tenant.load.saturating and tenant.left_ns <= 0:
            tenant.left_ns = tenant.pending[tenant.head][1]
        # The slices of who is alone follow one another unseen.
        alone = not any(self._ready(n) for n in range(len(self.tenants)) if n != self.current)
        self.phase_ends = min(FOREVER if alone else self.slice_ends, self._done())

    def _done(self) -> int:
        """When the current one's request is done, if nothing interrupts it."""
        tenant = self.tenants[self.current]
        return FOREVER if tenant.load.saturating else self.since + tenant.left_ns

    def _leave(self) -> None:
        """Saves the current one's context."""
        self.phase, self.phase_ends = "save", self.now + SAVE_NS[self.tenants[self.current].load.full]

    def _phase_over(self) -> None:
        tenant = self.tenants[self.current]
        if self.phase == "load":
            tenant.switches.append((self.now, True))
            self.came = self.now
            self.slice_ends = self.now + tenant.slice_ns
            if self._ready(self.current):
                self._work()
            else:
                self._stay_or_leave()
        elif self.phase == "save":
            tenant.switches.append((self.now, False))
            self.stays.append((tenant.number, self.came, self.now))
            self._begin_next()
        else:
            self._charge()
            if not tenant.load.saturating and tenant.left_ns <= 0:
                arrival, length = tenant.pending[tenant.head]
                tenant.waits_ns.append(self.now - arrival - length)
                tenant.head += 1
                work, wait = tenant.load.piece(self.now)
                if work and wait:
                    self._at(self.now + wait, "arrival", self.current)
                elif work:
                    tenant.pending.append((self.now, work))
            self._stay_or_leave()

    def _stay_or_leave(self) -> None:
        """At the end of a slice or of the work."""
        following = self._next()
        ready = self._ready(self.current)
        if ready and self.now < self.slice_ends:
            self._work()
        elif following == self.current:
            self.served = self.current
            self.slice_ends = self.now + self.tenants[self.current].slice_ns
            self._work()
        elif following < 0:
            self.phase, self.phase_ends = "stay", FOREVER  # idle, with its context on the engine
        else:
            self._leave()

    def _changed(self, number: int) -> None:
        """Somebody became ready, or is not any more."""
        if self.phase == "idle" and self._ready(number):
            self._begin_next()
        elif self.phase == "stay" and self._next() >= 0:
            if self._ready(self.current):
                self.slice_ends = self.now + self.tenants[self.current].slice_ns
                self._work()
            else:
                self._leave()
        elif self.phase == "work" and number == self.current and not self._ready(number):
            self._charge()
            self._leave()
        elif self.phase == "work" and self._ready(number):
            slice_ns = self.tenants[self.current].slice_ns
            self.slice_ends += max(0, -((self.slice_ends - self.now) // slice_ns) * slice_ns)
            self.phase_ends = min(self.slice_ends, self._done())

    def _restart(self) -> None:
        """A timeslice was changed: the driver gives the GPU a new runlist."""
        if not self.restarts:
            return
        self.restart_count += 1
        self.served = -1
        self._cut()

    def _cut(self) -> None:
        """Ends the stay of whoever is on the engine."""
        if self.phase == "work":
            self._charge()
            self.slice_ends = self.now
            self._stay_or_leave()

    def _arrival(self, number: int) -> None:
        tenant = self.tenants[number]
        requests, cursor = tenant.load.requests, self.cursors[number]
        work, _wait = tenant.load.piece(self.now)
        if work:
            tenant.pending.append((self.now, work))
        else:
            tenant.pending.append(requests[cursor])
            self.cursors[number] = cursor + 1
            if cursor + 1 < len(requests):
                self._at(requests[cursor + 1][0], "arrival", number)
        keeper = self.keepers[number]
        if keeper is not None and keeper.resting:
            keeper.wake(self.now)
            keeper.next = self.now
            self._at(self.now, "look", number)
        self._changed(number)

    def _look(self, number: int) -> None:
        keeper, tenant = self.keepers[number], self.tenants[number]
        if keeper is not None and self.now < keeper.next:
            return  # it was woken and has looked since
        if keeper is None or not tenant.alive or self.now >= tenant.keeper_stops_ns:
            return
        before, timeslice = keeper.open, tenant.slice_ns
        following, opened = keeper.look(self.now)
        if tenant.slice_ns != timeslice:
            self._restart()
        if opened != before:
            self._at(self.now + (RESUME_NS if opened else PAUSE_NS), "opened" if opened else "paused", number)
        keeper.next = following
        self._at(following, "look", number)

    def _opened(self, number: int) -> None:
        self.tenants[number].open = True
        self._changed(number)

    def _paused(self, number: int) -> None:
        self.tenants[number].open = False
        self._changed(number)
        self._cut()

    def _death(self, number: int) -> None:
        self.tenants[number].alive = False
        self._changed(number)
