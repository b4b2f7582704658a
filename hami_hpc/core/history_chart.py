# SPDX-License-Identifier: Apache-2.0
"""Draws a job's time line for a terminal: a row of characters for its memory and one for its GPUs' time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hami_hpc.core.history import Minute

# The first stands for nothing, the others for a part of the top each; a blank: the agent saw nothing then.
BLOCKS, ASCII = "·▁▂▃▄▅▆▇█", "_.:-=+*#@"
LEAST_COLUMNS = 20
INDENT = "  "


def chart(minutes: Sequence[Minute], mem_mib: int, gpu_count: int, columns: int, characters: str) -> list[str]:
    """Returns the lines for these minutes, of which there is at least one, in order. `mem_mib`: what the job was given,
    0 where that is not known; a resized job may have held more. `columns`: of the terminal."""
    first, last = minutes[0].minute, minutes[-1].minute
    room = max(LEAST_COLUMNS, columns) - len(INDENT) - 2
    step = -(-(last - first + 1) // room)
    groups: list[list[Minute]] = [[] for _ in range((last - first) // step + 1)]
    for one in minutes:
        groups[(one.minute - first) // step].append(one)
    peak_mib = max(one.mem_mib for one in minutes)
    mean = sum(one.percent for one in minutes) / len(minutes)
    of = f", of {mem_mib:,} MiB" if mem_mib >= peak_mib and mem_mib else ""
    gpus = "its GPU" if gpu_count <= 1 else f"its {gpu_count} GPUs"
    top_mib = max(mem_mib, peak_mib)
    axis = _axis(first, last + 1, len(groups))
    return [
        f"{INDENT}memory{of}: {peak_mib:,} MiB at most",
        f"{INDENT}|{_row(groups, lambda group: max(one.mem_mib for one in group), top_mib, characters)}|",
        f"{INDENT}time of {gpus}: {mean:.1f} % on average",
        f"{INDENT}|{_row(groups, lambda group: sum(one.percent for one in group) / len(group), 100, characters)}|",
        f"{INDENT} {axis}",
        f"{INDENT}one column: {step} {'minute' if step == 1 else 'minutes'}; below it hours:minutes since the start",
    ]


def _row(
    groups: Sequence[Sequence[Minute]], value_of: Callable[[Sequence[Minute]], float], top: float, characters: str
) -> str:
    return "".join(_character(value_of(group), top, characters) if group else " " for group in groups)


def _character(value: float, top: float, characters: str) -> str:
    if value <= 0:
        return characters[0]
    levels = len(characters) - 1
    return characters[min(levels, int(value / top * levels) + 1)]


def _axis(first: int, end: int, columns: int) -> str:
    """Returns the times at both ends of the rows, as far as there is room."""
    left, right = (f"{minute // 60}:{minute % 60:02d}" for minute in (first, end))
    return left + " " * max(1, columns - len(left) - len(right)) + right
