# SPDX-License-Identifier: Apache-2.0
"""A job's time line: what the agent saw of it in each minute of the last 24 h. Pure.

It has two forms (contract.toml): rows in a file of the job's directory while the job runs, [layout.history], and the
field `history` of its usage record, [spool]. Root writes both, but no content makes a function here fail.
"""

from __future__ import annotations

from hami_hpc.contract import constants as c
from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False  # prolog and epilog import this, and not typing: docs/adr/021
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MINUTE_NS = 60_000_000_000
ROWS = c.HISTORY_MINUTE_COUNT
FILE_SIZE = c.HISTORY_SIZE + c.HISTORY_MINUTE_SIZE * ROWS
UINT32_MAX = 0xFFFFFFFF
MOST_MINUTES = 1 << 24  # 31 years; a larger number in a record is an error


class Head(NamedTuple):
    """The head of a job's file. `start_boot_ns` is the run's start by CLOCK_BOOTTIME."""

    job_id: int
    uid: int
    gpu_count: int
    start_unix_ns: int
    start_boot_ns: int
    mem_mib: int


class Minute(NamedTuple):
    """One minute, counted from the run's start: most memory held, MiB, and percent of the time of the job's GPUs."""

    minute: int
    mem_mib: int
    percent: int


def pack_head(head: Head) -> bytes:
    """Returns the first HISTORY_SIZE bytes of a file."""
    values = head._asdict() | {"magic": c.HISTORY_MAGIC, "record_size": FILE_SIZE}
    packed = bytearray(c.HISTORY_SIZE)
    for name, (offset, width, _kind) in c.HISTORY_FIELDS.items():
        packed[offset : offset + width] = values[name].to_bytes(width, "little")
    return bytes(packed)


def parse_head(data: bytes) -> Head | None:
    """Returns the head that a file begins with; None for any other content."""
    if len(data) < c.HISTORY_SIZE:
        return None
    fields = {
        name: int.from_bytes(data[offset : offset + width], "little")
        for name, (offset, width, _kind) in c.HISTORY_FIELDS.items()
    }
    if fields["magic"] != c.HISTORY_MAGIC or fields["record_size"] != FILE_SIZE:
        return None
    return Head(**{name: fields[name] for name in Head._fields})


def minute_of(head: Head, boot_ns: int) -> int:
    """Returns which minute of the run a time by CLOCK_BOOTTIME is in; negative before its start."""
    return (boot_ns - head.start_boot_ns) // MINUTE_NS


def place_of(minute: int) -> int:
    """Returns where in the file a minute's row is."""
    return c.HISTORY_SIZE + c.HISTORY_MINUTE_SIZE * (minute % ROWS)


def pack_minute(one: Minute) -> bytes:
    """Returns a minute's row. Numbers too large for it are the largest that fit."""
    numbers = (one.minute // ROWS + 1, one.mem_mib, min(one.percent, 100), 0)
    return b"".join([min(number, UINT32_MAX).to_bytes(4, "little") for number in numbers])


def parse_minute(row: bytes, minute: int) -> Minute | None:
    """Returns the minute that a row holds if it is this one."""
    lap, mem_mib, percent, _ = (int.from_bytes(row[at : at + 4], "little") for at in (0, 4, 8, 12))
    return Minute(minute, mem_mib, min(percent, 100)) if lap == minute // ROWS + 1 else None


def parse_file(data: bytes) -> tuple[Minute, ...]:
    """Returns the minutes of a file's last 24 h, oldest first."""
    found = []
    for row in range(min(ROWS, (len(data) - c.HISTORY_SIZE) // c.HISTORY_MINUTE_SIZE)):
        at = c.HISTORY_SIZE + c.HISTORY_MINUTE_SIZE * row
        lap = int.from_bytes(data[at : at + 4], "little")
        if lap:
            one = parse_minute(data[at : at + c.HISTORY_MINUTE_SIZE], (lap - 1) * ROWS + row)
            assert one is not None
            found.append(one)
    found.sort()
    return tuple(one for one in found if one.minute > found[-1].minute - ROWS)


def to_text(minutes: Iterable[Minute]) -> str:
    """Returns the field `history` of these minutes, which are in order."""
    words: list[str] = []
    times = 0
    last = Minute(-2, 0, 0)
    for one in minutes:
        if one == (last.minute + 1, last.mem_mib, last.percent):
            times += 1
        else:
            _end(words, times)
            start = "" if one.minute == last.minute + 1 else f"{one.minute}:"
            words.append(f"{start}{one.mem_mib},{one.percent}")
            times = 1
        last = one
    _end(words, times)
    return " ".join(words)


def _end(words: list[str], times: int) -> None:
    if times > 1:
        words[-1] += f"x{times}"


def from_text(text: str) -> tuple[Minute, ...] | None:
    """Returns the minutes of a field `history`; None for a text that to_text does not make."""
    try:
        return tuple(_minutes(text))
    except ValueError:
        return None


def _minutes(text: str) -> Iterator[Minute]:
    following = count = 0
    for word in text.split():
        start, colon, rest = word.rpartition(":")
        pair, cross, times = rest.partition("x")
        mem_mib, comma, percent = pair.partition(",")
        minute = _number(start, MOST_MINUTES) if colon else following
        repeated = _number(times, ROWS) if cross else 1
        count += repeated
        if not comma or minute < following or count > ROWS or not repeated:
            raise ValueError(word)
        for following in range(minute, minute + repeated):
            yield Minute(following, _number(mem_mib, UINT32_MAX), _number(percent, 100))
        following += 1


def _number(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > most:
        raise ValueError(text)
    return int(text)
