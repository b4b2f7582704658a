# SPDX-License-Identifier: Apache-2.0
"""One frame of `hami-hpc top`, as lines of styled text for a terminal of a given size. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hami_hpc.core import standing
from hami_hpc.core.agent_state import OK, AgentState, GpuState
from hami_hpc.core.gpu_rows import BEYOND_CORES, Row, gpu_line, granted_bytes, recent_faults
from hami_hpc.core.tables import columns_of, cut

Part = tuple[str, str]  # a text, and the name of its style: "" is plain
Line = list[Part]
BLOCKS, ASCII = "█▒·", "#=."  # used, granted and not used, neither
EVENTS = 3
TOLD = 3  # jobs of which more is said than fits the table
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Screen:
    """The terminal: its size (`rows` 0: no bound), and the three characters of bars that it can show."""

    columns: int
    rows: int
    bar: str
    utc_offset_s: int = 0  # of the times that are shown
    boot_ns: int = 0  # CLOCK_BOOTTIME, from which times of turns are counted


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the table of jobs; `least` is the width of a terminal from which on it is shown, 0: always."""

    head: str
    short: str  # the heading on a terminal of less than WIDE columns
    is_right: bool
    least: int
    most: int  # columns of a cell


_COLUMNS = (
    _Column("GPU", "GPU", True, 0, 4),
    _Column("JOB", "JOB", True, 0, 10),
    _Column("TURN", "TURN", False, 0, 14),
    _Column("PROC", "PROC", True, 90, 11),
    _Column("USER", "USER", False, 0, 12),
    _Column("CLASS", "CLASS", False, 70, 5),
    _Column("ASKED %", "ASK%", True, 0, 7),
    _Column("GOT %", "GOT%", True, 0, 6),
    _Column("GRANTED GIB", "GRANT", True, 0, 8),
    _Column("USED", "USED", True, 0, 8),
    _Column("PEAK", "PEAK", True, 90, 8),
    _Column("FINDINGS", "FINDINGS", False, 0, 200),
)
TURN_AT = 2  # this column is shown where memory is oversold; on less than TURNS_WIDE columns in the place of CLASS
CLASS_AT = 5
TURNS_WIDE = 100
WIDE = 80


def bar(used: float, granted: float, columns: int, characters: str) -> str:
    """Returns a bar of what is used, and granted beyond that, both as parts of the whole (0 to 1)."""
    filled = round(min(max(used, 0), 1) * columns)
    held = max(filled, round(min(max(granted, 0), 1) * columns))
    return characters[0] * filled + characters[1] * (held - filled) + characters[2] * (columns - held)


def frame(head: str, state: AgentState | None, rows: Sequence[Row], note: str, screen: Screen) -> list[Line]:
    """Returns the lines of a frame, none wider than the terminal, and not more than it has rows."""
    lines: list[Line] = [[(cut(head, screen.columns), "bold")]]
    if note:
        lines += [[(text, "yellow")] for text in _wrapped(note, screen.columns)]
    if state is not None:
        lines += _gpu_lines(state, screen)
        lines += _turn_lines(state, rows, screen)
    events = _event_lines(state, screen) if state is not None else []
    room = screen.rows - len(lines) - 2 - len(events) if screen.rows else len(rows)
    if room < min(len(rows), EVENTS):  # jobs come before events where both do not fit
        room, events = room + len(events), []
    lines += [[], *_job_lines(rows, max(1, room), screen), *events]
    return [_cropped(line, screen.columns) for line in (lines[: screen.rows] if screen.rows else lines)]


def _cropped(line: Line, columns: int) -> Line:
    """Returns the parts of a line that fit; only a terminal of less than 42 columns cuts the bars."""
    kept: Line = []
    for text, style in line:
        kept.append((cut(text, columns), style) if columns > 0 else ("", style))
        columns -= columns_of(text)
    return kept


def _wrapped(text: str, columns: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and columns_of(f"{lines[-1]} {word}") > columns:
            lines.append("")
        lines[-1] = cut(f"{lines[-1]} {word}".strip(), columns)
    return lines


def _gib(count: int) -> str:
    return f"{count / GIB:.1f}"


def _gpu_lines(state: AgentState, screen: Screen) -> list[Line]:
    """Returns a heading and one line for each GPU: memory and time, each as a bar and in figures."""
    model = max([5, *(columns_of(gpu.model) for gpu in state.gpus)]) if screen.columns >= 90 else 0
    model = min(model, 20)
    power = screen.columns >= 90
    fixed = 4 + (model + 2 if model else 0) + 21 + 9 + (14 if power else 0)
    bars = max(4, (screen.columns - fixed) // 2 - 1)
    bars = min(bars, 40)
    head = f"{'GPU':>3} " + (f"{'MODEL':{model}}  " if model else "")
    head += f"{'MEMORY':{bars}} {'USED/GRANT/ALL GIB':>19} {'TIME':{bars}} {'GOT/ASK%':>8}"
    lines: list[Line] = [[(cut(head, screen.columns), "bold")]]
    for gpu in state.gpus:
        parts: Line = [(f"{gpu.minor:>3} ", "bold")]
        if model:
            name = cut(gpu.model, model)
            parts.append((name + " " * (model - columns_of(name) + 2), ""))
        if gpu.state != OK:
            room = screen.columns - sum(columns_of(text) for text, _ in parts)
            parts.append((cut(f"{gpu.state.upper()}: {gpu.detail or 'NVML does not answer'}", room), "bold red"))
        else:
            parts += _gpu_bars(state, gpu, bars, screen.bar)
            if power:
                parts.append((f"  {gpu.temperature_c:>3} C {gpu.power_mw // 1000:>4} W", "dim"))
        lines.append(parts)
    for gpu, second in recent_faults(state):
        text = f"    GPU {gpu.minor} {_clock(second, screen)} {gpu.last_fault}"
        lines.append([(cut(text, screen.columns), "red")])
    return lines


def _clock(second: int, screen: Screen) -> str:
    second += screen.utc_offset_s
    return f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def _gpu_bars(state: AgentState, gpu: GpuState, columns: int, characters: str) -> Line:
    total = max(1, gpu.total_bytes)
    granted = granted_bytes(state, gpu)
    cores = sum(job.cores_percent for job in state.jobs if job.gpu_uuid == gpu.uuid)
    memory = bar(gpu.used_bytes / total, granted / total, columns, characters)
    busy = bar(gpu.busy_percent / 100, cores / 100, columns, characters)
    figures = f"{_gib(gpu.used_bytes)}/{_gib(granted)}/{_gib(gpu.total_bytes)}"
    is_found = any(job.findings for job in state.jobs if job.gpu_uuid == gpu.uuid)
    return [
        (memory, "red" if is_found else "green"),
        (f" {figures:>19} ", ""),
        (busy, "green"),
        (f" {f'{gpu.busy_percent:.0f}/{cores}':>8}", ""),
    ]


def _turn_lines(state: AgentState, rows: Sequence[Row], screen: Screen) -> list[Line]:
    """Returns a line for each oversold GPU, and for the first jobs that could not leave it, or have no room."""
    lines: list[Line] = []
    for gpu in state.gpus:
        if text := gpu_line(rows, gpu):
            lines.append([(cut(text, screen.columns), "yellow" if gpu.pressure else "")])
    told = [row for row in rows if row.standing is not None and row.standing.state in (standing.STAYS, standing.ROOM)]
    for row in told[:TOLD]:
        assert row.standing is not None
        text = f"job {row.job_id} {standing.text(row.standing, screen.boot_ns)}"
        lines += [[(part, "yellow")] for part in _wrapped(text, screen.columns)]
    return lines


def _cells(row: Row, boot_ns: int) -> tuple[str, ...]:
    return (
        str(row.gpu) if row.gpu >= 0 else "?",
        row.job_text,
        standing.cell(row.standing, boot_ns) if row.standing else "-",
        row.process_text,
        row.user,
        row.service_class,
        str(row.cores_percent),
        f"{row.busy_percent:.1f}",
        _gib(row.granted_bytes),
        _gib(row.used_bytes),
        _gib(row.peak_bytes),
        ", ".join(row.findings),
    )


def _job_lines(rows: Sequence[Row], room: int, screen: Screen) -> list[Line]:
    """Returns a heading and the rows that fit, those with findings first, and how many are left out. `room` is for one
    line at least."""
    ordered = sorted(rows, key=lambda row: not row.findings)
    shown = ordered if len(ordered) <= room else ordered[: room - 1]
    has_turns = any(row.standing for row in rows)
    left_out = (TURN_AT,) if not has_turns else (CLASS_AT,) if screen.columns < TURNS_WIDE else ()
    chosen = [
        index for index, column in enumerate(_COLUMNS) if screen.columns >= column.least and index not in left_out
    ]
    texts = [[cut(cell, _COLUMNS[i].most) for i, cell in enumerate(_cells(row, screen.boot_ns))] for row in shown]
    heads = [column.head if screen.columns >= WIDE else column.short for column in _COLUMNS]
    widths = {i: max(columns_of(row[i]) for row in (heads, *texts)) for i in chosen}

    def line(cells: Sequence[str]) -> str:
        padded = []
        for i in chosen:
            blanks = " " * (widths[i] - columns_of(cells[i]))
            padded.append(blanks + cells[i] if _COLUMNS[i].is_right else cells[i] + blanks)
        return cut(" ".join(padded).rstrip(), screen.columns)

    lines: list[Line] = [[(line(heads), "bold")]]
    lines += [[(line(cells), _style(row))] for cells, row in zip(texts, shown, strict=True)]
    if len(shown) < len(ordered):
        lines.append([(f"and {len(ordered) - len(shown)} more: hami-hpc ps", "dim")])
    if not ordered:
        lines.append([("no job and no process on these GPUs", "dim")])
    return lines


def _style(row: Row) -> str:
    if row.findings and row.findings != (BEYOND_CORES,):
        return "bold red"
    return "yellow" if row.findings or (row.pid and not row.job_id) else ""


def _event_lines(state: AgentState, screen: Screen) -> list[Line]:
    """Returns the latest events, newest first."""
    lines: list[Line] = []
    for event in reversed(state.events[-EVENTS:]):
        clock = _clock(event.time_unix_ns // 1_000_000_000, screen)
        job = f" job {event.job_id}" if event.job_id else ""
        action = f" [{event.action}]" if event.action else ""
        lines.append([(cut(f"{clock} {event.kind}{job}{action}: {event.text}", screen.columns), "dim")])
    return [[], *lines] if lines else []
