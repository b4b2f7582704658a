# SPDX-License-Identifier: Apache-2.0
"""What an event costs a prolog and an epilog: CPU time of their imports against those of another checkout, and of one
event, each in fresh interpreters that run in turn.

    git worktree add build/before COMMIT
    .venv/bin/python benchmarks/bench_events.py --before build/before [--rounds 300]

Wall time of whole stages (bench_prolog.py) varies by more than an event takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = """
import gc, sys, time
gc.disable()
sys.path.append(sys.argv[1])
begin = time.process_time_ns()
import hami_hpc.stages.{stage}
imported = time.process_time_ns()
written = 0
if len(sys.argv) > 2:
    from hami_hpc.node import events
    begin_event = time.process_time_ns()
    events.write(sys.argv[2], "prolog", "grant", text="job 7 has 8192 MiB and 50 % of GPU 0", job_id=7, uid=65534,
        gpu_uuid="GPU-bench", start_unix_ns=1, mem_mib=8192, cores=50, policy="cap")
    written = time.process_time_ns() - begin_event
print(imported - begin, written)
"""


def run(stage: str, *arguments: str) -> tuple[float, float]:
    """Returns the microseconds of a stage's imports, and of one event written into the second argument's directory."""
    command = (sys.executable, "-I", "-S", "-X", "utf8", "-c", CODE.format(stage=stage), *arguments)
    imported, written = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(imported) / 1000, int(written) / 1000


def main() -> int:
    """Prints the medians of the differences, and returns 1 when an event costs more than 200 us."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="another checkout")
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="hami-bench-", dir="/dev/shm") as folder:
        for stage in ("prolog", "epilog"):
            pairs = [(run(stage, given.before)[0], run(stage, str(ROOT), folder)) for _ in range(given.rounds)]
            imports = statistics.median(after - before for before, (after, _) in pairs)
            event = statistics.median(one for _, (_, one) in pairs)
            least = min(after for _, (after, _) in pairs) - min(before for before, _ in pairs)
            worst = max(worst, imports + event)
            print(f"{stage}: imports {imports:+.0f} us (least against least {least:+.0f}), an event {event:.0f} us")
    print(f"{given.rounds} rounds, {os.cpu_count()} CPUs, Python {sys.version.split()[0]}; at most 200 us: {worst:.0f}")
    return 0 if worst <= 200 else 1


if __name__ == "__main__":
    sys.exit(main())
