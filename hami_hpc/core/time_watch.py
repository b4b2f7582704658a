# SPDX-License-Identifier: Apache-2.0
"""Judges the time that jobs had of their GPU: means over windows, of what the agent saw. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hami_hpc.core.watch import SECOND, Kind, Look, SliceKey, Suspicion, by_slice, slice_key

# (window, points above the share): a mean over the window that exceeds share + points is time above the share.
TIME_WINDOWS = ((3 * SECOND // 2, 30), (30 * SECOND, 10))
LAG_NS = 3 * SECOND  # NVML's samples of a GPU's time are of about a second, and come later


@dataclass
class TimeWatch:
    """Means of each capped slice's GPU time over TIME_WINDOWS."""

    # of each slice: the time, what it used until then, and what it might use, ns; and its share at the last look
    _history: dict[tuple[int, int, str], deque[tuple[int, int, float]]] = field(default_factory=dict)
    _shares: dict[tuple[int, int, str], int] = field(default_factory=dict)
    _away_ns: dict[SliceKey, int] = field(default_factory=dict)

    def judge(self, look: Look) -> Iterator[Suspicion]:
        """Yields jobs of policy cap, and jobs that are off the GPU, whose processes had more of its time than their
        share."""
        live = set()
        own = by_slice(look)
        for one in look.slices:
            grant = one.grant
            # It has no part in the GPU's time then.
            is_away = bool(look.may_hold) and self._is_long_away(look, slice_key(grant))
            if grant.policy != "cap" and not is_away:
                continue
            key = (grant.job_id, grant.created_unix_ns, grant.gpu_uuid)
            live.add(key)
            processes = own.get(slice_key(grant), ())
            past = self._history.setdefault(key, deque())
            then, used, allowed = past[-1] if past else (look.boot_ns, 0, 0.0)
            # A resized slice is judged by the shares that it had; of a look with two by the larger.
            own_share = 0 if is_away else grant.cores_percent
            share = max(own_share, self._shares.get(key, own_share))
            self._shares[key] = own_share
            used += sum([process.busy_ns for process in processes])
            past.append((look.boot_ns, used, allowed + share / 100 * (look.boot_ns - then)))
            over = _time_over(past)
            while past[-1][0] - past[0][0] > TIME_WINDOWS[-1][0]:
                past.popleft()
            if over is not None:
                text = (
                    f"job {grant.job_id} had {over[0]:.0f} % of the time of GPU {grant.gpu_uuid} over "
                    f"{over[1] / SECOND:.1f} s; its share is {over[2]:.0f} %"
                )
                yield Suspicion(Kind.TIME_OVER, grant.job_id, 0, grant.gpu_uuid, processes, text)
        for key in [key for key in self._history if key not in live]:
            del self._history[key]
            del self._shares[key]
        self._away_ns = {key: ns for key, ns in self._away_ns.items() if key in look.may_hold}

    def _is_long_away(self, look: Look, key: SliceKey) -> bool:
        """Returns whether the slice has been off the GPU for so long that no sample of its work before is shown now."""
        return key in look.may_hold and look.boot_ns - self._away_ns.setdefault(key, look.boot_ns) >= LAG_NS


def _time_over(past: deque[tuple[int, int, float]]) -> tuple[float, int, float] | None:
    """Returns the mean, percent, the length of the first window that exceeds the share, and the mean share in it; None
    when none does."""
    now, used, allowed = past[-1]
    for window, points in TIME_WINDOWS:
        if past[0][0] > now - window:
            return None
        is_first = past[1][0] > now - window  # as it mostly is for the longest window
        older = past[0] if is_first else next(one for one in reversed(past) if one[0] <= now - window)
        then, used_then, allowed_then = older
        percent = (used - used_then) / (now - then) * 100
        share = (allowed - allowed_then) / (now - then) * 100
        if percent > share + points:
            return percent, now - then, share
    return None
