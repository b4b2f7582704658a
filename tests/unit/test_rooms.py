# SPDX-License-Identifier: Apache-2.0
"""The rooms of hami_hpc: which package may import which, so that a change in one is looked for in few others."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HAMI_HPC = Path(__file__).resolve().parents[2] / "hami_hpc"
# Each room imports itself and those named here. The modules beside the rooms (errors, installed, places, builds) are
# for all; what accounting may import is in test_accounting/test_layers.py.
ROOMS: dict[str, tuple[str, ...]] = {
    "contract": (),
    "core": ("contract",),
    "slurm": ("contract", "core"),
    "node": ("contract", "core"),
    "isolation": ("contract", "core", "node"),
    "render": ("contract", "core", "isolation", "node", "slurm"),
    "stages": ("contract", "core", "isolation", "node", "slurm"),
    "agent": ("contract", "core", "node", "slurm", "stages"),
    "doctor": ("contract", "core", "isolation", "node", "render", "slurm", "stages"),
    "accounting": ("contract", "core", "node"),
    "metrics": ("core", "node"),
    "cli": ("accounting", "agent", "contract", "core", "doctor", "metrics", "node", "render", "slurm", "stages"),
}


def test_every_room_is_known() -> None:
    assert {path.parent.name for path in HAMI_HPC.glob("*/__init__.py")} == ROOMS.keys()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    for path in (HAMI_HPC / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hami_hpc"):
                words = node.module.split(".")
                rooms = words[1:2] if len(words) > 1 else [alias.name for alias in node.names]
                for other in set(rooms) & ROOMS.keys():
                    assert other in (room, *ROOMS[room]), f"{path} imports from hami_hpc.{other}"
