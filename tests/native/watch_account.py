# SPDX-License-Identifier: Apache-2.0
"""Compares, from outside, what NVML says a job's processes hold with what the job's usage record accounts for.

watch_account.py USAGE_FILE SECONDS [PROCESS_GROUP]

Prints one line of JSON. The machine's first GPU must be this job's alone. Without a process group the two are read one
after the other while the job runs, as an agent would: "excess" is NVML's sum minus the record's used_bytes read next,
"bracketed" that minus the larger of the values read before and after. With one, all of its processes are stopped while
both are read, so that both are of one moment; "excess" is then what really was too much. Bytes. "above" is the number
of samples with a positive excess, "in_a_row" the most of those one after the other, and "longest_s" the longest time
between two samples without one that has such samples in between.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError
from pathlib import Path

import pynvml

from hami_hpc.contract import constants as c

USED_AT = c.USAGE_FIELDS["used_bytes"][0]


def members(group: int) -> dict[int, str]:
    """The live processes of a process group, and their states."""
    out = {}
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            out[pid] = fields[0]
    return out


class Watch:
    def __init__(self, usage_file: Path, seconds: float) -> None:
        pynvml.nvmlInit()
        self.device = pynvml.nvmlDeviceGetHandleByIndex(0)
        with usage_file.open("rb") as file:
            self.usage = mmap.mmap(file.fileno(), c.USAGE_SIZE, prot=mmap.PROT_READ)
        self.seconds = seconds
        self.samples = self.skipped = self.above = self.in_a_row = self.row = 0
        self.peak = 0
        self.excess = self.bracketed = -(1 << 62)
        self.longest_s = 0.0
        self.last_good = time.monotonic()

    def used(self) -> int:
        return int.from_bytes(self.usage[USED_AT : USED_AT + 8], "little")

    def nvml(self) -> int:
        return sum(p.usedGpuMemory for p in pynvml.nvmlDeviceGetComputeRunningProcesses(self.device))

    def count(self, before: int, held: int, after: int) -> None:
        excess, now = held - after, time.monotonic()
        self.samples += 1
        self.peak = max(self.peak, held)
        self.excess = max(self.excess, excess)
        self.bracketed = max(self.bracketed, held - max(before, after))
        if excess > 0:
            self.above += 1
            self.row += 1
            self.in_a_row = max(self.in_a_row, self.row)
            return
        if self.row:
            self.longest_s = max(self.longest_s, now - self.last_good)
        self.row, self.last_good = 0, now

    def running(self) -> None:
        """Samples as fast as it can."""
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            self.count(self.used(), self.nvml(), self.used())

    def stopped(self, group: int) -> None:
        """Samples at random moments, the job's processes stopped."""
        end = time.monotonic() + self.seconds
        with ThreadPoolExecutor(1) as pool:
            while time.monotonic() < end:
                time.sleep(random.uniform(0, 0.02))
                try:
                    os.killpg(group, signal.SIGSTOP)
                    held = self.while_stopped(group, pool)
                    os.killpg(group, signal.SIGCONT)
                except ProcessLookupError:
                    return
                held.result()

    def while_stopped(self, group: int, pool: ThreadPoolExecutor) -> Future[int]:
        """One sample; none when a stopped process holds the simulation's lock, and NVML does not answer."""
        while "".join(members(group).values()).strip("T"):
            time.sleep(0.0005)
        before = self.used()
        answer = pool.submit(self.nvml)
        try:
            self.count(before, answer.result(timeout=0.1), self.used())
        except TimeoutError:
            self.skipped += 1
        return answer


def main() -> None:
    watch = Watch(Path(sys.argv[1]), float(sys.argv[2]))
    if len(sys.argv) > 3:
        watch.stopped(int(sys.argv[3]))
    else:
        watch.running()
    names = {"samples", "skipped", "above", "peak", "excess", "bracketed", "in_a_row", "longest_s"}
    print(json.dumps({name: value for name, value in vars(watch).items() if name in names}))


if __name__ == "__main__":
    main()
