# SPDX-License-Identifier: Apache-2.0
"""Placeholder jobs on a node in a reservation, by programs in place of Slurm's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_hpc.errors import NodeError
from hami_hpc.slurm import placeholders

# `scontrol -o show reservation` of Slurm 22.05.8; what is not read is cut.
LATER = (
    "ReservationName=later StartTime=2026-11-27T00:00:00 Nodes=node1 NodeCnt=1 Flags=SPEC_NODES State=INACTIVE X=n/a"
)
OTHER = "ReservationName=other StartTime=2026-11-26T00:00:00 Nodes=node2 NodeCnt=1 Flags=SPEC_NODES State=ACTIVE X=n/a"
NOW = "ReservationName=now StartTime=2026-11-26T00:00:00 Nodes=big1,node1 NodeCnt=2 Flags=MAINT State=ACTIVE X=n/a"
NONE = "No reservations in the system"
SCONTROL = """#!/bin/sh
case "$*" in
"show hostnames big1,node1") printf 'big1\\nnode1\\n' ;;
*reservation) cat '{folder}/reservations' ;;
*) exit 1 ;;
esac
"""
# Refuses what {folder}/refused has a word of, as slurmctld does.
SALLOC = """#!/bin/sh
echo "$*" >> '{folder}/asked'
if [ -e '{folder}/refused' ] && echo "$*" | grep -q -f '{folder}/refused'; then
    echo 'salloc: error: Job submit/allocate failed: Access denied to requested reservation' >&2
    exit 1
fi
echo 'salloc: Pending job allocation 7' >&2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("scontrol", SCONTROL), ("salloc", SALLOC)):
        (tmp_path / name).write_text(text.replace("{folder}", str(tmp_path)))
        (tmp_path / name).chmod(0o755)
    return tmp_path


def submit(folder: Path, shown: tuple[str, ...], refused: str = "") -> list[str]:
    """Submits two placeholders. Returns, of each salloc, its gres and the reservation."""
    (folder / "reservations").write_text("".join(f"{line}\n" for line in shown))
    if refused:
        (folder / "refused").write_text(f"{refused}\n")
    node = placeholders.Node("node1", {"PATH": f"{folder}:/usr/bin:/bin"})
    try:
        node.submit((5, 3), "gpu")
    finally:
        node.close()
    calls = [line.split() for line in (folder / "asked").read_text().splitlines()]
    wanted = ("--gres=", "--reservation=")
    return sorted(" ".join(word.partition("=")[2] for word in call if word.startswith(wanted)) for call in calls)


@pytest.mark.parametrize(
    ("shown", "asked"),
    [
        ((NONE,), ["shard:3", "shard:5"]),
        ((LATER, OTHER), ["shard:3", "shard:5"]),
        ((LATER, OTHER, NOW), ["shard:3 now", "shard:5 now"]),
    ],
)
def test_placeholders_are_of_the_reservation_that_has_the_node(
    folder: Path, shown: tuple[str, ...], asked: list[str]
) -> None:
    assert submit(folder, shown) == asked


def test_where_root_may_not_use_the_reservation_they_wait_for_its_end(folder: Path) -> None:
    asked = submit(folder, (NOW,), refused="reservation=now")
    assert asked == ["shard:3", "shard:3 now", "shard:5", "shard:5 now"]
    with pytest.raises(NodeError, match="Access denied to requested reservation"):
        submit(folder, (NOW,), refused="gres")
