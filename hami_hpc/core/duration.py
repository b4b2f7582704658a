# SPDX-License-Identifier: Apache-2.0
"""Durations in text form. Pure."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Returns whole seconds as Slurm writes them: 1-02:03:04."""
    days, rest = divmod(round(seconds), 86400)
    return f"{f'{days}-' if days else ''}{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
