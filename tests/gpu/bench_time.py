# SPDX-License-Identifier: Apache-2.0
"""The GPU's time on a real GPU: prints docs/benchmarks/time.md's tables, each beside native in the same run.

Usage: make bench-time [SECTIONS="caps light ..."], as root on a GPU node with nvcc and
PyTorch. Needs build/native (make build). REPEATS (3) is how often each figure is measured; medians are printed.
With HAMI_CORE=/path/to/libvgpu.so (built by its own build.sh) caps, light and mixtures measure HAMi-core beside.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/native"), str(ROOT / "tests/gpu")]

from hinted import hints, inference, placeholders  # noqa: E402
from little_to_do import programs, several  # noqa: E402
from tenants import (  # noqa: E402
    HAMI_CORE,
    KERNELS,
    LC,
    LC_A,
    LC_B,
    LIGHT,
    REPEATS,
    SECONDS,
    Tenant,
    alone,
    answer,
    beside,
    median,
    prepare,
    rate,
    row,
    together,
    told,
    work_command,
)

from hami_hpc.contract import constants as c  # noqa: E402

BURSTS = ("bursts", "on=300", "off=1500")
KINDS = {
    "kernels of 1 ms": KERNELS,
    "kernels of 13 us": ("kernels", "us=13"),
    "4 contexts": ("contexts",),
    "8 green contexts": ("green",),
    "64 streams": ("streams",),
    "graph of 100 kernels": ("graph",),
    "persistent kernel": ("persistent",),
    "tail launches": ("tail",),
    "copies within the device": ("copies",),
    "memsets": ("memsets",),
    "bursts of 300 ms after 1.5 s": BURSTS,
}


def caps() -> None:
    print("\n## One tenant under a cap, work of every kind, percent of native\n")
    row("work", *(f"cap {cap}" for cap in (10, 25, 50, 90)), *["HAMi-core 25"] * bool(HAMI_CORE))
    row(*["---"] * (5 + bool(HAMI_CORE)))
    for name, work in KINDS.items():
        cells = []
        base = KERNELS if work in (BURSTS, ("contexts",)) else work
        native = median(partial(rate, Tenant(base)))
        columns = [(cap, "cap") for cap in (10, 25, 50, 90)] + [(25, "HAMi-core")] * bool(HAMI_CORE)
        for cap, policy in columns:
            if cap not in (25, 50) and work is not KERNELS:
                cells.append("")
                continue
            runs = [alone(Tenant(work, cap, policy)) for _ in range(REPEATS)]
            got = 100 * statistics.median(r["rate"] for r in runs) / native
            most = max((100 * r["best"] / native for r in runs if "best" in r), default=0)
            cells.append(f"{got:.2f}" + (f" ({most:.1f})" if most else ""))
        row(name, *cells)
    print("\nIn brackets: the most in any 100 ms of all runs. Of kernels in one context: 4 contexts, bursts.")


def light() -> None:
    print("\n## A light tenant: one kernel of 13 us each ms, under cap 50\n")
    row("", "p50 us", "p99 us", "requests/s", "p99 over native", "rate over native")
    row(*["---"] * 6)
    native = [alone(Tenant(LIGHT)) for _ in range(REPEATS)]
    capped = {"cap 50": [alone(Tenant(LIGHT, 50)) for _ in range(REPEATS)]}
    if HAMI_CORE:
        capped["HAMi-core 50"] = [alone(Tenant(LIGHT, 50, "HAMi-core")) for _ in range(REPEATS)]
    for name, runs in {"native": native, **capped}.items():
        p50, p99, rate = (statistics.median(r[k] for r in runs) for k in ("p50", "p99", "rate"))
        base99, base = (statistics.median(r[k] for r in native) for k in ("p99", "rate"))
        row(name, f"{p50:.1f}", f"{p99:.1f}", f"{rate:.0f}", p99 / base99, rate / base)


MIXTURES: tuple[tuple[tuple[int, str], ...], ...] = (
    ((50, "cap"), (50, "burst")),
    ((30, "cap"), (30, "cap"), (40, "burst")),
    ((50, "cap"), (10, "burst")),
    ((50, "cap"), (50, "cap")),
    ((25, "cap"),) * 4,
    ((10, "cap"),) * 10,
    ((75, "burst"), (25, "burst")),
    ((50, "cap"), (40, "none")),
)


def mixtures() -> None:
    print("\n## Several tenants at once, all want everything, percent of native\n")
    row("tenants", "each", "total")
    row(*["---"] * 3)
    native = median(partial(rate, Tenant(KERNELS)))
    for mixture in (*MIXTURES, *[((50, "HAMi-core"),) * 2, ((25, "HAMi-core"),) * 4] * bool(HAMI_CORE)):
        runs = []
        for _ in range(REPEATS):
            tenants = [Tenant(KERNELS, cores, policy) for cores, policy in mixture]
            runs.append([100 * n["rate"] / native for n in together(tenants)])
        each = [statistics.median(column) for column in zip(*runs, strict=True)]
        name = ", ".join(f"{policy} {cores}" for cores, policy in mixture)
        row(name, ", ".join(f"{x:.1f}" for x in each), statistics.median(sum(r) for r in runs))


def latency() -> None:
    print("\n## A latency-critical tenant beside best-effort tenants\n")
    row("requests", "beside", "kernels of", "p50 us", "p99 us", "p50 over alone", "p99 over alone", "best effort %")
    row(*["---"] * 8)
    usual = ((1, 0), (1, 200), (1, 1000), (1, 5000), (1, 50000), (3, 1000))  # best-effort tenants, us of their kernels
    for name, work, loads in (
        ("(a) 1 MiB H2D + 100 us, 250/s", LC_A, usual),
        ("(a) at random times", (*LC_A, "random=1"), ((1, 0), (1, 1000), (3, 1000))),
        ("(b) 20 x 100 us, 50/s", LC_B, usual),
    ):
        base = [alone(Tenant(work)) for _ in range(REPEATS)]
        base50, base99 = (statistics.median(r[k] for r in base) for k in ("p50", "p99"))
        row(name, "nobody", "", f"{base50:.0f}", f"{base99:.0f}", 1.0, 1.0, "")
        busy = statistics.median(r["mean"] * r["rate"] for r in base) / 1e6
        for count, us in loads:
            stock = us == 0
            kernels = ("kernels", f"us={us or 1000}")
            native = alone(Tenant(kernels))["rate"]
            others = [Tenant(kernels) if stock else Tenant(kernels, 60 // count, "burst")] * count
            runs = [beside(Tenant(work) if stock else Tenant(work, 40, "burst", LC), others) for _ in range(REPEATS)]
            p50, p99 = (statistics.median(r[0][k] for r in runs) for k in ("p50", "p99"))
            left = [[100 * n["rate"] / native / (1 - busy) for n in r[1]] for r in runs]
            each = [statistics.median(column) for column in zip(*left, strict=True)]
            row(
                name,
                f"{count} best effort, {'stock' if stock else 'ours'}",
                f"{us or 1000} us",
                f"{p50:.0f}",
                f"{p99:.0f}",
                p50 / base50,
                p99 / base99,
                " + ".join(f"{x:.1f}" for x in each),
            )
    print("\nBest effort %: of what the latency-critical tenant leaves (native less the time of its requests alone).")


TURN_CHANGES_US = (0, 16650, 33300, 50000)  # of three equal tenants, in the common round of 50 ms
BEGINS_US = (-8400, -2300, -1200, -850, -300, 400, 860, 1100, 8400)  # between these, from the nearest change
LONGER_US = 60


LOADS = {
    "(a) 1 MiB H2D + 100 us, 250/s": (LC_A, (100, 600, 1100, 1600)),
    "(b) 20 x 100 us, 50/s": (LC_B, (500, 1500, 4500, 14500, 15500, 16150, 16950, 17500)),
}  # with the phases at which they begin, us


def changes() -> None:
    print("\n## Requests beside three best-effort tenants, by when they begin\n")
    row("requests", "begin, us from the nearest change", f"took {LONGER_US} us more than the median", "of", "by, us")
    row(*["---"] * 5)
    for name, (work, phases) in LOADS.items():
        _changes(name, work, phases)


def _changes(name: str, work: tuple[str, ...], phases: Sequence[int]) -> None:
    longer: dict[int, list[float]] = {at: [] for at in BEGINS_US[:-1]}
    counts = dict.fromkeys(longer, 0)
    took: list[float] = []
    rates = [0.0] * 3
    for phase_us in phases:
        request = Tenant((*work, "list=1", f"phase={phase_us}"), 40, "burst", LC)
        request, *others = told([request, *[Tenant(KERNELS, 20, "burst")] * 3])
        begin = time.time() + 3
        busy = [t.start(f"begin={begin:.3f}", seconds=SECONDS + 1) for t in others]
        time.sleep(begin - time.time())
        command = work_command(request.work[0], SECONDS, *request.work[1:])
        done = subprocess.run(command, env=request.environment(), capture_output=True, text=True, check=True)
        listed = [tuple(map(float, line.split())) for line in done.stderr.splitlines() if line[:1].isdigit()]
        took += [us for _, us in listed]
        middle = statistics.median(us for _, us in listed)
        for at_us, us in listed:
            offset = min((at_us % 50000 - change for change in TURN_CHANGES_US), key=abs)
            place = max((at for at in longer if at <= offset), default=BEGINS_US[0])
            counts[place] += 1
            longer[place] += [us - middle] if us > middle + LONGER_US else []
        rates = [rate + answer(process)["rate"] for rate, process in zip(rates, busy, strict=True)]
    for at, end in itertools.pairwise(BEGINS_US):
        by = f"{min(longer[at]):.0f} to {max(longer[at]):.0f}" if longer[at] else ""
        row(name, f"{at} to {end}", len(longer[at]), counts[at], by)
    took.sort()
    p50, p99 = (took[int(q * len(took))] for q in (0.5, 0.99))
    shares = " + ".join(f"{100 * rate / sum(rates):.1f}" for rate in rates)
    row(name, f"all: p50 {p50:.0f}, p99 {p99:.0f}", sum(map(len, longer.values())), len(took), f"best effort {shares}")


URGENT = ("requests", "us=100", "every=4000")
LOWER = ("requests", "us=1000", "count=5", "every=20011")  # no multiple: the two are not to keep step


def order() -> None:
    print("\n## Two latency-critical tenants, us: requests of 100 us (urgent, 250/s) and 5 x 1 ms (lower, 50/s)\n")
    row("terms", "best effort", "urgent p50", "urgent p99", "lower p50", "lower p99", "best effort %")
    row(*["---"] * 7)
    base = [[alone(Tenant(work)) for _ in range(REPEATS)] for work in (URGENT, LOWER)]
    row("each alone", 0, *(f"{statistics.median(r[k] for r in runs):.0f}" for runs in base for k in ("p50", "p99")), "")
    native = alone(Tenant(KERNELS))["rate"]
    for name, cores, slo_us in (("stock", 0, 0), ("equal", 40, 0), ("in order", 40, 1000)):
        for count in (0, 1):
            urgent = Tenant(URGENT, cores, "burst", LC | {"slo_us": slo_us})
            lower, other = Tenant(LOWER, cores, "burst", LC), Tenant(KERNELS, cores // 2, "burst")
            runs = [together([urgent, lower, *[other] * count]) for _ in range(REPEATS)]
            cells = [statistics.median(r[i][k] for r in runs) for i in (0, 1) for k in ("p50", "p99")]
            theirs = f"{100 * statistics.median(r[2]['rate'] for r in runs) / native:.1f}" if count else ""
            row(name, count, *(f"{us:.0f}" for us in cells), theirs)


PACES = (0, 50, 60, 80, 120, 200)  # us from one kernel of 50 us to the next


def paces() -> None:
    print("\n## Requests of 20 kernels of 50 us, 25/s, launched one by one, beside one best-effort job\n")
    row("us from launch to launch", "alone p50, p99 us", "beside p50, p99 us", "more us", "p50, p99 over alone")
    row(*["---"] * 5)
    for pace in PACES:
        request = ("requests", "us=50", "count=20", "every=40000", f"pace={pace}")
        base = [alone(Tenant(request)) for _ in range(REPEATS)]
        runs = [beside(Tenant(request, 40, "burst", LC), [Tenant(KERNELS, 60, "burst")])[0] for _ in range(REPEATS)]
        base50, base99, p50, p99 = (statistics.median(r[k] for r in of) for of in (base, runs) for k in ("p50", "p99"))
        over = f"{p50 / base50:.2f}, {p99 / base99:.2f}"
        row(pace, f"{base50:.0f}, {base99:.0f}", f"{p50:.0f}, {p99:.0f}", f"{p50 - base50:.0f}", over)


def training() -> None:
    print("\n## PyTorch training alone, under a cap, percent of native\n")

    def steps(cores: int) -> float:
        return float(Tenant(("train.py", "6"), cores).start().communicate(timeout=60)[0])

    native = median(partial(steps, 0))
    row("cap 25", "cap 50", "cap 75", "cap 100")
    row(*["---"] * 4)
    row(*(100 * median(partial(steps, cap)) / native for cap in (25, 50, 75, 100)))


def keeper_ns(pid: int) -> int:
    """Returns the CPU time that the interposer's threads in process `pid` have taken."""
    return sum(
        int((task / "schedstat").read_text().split()[0])
        for task in Path(f"/proc/{pid}/task").iterdir()
        if (task / "comm").read_text().strip() in {"hami-share", "hami-probe"}
    )


def cost() -> None:
    print("\n## What the interposer's threads take, percent of one core\n")
    row("tenant", "percent of a core")
    row(*["---"] * 2)
    tenants = {
        "idle, with a context": Tenant(("requests", "every=60000000"), 50),
        "13 us each ms, cap 50": Tenant(LIGHT, 50),
        "wants everything, cap 10": Tenant(KERNELS, 10),
        "wants everything, cap 50": Tenant(KERNELS, 50),
        "wants everything, burst 50": Tenant(KERNELS, 50, "burst"),
    }
    for name, tenant in tenants.items():
        running = tenant.start(seconds=12)
        time.sleep(3)
        begin, before = time.monotonic(), keeper_ns(running.pid)
        time.sleep(8)
        percent = (keeper_ns(running.pid) - before) / 1e7 / (time.monotonic() - begin)
        running.kill()
        running.wait()
        row(name, percent)


ENDINGS = ("exit", "_exit", "kill")


def endings() -> None:
    """What is counted of programs that end at once: 10 of 20 ms of work each, one after the other, in one job."""
    print("\n## Ten programs of 20 ms of work each, cap 25: what their job is charged with\n")
    row("they end by", "counted ms, of 200")
    row(*["---"] * 2)
    for ending in ENDINGS:
        job = Tenant(KERNELS, 25).slice()
        for _ in range(10):
            command = work_command("once", 1, "us=1000", "count=20", f"end={ENDINGS.index(ending)}")
            subprocess.run(command, env=job.environment(), check=False)
        offset, size, *_ = c.USAGE_FIELDS["time_used"]
        used_ns = int.from_bytes((job.directory / c.FILE_USAGE).read_bytes()[offset : offset + size], "little")
        row(ending, f"{used_ns / 1e6:.1f}")


SECTIONS = {
    "caps": caps,
    "light": light,
    "mixtures": mixtures,
    "programs": programs,
    "several": several,
    "latency": latency,
    "changes": changes,
    "order": order,
    "paces": paces,
    "hints": hints,
    "placeholders": placeholders,
    "inference": inference,
    "training": training,
    "cost": cost,
    "endings": endings,
}


def main() -> None:
    prepare()
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    print(f"{gpu}; medians of {REPEATS}")
    for name in sys.argv[1:] or list(SECTIONS):
        begin = time.monotonic()
        SECTIONS[name]()
        print(f"\n({name}: {time.monotonic() - begin:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
