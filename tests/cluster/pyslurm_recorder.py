# SPDX-License-Identifier: Apache-2.0
"""What pyslurm answers, as JSON on stdout: `python pyslurm_recorder.py CLUSTER START_S END_S [JOB…]`, with pyslurm on
PYTHONPATH. Of each job only the fields that hami_hpc reads are kept, in the order of the answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hami_hpc.accounting.sources import pyslurm_runs, pyslurm_source

READ = (
    *(
        "jobid",
        "account",
        "user",
        "uid",
        "partition",
        "qosid",
        "state_str",
        "requid",
        "cluster",
        "nodes",
        "constraints",
    ),
    *("submit", "eligible", "start", "end", "elapsed", "suspended", "tres_alloc_str"),
    *("array_job_id", "array_task_id", "array_task_str"),
)


def main() -> None:
    cluster, start_s, end_s, *jobs = sys.argv[1:]
    pyslurm = pyslurm_source.import_pyslurm()
    names = pyslurm_source.names_of(pyslurm)
    real = pyslurm_source.ClusterJobs(pyslurm, cluster)
    calls: list[dict[str, Any]] = []

    def ask(asked: Sequence[str], start: int, end: int, flags: int) -> Mapping[int, pyslurm_runs.Job]:
        answer = real(asked, start, end, flags)
        kept = [{name: job[name] for name in READ} for job in answer.values()]
        calls.append({"asked": [list(asked), start, end, flags], "answer": kept})
        return answer

    numbers = [int(job) for job in jobs]
    for _ in pyslurm_runs.printed(ask, names, numbers, int(start_s), int(end_s)):
        pass
    json.dump(
        {
            "pyslurm": pyslurm.__version__,
            "request": [numbers, int(start_s), int(end_s)],
            "tres": names.tres,
            "qos": names.qos,
            "calls": calls,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
