# SPDX-License-Identifier: Apache-2.0
"""Which latency-critical jobs of a GPU are treated as any other, as they want more than their cores. Pure.

docs/adr/116 has the reasons.

A job says so itself (more_unix_ns of its usage file, native/interposer/arbitration/greed.h), which its user may write
as they like. A latency-critical job that is silent has what it had before, and one that says it loses its own place. A
job that says it beside one that uses more than its cores takes from that what it was not promised.

Beside another latency-critical job that is so at once: its requests wait for this one. Beside others it is so where one
of them that wants more, too, does not get its cores: they are what it asked for, and all above the own cores is not.

Of several jobs that want more one is taken at a time. What made others late may have been that one, whose requests
then no longer pile up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

SECOND = 1_000_000_000
HEARD_NS = 600_000_000  # so old a word may be; a job that wants more says it each 40 to 50 ms
SAID_NS = 400_000_000  # for so long it has to say it
APART_NS = 3 * SECOND // 2  # between two that are taken on a GPU: until the others' means are of after the first
SILENT_NS = SECOND  # who has not said it for so long is latency-critical again
SHORT_NS = 3 * SECOND  # over which a job is seen to have less than its cores
# One who has too little of its cores may have no more than requests that piled up, which the others keep it from doing.
TRIED_NS = 4 * SECOND  # after which it is latency-critical again, for a try; twice as long after each
TRIED_NS_MOST = 256 * SECOND
ENOUGH_PERCENT = 90  # of its cores
UNSEEN_NS = 5 * SECOND  # so long after the last look nothing counts that was known then


class Said(NamedTuple):
    """What a job says at a look: when it last wanted more (ns since 1970), and how much of the GPU's time it has used,
    ns. `is_beyond`: it is latency-critical, and treated as any other."""

    job_id: int
    cores_percent: int
    is_latency: bool
    is_beyond: bool
    more_unix_ns: int
    used_ns: int


@dataclass
class _Known:
    """What is remembered of a job: since when it says it without a pause (0: it does not), when it was last heard,
    since when it is as it is or was last tried, since when and with how much used its cores are counted since then, the
    first of its words without a pause, and how long a try is away. And whether it had less than its cores for SHORT_NS
    and wanted more, and since when and with how much used that is counted."""

    heard_since_ns: int
    heard_ns: int
    is_beyond: bool
    since_ns: int
    had_since_ns: int
    used_then_ns: int
    used_ns: int
    lately_ns: int = 0  # used between the last two looks
    first_word_ns: int = 0
    tried_ns: int = TRIED_NS
    is_short: bool = False
    counted_ns: int = 0
    counted_used_ns: int = 0

    def begin(self, now_ns: int) -> None:
        self.since_ns = now_ns
        self.count_from(now_ns)

    def count_from(self, now_ns: int) -> None:
        self.had_since_ns, self.used_then_ns = now_ns, self.used_ns


@dataclass
class OfGpu:
    """The jobs of one GPU. `now` is CLOCK_REALTIME, ns, as the jobs' words are."""

    _known: dict[int, _Known] = field(default_factory=dict)
    _taken_ns: int = 0
    _needed_ns: int = 0  # when somebody else was last there who is latency-critical, or wants more
    _now_ns: int = 0

    def decide(self, jobs: Iterable[Said], now_ns: int) -> dict[int, bool]:
        """Returns what changes, by job id: whether it is treated as any other from now on."""
        jobs = list(jobs)
        if not 0 <= now_ns - self._now_ns < UNSEEN_NS:  # the clock was set, or nobody looked
            self._known, self._taken_ns, self._needed_ns = {}, 0, 0
        self._now_ns = now_ns
        self._known = {job.job_id: self._look(job, now_ns) for job in jobs}
        others = [self._known[job.job_id] for job in jobs if not job.is_latency]
        are_several = sum(job.is_latency for job in jobs) > 1
        if are_several or any(known.heard_since_ns for known in others):
            self._needed_ns = now_ns
        is_needed = now_ns - self._needed_ns < SILENT_NS
        changes = {job.job_id: False for job in jobs if job.is_beyond and (not is_needed or self._returns(job, now_ns))}
        may_be = are_several or any(known.is_short for known in others)
        urgent = [job for job in jobs if job.is_latency and not job.is_beyond] if may_be else []
        taken = [job for job in urgent if self._may_be_taken(job)]
        if taken and now_ns - self._taken_ns >= APART_NS:
            first = min(taken, key=self._first).job_id
            changes[first] = True
            self._taken_ns = now_ns
            self._known[first].heard_since_ns = now_ns  # one that cannot be told so is the last of them next time
        if changes:
            self._count_anew(now_ns)
        return changes

    def _count_anew(self, now_ns: int) -> None:
        """What jobs had before another one's place changed tells nothing of what they have now. Within the time until
        a try alone, so that nobody keeps it from coming."""
        for known in self._known.values():
            if now_ns - known.since_ns < known.tried_ns:
                known.count_from(now_ns)

    def _look(self, job: Said, now_ns: int) -> _Known:
        known = self._known.get(job.job_id)
        if known is None or job.used_ns < known.used_ns:  # a new job, or its user's nonsense
            known = _Known(0, now_ns, job.is_beyond, now_ns, now_ns, job.used_ns, job.used_ns)
        known.lately_ns, known.used_ns = job.used_ns - known.used_ns, job.used_ns
        if known.is_beyond != job.is_beyond:
            known.is_beyond = job.is_beyond
            known.begin(now_ns)
            known.heard_since_ns = 0  # what it said before was of then
        if abs(now_ns - job.more_unix_ns) <= HEARD_NS:
            if not known.heard_since_ns:
                known.heard_since_ns, known.first_word_ns = now_ns, job.more_unix_ns
            known.heard_ns = now_ns
        else:
            known.heard_since_ns = 0
        self._count_short(known, job, now_ns)
        return known

    def _count_short(self, known: _Known, job: Said, now_ns: int) -> None:
        elapsed_ns = now_ns - known.counted_ns
        if known.heard_since_ns and known.counted_ns and elapsed_ns < SHORT_NS:
            return
        wanted_all_along = bool(known.heard_since_ns) and known.heard_since_ns <= known.counted_ns
        known.is_short = wanted_all_along and not _is_enough(job, job.used_ns - known.counted_used_ns, elapsed_ns)
        known.counted_ns, known.counted_used_ns = now_ns, job.used_ns

    def _may_be_taken(self, job: Said) -> bool:
        """By its words, as two looks may hear the same one."""
        known = self._known[job.job_id]
        return known.heard_since_ns > 0 and job.more_unix_ns - known.first_word_ns >= SAID_NS

    def _first(self, job: Said) -> tuple[int, float, int]:
        """Returns the place of a job among those that want more, the least first: who has said it for longest, then who
        used most of what it asked for."""
        known = self._known[job.job_id]
        return known.heard_since_ns, -known.lately_ns / max(1, job.cores_percent), job.job_id

    def _returns(self, job: Said, now_ns: int) -> bool:
        known = self._known[job.job_id]
        if not known.heard_since_ns and now_ns - known.heard_ns >= SILENT_NS:
            known.tried_ns = TRIED_NS
            return True
        elapsed_ns = now_ns - known.had_since_ns
        if elapsed_ns < known.tried_ns:
            return False
        is_enough = _is_enough(job, job.used_ns - known.used_then_ns, elapsed_ns)
        known.begin(now_ns)
        if is_enough:
            return False
        known.tried_ns = min(TRIED_NS_MOST, 2 * known.tried_ns)
        return True


def _is_enough(job: Said, used_ns: int, elapsed_ns: int) -> bool:
    """Returns whether a job had its cores, nearly."""
    return 100 * used_ns * 100 >= elapsed_ns * job.cores_percent * ENOUGH_PERCENT
