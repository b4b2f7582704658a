# SPDX-License-Identifier: Apache-2.0
"""The directory of a job with whole GPUs: the file `gpus`, which says when the run began, and its `history`.

The prolog makes it for a node with an agent, the agent finds it there, and the epilog, or reconcile, writes the usage
record and removes it: docs/adr/048.
"""

from __future__ import annotations

import os

from hami_hpc.contract import constants as c
from hami_hpc.core.gpu_jobs import GpuJob, from_line, to_line
from hami_hpc.node import history_file, job_dirs

LINE_MAX = 1024


def place(run_dir: str, job: GpuJob, whole: str = "") -> None:
    """Makes the job's directory, complete, in place of one of an earlier run. `whole` is the text of the file `whole`
    of a job that holds the node. Raises NodeError."""
    files = {c.FILE_GPUS: to_line(job).encode()}
    if whole:
        files[c.FILE_WHOLE] = whole.encode() + b"\n"
    target = job_dirs.job_dir(run_dir, job.job_id)
    job_dirs.place_files(
        run_dir,
        job.job_id,
        files,
        lambda path: history_file.make(path, job.job_id, job.uid, job.created_unix_ns),
        lambda: read(target) == job,
    )


def place_whole(run_dir: str, job_id: int, message: str) -> None:
    """Makes a directory whose file `whole` tells SPANK that the job holds whole GPUs: its steps are not limited."""
    target = job_dirs.job_dir(run_dir, job_id)

    def exists() -> bool:
        return job_dirs.read_bounded(f"{target}/{c.FILE_WHOLE}", len(content), os.geteuid()) == content

    content = message.encode() + b"\n"
    if not exists():
        job_dirs.place_files(run_dir, job_id, {c.FILE_WHOLE: content}, None, exists)


def read(directory: str) -> GpuJob | None:
    """Returns the run that a job's directory is of; None for a directory without a note that root wrote."""
    data = job_dirs.read_bounded(f"{directory}/{c.FILE_GPUS}", LINE_MAX, 0)
    return None if data is None else from_line(data.decode("ascii", "replace"))


def ended_run(name: str) -> tuple[int, int] | None:
    """Returns job id and start of the run whose directory was set aside under this name; None for another name."""
    job_id, _, start = name.removeprefix(job_dirs.ENDED).partition("-")
    is_run = name.startswith(job_dirs.ENDED) and job_id.isdigit() and start.isdigit()
    return (int(job_id), int(start)) if is_run else None
