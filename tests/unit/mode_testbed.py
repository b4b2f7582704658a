# SPDX-License-Identifier: Apache-2.0
"""A node with modes share and mps, whose Slurm is a script that keeps the node's features."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from node_testbed import Node, job_environment, slurms_commands

from hami_hpc.core.mode_outage import Outage
from hami_hpc.errors import NodeError
from hami_hpc.isolation import share
from hami_hpc.node import boot, drain, mode_outages
from hami_hpc.node.event_reader import EventReader
from hami_hpc.stages import detached, mode_service
from hami_hpc.stages.prolog import main as prolog_main

AVAILABLE = "vgpu_share,vgpu_mps,vgpu_type_h200"
REASON = "the driver says no"
# Keeps the active features in a file, notes each call, and fails where the file `down` exists: once, if that has text.
# With the file `late` it answers no update before the command's time is over, and runs the file's text with what it was
# asked for as $1.
SCONTROL = """\
#!/bin/sh
cd {folder} || exit 9
echo "$@" >>said
[ ! -s down ] || {{ rm down; echo "slurm_update error: Unable to contact" >&2; exit 1; }}
[ ! -e down ] || {{ echo "slurm_update error: Unable to contact" >&2; exit 1; }}
case $1 in
--oneliner) echo "NodeName=node1 AvailableFeatures=$(cat available) ActiveFeatures=$(cat active) Gres=x" ;;
requeue) [ ! -e interactive ] ;;
update) for word in "$@"; do case $word in activefeatures=*)
    [ ! -e late ] || {{ sh ./late "${{word#*=}}"; exec sleep 60; }}
    echo "${{word#*=}}" >active ;; esac; done ;;
esac
"""


@dataclass
class Bed:
    """A node with modes share and mps, whose Slurm is a script."""

    node: Node
    folder: Path

    def active(self) -> str:
        return (self.folder / "active").read_text().strip()

    def said(self) -> list[str]:
        path = self.folder / "said"
        return path.read_text().splitlines() if path.exists() else []

    def environment(self, job_id: int, mode: str = "share", **more: str) -> dict[str, str]:
        given = {"SLURM_JOB_CONSTRAINTS": f"vgpu_{mode}" if mode else "", "SLURMD_NODENAME": "node1"}
        return job_environment(job_id) | given | more

    def prolog(self, job_id: int, mode: str = "share", **more: str) -> int:
        return prolog_main(self.node.arguments, self.environment(job_id, mode, **more))

    def slurm(self) -> mode_service.Slurm:
        return mode_service.Slurm("node1", str(self.folder / "scontrol"), {"PATH": "/usr/bin:/bin"})

    def outages(self) -> dict[str, Outage]:
        return {each.mode: each for each in mode_outages.read(self.node.settings.state_dir)}

    def kinds(self) -> list[str]:
        return [line.event["kind"] for line in EventReader(self.node.settings.state_dir).read() if line.event]

    def put_out(self, mode: str = "share", seconds: int = 3600, boot_id: str = "") -> None:
        now = int(time.time())
        outage = Outage(mode, now - 10, now + seconds, boot_id or boot.boot_id(), REASON)
        mode_outages.write(self.node.settings.state_dir, (outage,))
        (self.folder / "active").write_text(",".join(n for n in AVAILABLE.split(",") if n != f"vgpu_{mode}"))


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name in ("available", "active"):
        (folder / name).write_text(AVAILABLE)
    scontrol = slurms_commands(folder, SCONTROL.format(folder=folder))
    monkeypatch.setattr(drain, "find_scontrol", lambda: scontrol)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(detached, "start", lambda *_arguments: None)
    monkeypatch.setattr(mode_service, "LOOK_AGAIN_S", 0.1)
    monkeypatch.setattr(mode_service, "PAUSE_S", 0.1)
    node = Node.make(tmp_path / "node")
    node.config.write_text(node.config.read_text() + '[vgpu]\nmodes = ["share", "mps"]\nmode_failures = 3\n')
    return Bed(node, folder)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*_arguments: object) -> None:
        raise NodeError(REASON)

    monkeypatch.setattr(share, "prepare", prepare)
