# SPDX-License-Identifier: Apache-2.0
"""Durations in text form. Pure."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Returns whole seconds as Slurm writes them: 1-02:03:04."""
    days, rest = divmod(round(seconds), 86400)
    return f"{f'{days}-' if days else ''}{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def requests(count: int, p99_us: int, misses: int) -> str:
    """Returns what is told of a job's requests; `misses` took longer than their deadline or the slo."""
    late = f"; {misses:,} took longer than they should" if misses else ""
    return f"{count:,}; 99 of 100 took at most {p99_us / 1000:,.2f} ms{late}"
