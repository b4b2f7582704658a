# SPDX-License-Identifier: Apache-2.0
"""A week of jobs and what it costs; every hour and cent was worked out by hand.

Rates: H200 2.50, A100 1.00 an hour; lc x 1.25, be x 0.6; at least 300 s a run; NODE_FAIL is not charged.
The week: Monday 2026-10-19 to Monday 2026-10-26, Europe/Berlin, where the clocks go back on Sunday: 169 hours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from accounting_week import Run

from hami_hpc.accounting.sources.sacct_json import open_input
from hami_hpc.accounting.store import export_reader
from hami_hpc.accounting.store.database import connect

WEEK = ("2026-10-19", "2026-10-26")
USERS = (("phys", "ann"), ("phys", "bob"), ("chem", "eve"))


def _vgpu(kind: str, mem_mib: int, cores: int) -> dict[str, int]:
    counts = {"gres/vgpu": 1, f"gres/vgpu:{kind}": 1, "gres/vgpu_mem": mem_mib, "gres/vgpu_cores": cores}
    return {"cpu": 1, "node": 1, **counts}


def _gpu(kind: str, count: int) -> dict[str, int]:
    return {"cpu": 1, "node": 1, "gres/gpu": count, f"gres/gpu:{kind}": count}


#                                                                                     GPU-hours       EUR
RUNS = (
    # 6 h of 2 H200: 12 x 2.50                                                           12          30.00
    Run(1, "ann", "phys", "COMPLETED", "2026-10-19T08:00+02:00", "2026-10-19T14:00+02:00", _gpu("h200", 2)),
    # 30 min, by cores 0.5 of an H200: 0.25 x 2.50                                        0.25         0.625
    Run(2, "ann", "phys", "FAILED", "2026-10-19T09:00+02:00", "2026-10-19T09:30+02:00", _vgpu("std", 8192, 50)),
    # 2 h, by memory 71578 of 143156 MiB, lc: 1 x 3.125                                   1            3.125
    Run(3, "ann", "phys", "CANCELLED", "2026-10-20T10:00+02:00", "2026-10-20T12:00+02:00", _vgpu("lc", 71578, 25)),
    # 24 h of a tenth, be: 2.4 x 1.50                                                     2.4          3.60
    Run(4, "eve", "chem", "TIMEOUT", "2026-10-20T00:00+02:00", "2026-10-21T00:00+02:00", _vgpu("be", 4096, 10)),
    # requeued: 1 h, then 3 h under the same number: 4 x 2.50                             4           10.00
    Run(5, "bob", "phys", "PREEMPTED", "2026-10-21T06:00+02:00", "2026-10-21T07:00+02:00", _gpu("h200", 1)),
    Run(5, "bob", "phys", "COMPLETED", "2026-10-21T08:00+02:00", "2026-10-21T11:00+02:00", _gpu("h200", 1)),
    # 6 h, of which 1.5 h suspended: 4.5 x 2.50                                           4.5         11.25
    Run(6, "bob", "phys", "COMPLETED", "2026-10-21T12:00+02:00", "2026-10-21T18:00+02:00", _gpu("h200", 1),
        suspended=[("2026-10-21T13:00+02:00", "2026-10-21T14:00+02:00"),
                   ("2026-10-21T15:00+02:00", "2026-10-21T15:30+02:00")]),
    # an array of 3 x 40 min of a quarter: 0.5 x 2.50                                     0.5          1.25
    *(Run(20 + task, "eve", "chem", "COMPLETED", "2026-10-22T10:00+02:00", "2026-10-22T10:40+02:00",
          _vgpu("std", 4096, 25), array=(20, task)) for task in (1, 2, 3)),
    # heterogeneous, 2 h: a whole A100, 2 x 1.00, and by memory a quarter of an H200,     2            2.00
    # 35789 of 143156 MiB, be: 0.5 x 1.50                                                 0.5          0.75
    Run(30, "eve", "chem", "COMPLETED", "2026-10-22T12:00+02:00", "2026-10-22T14:00+02:00", _gpu("a100", 1),
        partition="old", het=(30, 0)),
    Run(31, "eve", "chem", "COMPLETED", "2026-10-22T12:00+02:00", "2026-10-22T14:00+02:00", _vgpu("be", 35789, 5),
        het=(30, 1)),
    # 5 h of two MIG instances, each 4 of 8 memory slices: 5 x 2.50                       5           12.50
    Run(40, "eve", "chem", "COMPLETED", "2026-10-22T15:00+02:00", "2026-10-22T20:00+02:00", _gpu("h200_3g.71gb", 2)),
    # the node failed: held, not charged                                                  4            0
    Run(41, "ann", "phys", "NODE_FAIL", "2026-10-23T01:00+02:00", "2026-10-23T02:00+02:00", _gpu("h200", 4)),
    # 36 s, charged as 300 s: 300 / 3600 x 2.50                                           0.01         0.208333...
    Run(42, "ann", "phys", "COMPLETED", "2026-10-23T03:00:00+02:00", "2026-10-23T03:00:36+02:00", _gpu("h200", 1)),
    # 00:00 summer time to 06:00 winter time: 7 h x 2.50                                  7           17.50
    Run(50, "bob", "phys", "COMPLETED", "2026-10-25T00:00+02:00", "2026-10-25T06:00+01:00", _gpu("h200", 1)),
    # runs out of the week: 2 of 6 h: 2 x 2.50                                            2            5.00
    Run(51, "bob", "phys", "COMPLETED", "2026-10-25T22:00+01:00", "2026-10-26T04:00+01:00", _gpu("h200", 1)),
    # runs into the week: 3 of 7 h: 3 x 2.50                                              3            7.50
    Run(52, "ann", "phys", "COMPLETED", "2026-10-18T20:00+02:00", "2026-10-19T03:00+02:00", _gpu("h200", 1)),
    # a user whom slurmdbd and the system know no more: 1 x 2.50                          1            2.50
    Run(53, "gone", "phys", "COMPLETED", "2026-10-23T04:00+02:00", "2026-10-23T05:00+02:00", _gpu("h200", 1),
        uid=39999),
    # still running: Friday 12:00 summer time to the week's end, 61 h x 2.50             61          152.50
    Run(54, "ann", "phys", "RUNNING", "2026-10-23T12:00+02:00", None, _gpu("h200", 1)),
    # no GPU                                                                              0            0
    Run(55, "ann", "phys", "COMPLETED", "2026-10-23T04:00+02:00", "2026-10-23T05:00+02:00", {"cpu": 4, "node": 1}),
    # ended, but nobody wrote when: left out and named
    Run(60, "eve", "chem", "COMPLETED", "2026-10-23T04:00+02:00", None, _gpu("h200", 1)),
    # a slice without its size: left out and named
    Run(61, "eve", "chem", "COMPLETED", "2026-10-23T04:00+02:00", "2026-10-23T05:00+02:00",
        {"cpu": 1, "gres/vgpu": 1, "gres/vgpu:std": 1}),
    # a model that the site does not know: left out and named
    Run(62, "eve", "chem", "COMPLETED", "2026-10-23T04:00+02:00", "2026-10-23T05:00+02:00", _gpu("b300", 1)),
)  # fmt: skip

# user: (jobs, GPU-hours, EUR). Hours: ann 12 + 0.25 + 1 + 4 + 0.01 + 3 + 61, bob 4 + 4.5 + 7 + 2,
# eve 2.4 + 0.5 + 2 + 0.5 + 5. EUR, exact: ann 30 + 0.625 + 3.125 + 0 + 0.20833 + 7.50 + 152.50 = 193.95833,
# bob 10 + 11.25 + 17.50 + 5 = 43.75, eve 3.60 + 1.25 + 2 + 0.75 + 12.50 = 20.10, uid 39999 2.50; 260.30833 in all.
EXPECTED = {
    ("chem", "eve"): (7, "10.4000", "20.10"),
    ("phys", "ann"): (7, "81.2600", "193.96"),
    ("phys", "bob"): (5, "17.5000", "43.75"),
    ("phys", "uid:39999"): (1, "1.0000", "2.50"),
}
TOTAL = {"jobs": 20, "gpu_hours": "110.1600", "cost": "260.31"}
RATES = """
version = 1
currency = "EUR"
timezone = "Europe/Berlin"
[gpus.a100]
total_mib = 40337
[partitions.old]
gpu_models = ["a100"]
[[rates]]
model = "h200"
per_gpu_hour = 2.50
[[rates]]
model = "a100"
per_gpu_hour = 1.00
[[factors]]
class = "lc"
factor = 1.25
[[factors]]
class = "be"
factor = 0.6
[[terms]]
minimum_s = 300
unbilled_states = ["NODE_FAIL"]
"""


def lines(bill: Any) -> dict[tuple[str, str], tuple[int, str, str]]:
    """A bill in JSON by account and user, in the form of EXPECTED."""
    return {(line["account"], line["user"]): (line["jobs"], line["gpu_hours"], line["cost"]) for line in bill["lines"]}


def read(path: Path, scratch: Path) -> tuple[list[dict[str, Any]], list[tuple[Any, ...]]]:
    """(records, rejects) of a file of sacct's, in one order whatever the file's.

    When a run that goes on was read is left out: two calls of sacct lie seconds apart.
    """
    con = connect(256)
    try:
        export_reader.load(con, open_input(path, scratch), ZoneInfo("UTC"), "", 0, scratch)
        names = ", ".join(export_reader.JOB_COLUMNS)
        rows = con.execute(f"SELECT {names} FROM records ORDER BY job_id, submit_s").fetchall()
        rejects = con.execute("SELECT * EXCLUDE detail FROM rejects ORDER BY job_id, submit_s").fetchall()
    finally:
        con.close()
    records = [dict(zip(export_reader.JOB_COLUMNS, row, strict=True)) for row in rows]
    return [{**record, "observed_s": None} for record in records], rejects


def in_json(expected: Mapping[tuple[str, str], tuple[int, str, str]]) -> dict[tuple[str, str], tuple[int, str, str]]:
    """What is expected of sacct --json, which names no number for a user whom nobody knows."""
    return {(account, _without_uid(user)): line for (account, user), line in expected.items()}


def records_in_json(
    records: Sequence[Mapping[str, Any]], rejects: Sequence[tuple[Any, ...]]
) -> tuple[list[dict[str, Any]], list[tuple[Any, ...]]]:
    """What ``read`` has of a text, as far as sacct --json says it too."""
    return [{**record, "username": _without_uid(record["username"])} for record in records], list(rejects)


def _without_uid(user: str) -> str:
    return "(unknown)" if user.startswith("uid:") else user
