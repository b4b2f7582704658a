# SPDX-License-Identifier: Apache-2.0
"""The study of how a GPU's time is shared: mixtures, waiting, timeslices, and tenants that misbehave.

    python benchmarks/time_study.py --page docs/time-study.md

Simulates one GPU (gpu_time.py) under the compiled rules of native/interposer/arbitration, writes charts beside the page
and its tables into it, and exits 1 when a claim does not hold. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "tests/native"))

import arbitration as a  # noqa: E402
import fit_study  # noqa: E402
import order_study  # noqa: E402
import restart_study  # noqa: E402
from curves import curves  # noqa: E402
from gpu_time import US, Load, Tenant  # noqa: E402
from gpu_time import S as SECOND  # noqa: E402
from study import BUSY, SWITCH_US_MOST, Study, shown  # noqa: E402

# One request of the measured LC: a copy of 1 MiB, which needs no turn, a kernel, and the host's jitter (alone 141/166).
COPY_US, KERNEL_US, HOST_US, HOST_MEAN_US = 35, 100, 1.6, 6.4

MEASURED_SHARES = (
    ("2 x 25 ms", (25_000,) * 2, "49.3 + 49.7", 99.0),
    ("15, 15, 20 ms", (15_000, 15_000, 20_000), "29.5 + 29.5 + 39.5", 98.5),
    ("4 x 12.5 ms", (12_500,) * 4, "24.53 each", 98.1),
    ("10 x 5 ms", (5_000,) * 10, "9.56 each", 95.6),
    ("25, 5 ms", (25_000, 5_000), "82.0 + 16.4", 98.4),
    ("2 x 2.048 ms (stock)", (2_048,) * 2, "44.9 each", 89.8),
)
MEASURED_LC = {5: (326, 365), 10: (326, 357), 20: (330, 372), 50: (345, 381), 100: (350, 415), 200: (406, 514)}
MEASURED_LC[2048] = (1366, 2382)


def beside_measured(study: Study) -> None:
    rows = []
    for name, slices, measured, total in MEASURED_SHARES:
        shares = study.run(*(Tenant(a.Terms(50), BUSY, slice_us=us) for us in slices))
        rows.append((name, measured, shown(shares, 2), f"{sum(shares) - total:+.1f}"))
        study.claim(abs(sum(shares) - total) < 1, f"{name}: {sum(shares):.1f} % in all, measured {total}")
    study.table("measured-shares", ("slices", "measured, %", "study, %", "total: study less measured"), rows)
    rows, lines = [], []
    for slice_us, (p50, p99) in MEASURED_LC.items():
        terms = a.Terms(50, latency=True, floor_percent=5)
        tenant = Tenant(terms, study.every(4003 * US, KERNEL_US * US), 2048 if slice_us == 2048 else None)
        study.run(tenant, Tenant(a.Terms(50, latency_others=1), BUSY, slice_us=slice_us))
        waits = np.array(tenant.waits_ns) / US
        whole = waits + COPY_US + KERNEL_US + HOST_US + study.random.exponential(HOST_MEAN_US, len(waits))
        q50, q99 = (float(np.percentile(whole, q)) for q in (50, 99))
        rows.append((f"{slice_us}", f"{p50} / {p99}", f"{q50:.0f} / {q99:.0f}", f"{q50 - p50:+.0f} / {q99 - p99:+.0f}"))
        lines.append((slice_us, q50, q99))
        study.claim(abs(q50 - p50) < 0.08 * p50, f"LC p50 at {slice_us} us: {q50:.0f}, measured {p50}")
    study.table("measured-lc", ("BE slice, us", "measured p50 / p99, us", "study", "study less measured"), rows)
    series = [
        ("study p50", [(x, y) for x, y, _ in lines]),
        ("study p99", [(x, y) for x, _, y in lines]),
        ("measured p50", [(x, m[0]) for x, m in MEASURED_LC.items()]),
        ("measured p99", [(x, m[1]) for x, m in MEASURED_LC.items()]),
    ]
    title = "LC request beside one BE, by the BE's slice"
    study.charts["time-lc-slice.svg"] = curves(title, "slice of the BE, us", "us", series, "xy")


def mixtures(study: Study) -> None:
    cases: list[tuple[str, list[a.Terms]]] = [
        (f"cap {p} alone", [a.Terms(p, "cap")]) for p in (1, 5, 10, 25, 50, 75, 95)
    ]
    cases += [
        ("cap 50, burst 50", [a.Terms(50, "cap"), a.Terms(50)]),
        ("cap 50, burst 10", [a.Terms(50, "cap"), a.Terms(10)]),
        ("cap 50, cap 50", [a.Terms(50, "cap")] * 2),
        ("cap 30, cap 30, burst 40", [a.Terms(30, "cap"), a.Terms(30, "cap"), a.Terms(40)]),
        ("10, 20, 70 burst", [a.Terms(p) for p in (10, 20, 70)]),
        ("4 x cap 25", [a.Terms(25, "cap")] * 4),
        ("10 x burst 10", [a.Terms(10)] * 10),
        ("32 x burst 3", [a.Terms(3)] * 32),
        ("10 x cap 10", [a.Terms(10, "cap", others_least_percent=10, others_capped=9)] * 10),
        ("20 x cap 5", [a.Terms(5, "cap", others_least_percent=5, others_capped=19)] * 20),
    ]
    rows = []
    for name, terms in cases:
        shares = study.run(*(Tenant(one, BUSY) for one in terms))
        rows.append((name, shown(shares), f"{sum(shares):.1f}"))
        worked = sum(shares) / 100 if len(terms) > 1 else 1.0
        for one, share in zip(terms, shares, strict=True):
            of_cores = one.cores_percent / sum(t.cores_percent for t in terms) if sum(shares) > 90 else 1
            study.claim(share >= min(one.cores_percent, 100 * of_cores) * worked * 0.97 - 0.3, f"{name}: {share:.1f} %")
            debt = 400 * a.budget_half(min(one.cores_percent, 99)) / study.end  # one that others interrupt may have
            held = share <= one.cores_percent + 1 + debt
            study.claim(one.policy != "cap" or held, f"{name}: a cap used {share:.1f} %")
    study.table("mixtures", ("tenants, all saturating", "shares, %", "total, %"), rows)


def lc_waiting(study: Study) -> None:
    service_us, rows = 100.0, []
    lines: dict[int, list[tuple[float, float]]] = {n: [] for n in (1, 2, 4, 8)}
    bounds = []
    for rho in (0.05, 0.2, 0.4, 0.6, 0.8, 0.9):
        load = study.poisson(rho * SECOND / (service_us * US), service_us)
        row = []
        lengths = np.array([length for _, length in load.requests]) / US
        rate = len(lengths) / (study.end / US)
        loaded = rate * float(lengths.mean())
        bound = 10 + SWITCH_US_MOST + rate * float((lengths**2).mean()) / (2 * (1 - loaded))
        for n, line in lines.items():
            begin, others = 0, []
            for i in range(n):
                end = (i + 1) * 1000 // n
                turn = (begin, end - begin) if n > 1 else (0, 0)
                others.append(a.Terms(50 // n, latency_others=1, turn_begin=turn[0], turn_length=turn[1]))
                begin = end
            lc = Tenant(a.Terms(50, latency=True, floor_percent=5), load)
            study.run(lc, *(Tenant(one, BUSY) for one in others))
            waits = np.array(lc.waits_ns) / US
            row.append(f"{waits.mean():.0f} / {np.percentile(waits, 99):.0f}")
            line.append((rho, float(waits.mean())))
            within = waits.mean() <= bound * 1.1 + 5 or rho > 0.6  # then its floor holds it back
            study.claim(within, f"LC beside {n} at {rho}: {waits.mean():.0f} us > {bound:.0f}")
        bounds.append((rho, bound))
        rows.append((f"{rho:g}", *row, f"{bound:.0f}"))
    head = ("LC load", *(f"beside {n} BE" for n in lines), "bound of the mean")
    study.table("lc", head, rows)
    series = [(f"beside {n} BE", line) for n, line in lines.items()] + [("bound", bounds)]
    title = "Mean wait of LC requests beside best-effort tenants"
    study.charts["time-lc-load.svg"] = curves(title, "load of the LC tenant", "mean wait, us", series, "y")


def with_gaps(work_us: int, wait_us: int) -> tuple[str, Load]:
    """Returns a load that works and waits in turns, and what it is called; (0, 0): it never waits."""
    if not work_us:
        return "wants everything", BUSY
    load = Load(think=(work_us * US, wait_us * US), full=False)
    return f"{work_us} us of work, {wait_us} without", load


def floor(study: Study) -> None:
    """What best effort has beside latency-critical tenants that leave it no time to be on the GPU."""
    rows = []
    for gaps in ((0, 0), (900, 8), (300, 8), (100, 30), (20, 5), (10, 50), (10, 150), (100, 300)):
        name, load = with_gaps(*gaps)
        lc = Tenant(a.Terms(40, latency=True, floor_percent=5), load)
        own, others = study.run(lc, Tenant(a.Terms(60, latency_others=1), BUSY))
        rows.append((name, f"{own:.1f}", f"{others:.1f}"))
        study.claim(others >= 4.5, f"{name}: best effort has {others:.1f} %")
    study.table("floor", ("the latency-critical tenant", "it has, %", "best effort has, %"), rows)


def floor_of_two(study: Study) -> None:
    """The same beside two latency-critical tenants, of 60 and 20 cores."""
    rows = []
    for first, second in (
        ((0, 0), (0, 0)),
        ((0, 0), (900, 8)),
        ((900, 8), (300, 8)),
        ((300, 8), (300, 8)),
        ((100, 30), (100, 30)),
        ((20, 5), (20, 5)),
    ):
        names, tenants = [], []
        for cores, gaps in ((60, first), (20, second)):
            name, load = with_gaps(*gaps)
            terms = a.Terms(cores, latency=True, floor_percent=5, latency_others=1, turn_length=950)
            tenants.append(Tenant(terms, load))
            names.append(name)
        shares = study.run(*tenants, Tenant(a.Terms(20, latency_others=2), BUSY))
        rows.append((*names, *(f"{share:.1f}" for share in shares)))
        study.claim(shares[-1] >= 4.5, f"two, {' and '.join(names)}: best effort has {shares[-1]:.1f} %")
    study.table("floor-two", ("60 cores", "20 cores", "the first has, %", "the second, %", "best effort, %"), rows)


def slice_cost(study: Study) -> None:
    rows, totals, waits = [], [], []
    for us in (10, 50, 200, 500, 1000, 2048, 4500, 11_250, 22_500, 45_000):
        part = Study(study.end / SECOND / (10 if us < 500 else 1), 1)
        total = sum(part.run(*(Tenant(a.Terms(50), BUSY, slice_us=us) for _ in range(2))))
        light = Tenant(a.Terms(50), study.every(5_003 * US, 100 * US), slice_us=us)
        study.run(light, Tenant(a.Terms(50), BUSY, slice_us=us))
        wait = float(np.percentile(np.array(light.waits_ns) / US, 99))
        rows.append((f"{us}", f"{total:.1f}", f"{wait:.0f}"))
        totals.append((us, total))
        waits.append((us, wait))
    head = ("slice, us", "two saturating tenants in all, %", "100 us request each 5 ms beside one: p99 wait, us")
    study.table("slices", head, rows)
    title = "What two saturating tenants get done, by slice"
    study.charts["time-slice-total.svg"] = curves(title, "slice, us", "% of the chip", [("total", totals)], "x")
    title = "Wait of a request beside a saturating tenant, by slice"
    study.charts["time-slice-wait.svg"] = curves(title, "slice, us", "p99, us", [("p99", waits)], "xy")
    study.claim(totals[0][1] < 10 and totals[-2][1] > 98, "short slices cost throughput, 22.5 ms ones little")


def several_processes(study: Study) -> None:
    """Jobs under a cap whose processes share its budget, after a second in which their keepers begin."""
    rows, counts = [], (1, 2, 3, 8, 32)
    for percent in (10, 25, 50, 75, 90):
        row = []
        for n in counts:
            tenants = [Tenant(a.Terms(percent, "cap"), BUSY, job="job") for _ in range(n)]
            share = sum(study.run(*tenants))
            row.append(f"{share:.1f}")
            study.claim(share <= percent + 1 + 2 * SECOND / study.end, f"cap {percent} of {n} processes: {share:.1f} %")
            if 1 < n < 32 and percent > 10:
                study.claim(share >= percent * 0.9 - 1, f"cap {percent} of {n} processes: {share:.1f} %")
        rows.append((f"{percent}", *row))
    study.table("processes", ("cap, %", "1 process", *(f"{n} processes" for n in counts[1:])), rows)


def misbehaviour(study: Study) -> None:
    half, rows = study.end // 2, []

    def four(**first: object) -> list[Tenant]:
        terms = a.Terms(25, "cap")
        return [Tenant(terms, BUSY, **first), *(Tenant(terms, BUSY) for _ in range(3))]  # type: ignore[arg-type]

    def three(**first: object) -> list[Tenant]:
        return [Tenant(a.Terms(25, "cap"), BUSY, **first), *(Tenant(a.Terms(25), BUSY) for _ in range(2))]  # type: ignore[arg-type]

    def beside(cores: int, count: int) -> list[Tenant]:
        """One of all other cores, and then the processes of a job."""
        terms, left = (
            a.Terms(c, others_least_percent=100 - c, only_other_percent=100 - c) for c in (cores, 100 - cores)
        )
        return [Tenant(left, BUSY), *(Tenant(terms, BUSY, job="crowd") for _ in range(count))]

    cases = [
        ("4 x cap 25, all honest", four()),
        ("one dies half-way", four(dies_ns=half)),
        ("one's keeper is stopped half-way", four(keeper_stops_ns=half)),
        ("one writes itself credit", four(forges_credit=True)),
        ("cap 25 beside burst 25, 25, all honest", three()),
        ("the cap writes itself credit", three(forges_credit=True)),
        ("its keeper never runs", three(keeper_stops_ns=0)),
        ("burst 50 beside 50 of 32 processes", beside(50, 32)),
        ("burst 90 beside 10 of 8 processes", beside(10, 8)),
        ("burst 99 beside 1 of 32 processes", beside(1, 32)),
    ]
    for name, tenants in cases:
        shares = study.run(*tenants)
        if tenants[-1].job:
            cores = tenants[0].terms.cores_percent
            study.claim(shares[0] >= cores * 0.95, f"{name}: the first has {shares[0]:.1f} %")
            shares = [shares[0], sum(shares[1:])]
        else:
            for share, tenant in zip(shares[1:], tenants[1:], strict=True):
                # Less the switches, and two rounds in which keepers take their processes as at work before they know.
                least = tenant.terms.cores_percent * (0.97 - 2 * a.ROUND_NS / study.end)
                study.claim(share >= least, f"{name}: another one has {share:.1f} %")
        rows.append((name, f"{shares[0]:.1f}", shown(shares[1:])))
    study.table("misbehaviour", ("case", "the first, %", "the others, %"), rows)


STUDIES = (
    beside_measured,
    mixtures,
    lc_waiting,
    floor,
    floor_of_two,
    slice_cost,
    fit_study.light_beside,
    fit_study.gappy_beside,
    several_processes,
    misbehaviour,
    restart_study.restarts,
    fit_study.chosen_times,
    order_study.lc_order,
    order_study.lc_equal,
    order_study.lc_below,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="simulated time of each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="folder of the charts; the page's by default")
    parser.add_argument("--page", type=Path, help="page whose tables are written; none: they are printed")
    arguments = parser.parse_args()
    study = Study(arguments.seconds, arguments.seed)
    for part in STUDIES:
        part(study)
    folder = arguments.output or (arguments.page.parent if arguments.page else None)
    for name, drawn in study.charts.items() if folder else ():
        (folder / name).write_text(drawn, encoding="utf-8")
    text = arguments.page.read_text(encoding="utf-8") if arguments.page else ""
    for name, table in study.tables.items():
        block = rf"(<!-- {name} -->)\n.*?(<!-- end -->)"
        text = re.sub(block, lambda match, table=table: f"{match[1]}\n{table}\n{match[2]}", text, flags=re.DOTALL)
        if not arguments.page:
            print(f"{name}\n\n{table}\n")
    if arguments.page:
        arguments.page.write_text(text, encoding="utf-8")
    for failure in study.failures:
        print(f"DOES NOT HOLD: {failure}")
    return 1 if study.failures else 0


if __name__ == "__main__":
    sys.exit(main())
