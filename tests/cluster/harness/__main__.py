# SPDX-License-Identifier: Apache-2.0
"""python -m harness up|down|status|story|remove [--dir DIRECTORY]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import cluster, story
from .daemons import running_pid
from .layout import CHECKOUT, ClusterError, remembered
from .services import ALL


def _status(root: Path) -> int:
    layout = remembered(root)
    if layout is None:
        print(f"there is no cluster in {root}")
        return 1
    pids = {name: running_pid(layout, name) for name in ALL}
    for name, pid in pids.items():
        print(f"{name:10} {f'pid {pid}' if pid else 'not running'}")
    return 0 if all(pids.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="cluster", description="A private Slurm with simulated GPUs.")
    parser.add_argument("command", choices=("up", "down", "status", "story", "remove"))
    parser.add_argument("--dir", type=Path, default=CHECKOUT / ".cluster", help="the cluster directory")
    arguments = parser.parse_args()
    root = arguments.dir.absolute()
    try:
        if arguments.command == "up":
            cluster.up(root)
        elif arguments.command == "down":
            stopped = cluster.down(root)
            print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
        elif arguments.command == "remove":
            cluster.remove(root)
        elif arguments.command == "story":
            story.tell(cluster.up(root))
        else:
            return _status(root)
    except ClusterError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
