# SPDX-License-Identifier: Apache-2.0
"""Chunks of multiprocessors, of which static SM partitions of MPS are made: how many a job has, and what the control
daemon says of them (docs/adr/087). Pure."""

from __future__ import annotations

from hami_hpc.core.values import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

COUNT_DIGITS, ID_MAX = 4, 128
ID_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-")


class Listing(NamedTuple):
    """What `lspart` says of the daemon's GPU: its name there, chunks, and the chunks of each partition by its id."""

    gpu: str
    free: int
    used: int
    partitions: dict[str, int]

    @property
    def total(self) -> int:
        return self.free + self.used


def chunks_of(cores_percent: int, total: int, others: Iterable[tuple[int, int]]) -> int:
    """Returns how many of a GPU's chunks a job with these cores gets, beside jobs with (cores, chunks).

    Whole chunks, rounded down; one more where the sum of what jobs have beyond their cores stays below one chunk with
    it. So whoever comes or goes, as long as all cores are at most 100 and each job's are worth a chunk, what is free
    suffices for the rounded-down chunks of the cores that no job has. One chunk at least.
    """
    whole, rest = divmod(cores_percent * total, 100)
    beyond = sum(max(0, chunks * 100 - cores * total) for cores, chunks in others)
    if rest and beyond + 100 - rest < 100:
        whole += 1
    return max(1, whole)


def parse(answer: str) -> Listing | None:
    """Returns what an answer with the table of `lspart` says; None where there is no such table.

    A row begins with the GPU's UUID or the beginning of it. Documented are empty cells as '-', seen in use were rows
    without them: both are read, and whatever stands around the table is not.
    """
    rows: list[list[str]] = []
    for word in answer.split():
        if word.startswith("GPU-"):
            rows.append([word])
        elif rows and word != "-":
            rows[-1].append(word)
    found: Listing | None = None
    for gpu, *cells in rows:
        counts = [int(cell) for cell in cells if _is_count(cell)]
        if "/" in gpu or not cells or not counts:
            continue
        if _is_count(cells[0]) and found is None and len(counts) > 1:
            found = Listing(gpu, counts[0], counts[1], {})
        elif found is not None and _is_id(cells[0]):
            found.partitions[cells[0]] = counts[0]
    return found


def _is_count(cell: str) -> bool:
    return cell.isdecimal() and len(cell) <= COUNT_DIGITS


def _is_id(cell: str) -> bool:
    return not _is_count(cell) and len(cell) <= ID_MAX and ID_LETTERS.issuperset(cell)
