# SPDX-License-Identifier: Apache-2.0
"""Modes of isolation whose backend failed on this node, and modes that are out of its features for a while. Pure.

A node in service whose jobs cannot have one mode loses the feature of that mode (docs/adr/056): Slurm then sends no
job there that asks for it. A failure counts within a window and within one boot; a mode is out until its time is over
or the node was restarted.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hami_hpc.contract import constants as c
from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERSION = 1
TEXT_MAX = 400
FAILURES_MAX = 100  # that are kept of all modes


class Failure(NamedTuple):
    """One job whose slice the backend of a mode could not prepare, by the node's fault."""

    mode: str
    time_unix_s: int
    boot_id: str
    job_id: int
    text: str


class Outage(NamedTuple):
    """One mode that is out of the node's features."""

    mode: str
    since_unix_s: int
    until_unix_s: int
    boot_id: str
    reason: str


def feature_of(mode: str) -> str:
    """Returns the node feature of a mode."""
    return c.FEATURE_MODE.format(mode=mode)


def recent(failures: Iterable[Failure], now_unix_s: int, window_s: int, boot_id: str) -> tuple[Failure, ...]:
    """Returns the failures of this boot within the window. One of the future is of a clock that was set back."""
    return tuple(
        each for each in failures if each.boot_id == boot_id and 0 <= now_unix_s - each.time_unix_s <= window_s
    )[-FAILURES_MAX:]


def public(text: str) -> str:
    """Returns a cause without the numbers of jobs, which may be others' to know: everybody can read an outage."""
    return re.sub(r"\bjob \d+", "a job", text)


def is_over(outage: Outage, now_unix_s: int, boot_id: str) -> bool:
    """Returns whether the mode is to come back: its time is over, the node was restarted, or its clock was set back."""
    return outage.boot_id != boot_id or not outage.since_unix_s <= now_unix_s < outage.until_unix_s


def features(available: Sequence[str], active: Sequence[str], out: Iterable[str], back: Iterable[str]) -> list[str]:
    """Returns the active features with the modes `out` removed and the modes `back` added, in the order of `available`.

    A feature that the node does not have any more is not added; what others removed stays removed.
    """
    removed, added = set(map(feature_of, out)), set(map(feature_of, back))
    wanted = (set(active) | added) - removed
    return [name for name in available if name in wanted]


def to_json(rows: Iterable[Failure] | Iterable[Outage]) -> str:
    """Returns the text of a file."""
    return json.dumps({"version": VERSION, "rows": [row._asdict() for row in rows]}, indent=1) + "\n"


def failures_from_json(text: str) -> tuple[Failure, ...]:
    """Returns the failures of a file's text. Raises ValueError for any other text than to_json writes."""
    return tuple(Failure(**row) for row in _rows(text, Failure("", 0, "", 0, "")))


def outages_from_json(text: str) -> tuple[Outage, ...]:
    """Returns the outages of a file's text. Raises ValueError for any other text than to_json writes."""
    return tuple(Outage(**row) for row in _rows(text, Outage("", 0, 0, "", "")))


def _rows(text: str, example: Failure | Outage) -> list[dict[str, Any]]:
    """Returns the rows of a text, whose values have the types of the example's."""
    wanted = {name: type(value) for name, value in example._asdict().items()}
    try:
        table = json.loads(text)
        if table["version"] != VERSION:
            raise ValueError(f"version {table['version']}")
        for row in table["rows"]:
            if {name: type(value) for name, value in row.items()} != wanted or row["mode"] not in c.MODES:
                raise ValueError(f"an entry is not understood: {str(row)[:TEXT_MAX]}")
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    rows: list[dict[str, Any]] = table["rows"]
    return rows
