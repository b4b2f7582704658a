# SPDX-License-Identifier: Apache-2.0
"""How long device memory takes to the host and back, with and without page-locked memory there, on a real GPU.

Usage: python3 tests/gpu/bench_swap.py [GIB:PINNED_MIB ...], as root on a GPU node of one's own, with build/native
(make native) and PyTorch. Each is an unmodified program that holds so many tensors of 1 GiB, moved MOVES (3) times; it
looks at each page of them after each. With HAMI_HPC_SWAP_DIR=/directory their memory goes to a file there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native")]

from swapped import Swapped  # noqa: E402

from hami_hpc.contract import constants as c  # noqa: E402

MOVES = int(os.environ.get("MOVES", "3"))
EACH = ("24:0", "24:200000", "24:12288", "100:0", "100:200000")
HOLD = """
import sys, torch
held = [torch.full((1 << 30,), n % 251, dtype=torch.uint8, device="cuda") for n in range(int(sys.argv[1]))]
def right(n, t):  # a part of each page: the sum of all would need memory of its own, which would move too
    return int(t[::4097].sum(dtype=torch.int64)) == n % 251 * len(t[::4097]) and int(t[-1]) == n % 251
print("ready")
for line in sys.stdin:
    print("same" if all(right(n, t) for n, t in enumerate(held)) else "wrong")
"""


def query(what: str) -> str:
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def moved(folder: Path, gib: int, pinned_mib: int) -> None:
    base = int(query("memory.used"))
    job = Swapped.make(folder / f"{gib}-{pinned_mib}", None, query("uuid"), pinned_mib=pinned_mib)
    if directory := os.environ.get(c.ENV_SWAP_DIR):
        job.made.extra[c.ENV_SWAP_DIR] = directory
    with job.start(HOLD, str(gib)) as program:
        for _ in range(MOVES):
            out_s, there = job.move(out=True)
            left_mib, moved_mib = int(query("memory.used")) - base, job.slot()["swapped_bytes"] >> 20
            in_s, back = job.move(out=False)
            if (there, back, program.ask("look")) != ("host", "gpu", "same"):
                raise SystemExit(f"{gib} GiB: on the {there}, then on the {back}, or changed")
            cells = (gib, pinned_mib, f"{out_s:.2f}", f"{in_s:.2f}", f"{out_s + in_s:.2f}", moved_mib, left_mib)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        program.end()


def main() -> None:
    print(f"{query('name')}, driver {query('driver_version')}, {os.cpu_count()} cores\n")
    print("| GiB | page-locked at most, MiB | out, s | in, s | both, s | moved, MiB | left, MiB |\n|" + "---|" * 7)
    with tempfile.TemporaryDirectory() as folder:
        for each in sys.argv[1:] or EACH:
            gib, pinned_mib = map(int, each.split(":"))
            moved(Path(folder), gib, pinned_mib)


if __name__ == "__main__":
    main()
