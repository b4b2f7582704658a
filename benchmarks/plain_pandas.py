# SPDX-License-Identifier: Apache-2.0
"""The script that a site would write: pandas.read_csv, then each row's times and TRES parsed in Python.

It is here to be measured against (bench_accounting.py), in two forms that keep the same facts as the ingest:
``plain`` with DataFrame.iterrows and strptime, as in most such scripts, and ``careful`` with itertuples and
fromisoformat, the quickest that stays a loop over rows.
"""

from __future__ import annotations

import sys
from datetime import datetime
from zoneinfo import ZoneInfo

import pandas as pd

ZONE = ZoneInfo("Europe/Berlin")


def parse_time(text: str, careful: bool) -> float | None:
    """A local time as seconds since 1970."""
    if text in ("Unknown", "None"):
        return None
    moment = datetime.fromisoformat(text) if careful else datetime.strptime(text, "%Y-%m-%dT%H:%M:%S")
    return moment.replace(tzinfo=ZONE).timestamp()


def parse_duration(text: str) -> int:
    """[days-]hours:minutes:seconds."""
    days, _, clock = text.rpartition("-")
    hours, minutes, seconds = clock.split(":")
    return int(days or 0) * 86400 + int(hours) * 3600 + int(minutes) * 60 + int(seconds)


def parse_tres(text: str) -> dict[str, str]:
    """name=value, ..."""
    return dict(item.split("=", 1) for item in text.split(",")) if text else {}


def main(path: str, careful: bool) -> None:
    frame = pd.read_csv(path, sep="|", dtype=str, keep_default_na=False)
    rows = []
    for row in frame.itertuples(index=False) if careful else (row for _, row in frame.iterrows()):
        tres = parse_tres(row.AllocTRES)
        rows.append(
            (
                int(row.JobIDRaw),
                row.Account,
                row.User,
                row.Partition,
                row.State.split(" ")[0],
                parse_time(row.Submit, careful),
                parse_time(row.Start, careful),
                parse_time(row.End, careful),
                parse_duration(row.Suspended),
                int(tres.get("gres/gpu", 0)),
                int(tres.get("gres/vgpu_mem", 0)),
                int(tres.get("gres/vgpu_cores", 0)),
                next((name.partition(":")[2] for name in tres if name.startswith(("gres/gpu:", "gres/vgpu:"))), ""),
            )
        )
    names = [
        "job",
        "account",
        "user",
        "partition",
        "state",
        "submit",
        "start",
        "end",
        "suspended",
        "gpus",
        "mem",
        "cores",
    ]
    records = pd.DataFrame(rows, columns=[*names, "type"])
    records.to_parquet(path + ".parquet")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "careful")
