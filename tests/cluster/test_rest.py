# SPDX-License-Identifier: Apache-2.0
"""Jobs submitted to slurmrestd, which asks no cli_filter and splits a request at its commas itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import jobs
from harness.layout import Layout

USER = "games"
# It answers one request, of a file that its user alone can read.
CALL = ("sh", "-c", "umask 077; cat >request; /usr/sbin/slurmrestd -s openapi/v0.0.38 -a rest_auth/local <request")

pytestmark = pytest.mark.slurm_before("23.02")  # later releases have other versions of the interface


def submit(layout: Layout, gres: str) -> tuple[dict[str, Any], str]:
    """Returns slurmrestd's answer, and what it wrote in its log."""
    job = {
        "name": "rest",
        "gres": gres,
        "current_working_directory": str(layout.home / USER),
        "environment": {"PATH": jobs.user_environment(layout, USER)["PATH"]},
    }
    body = json.dumps({"script": "#!/bin/sh\nsrun slice\n", "job": job})
    head = ("POST /slurm/v0.0.38/job/submit HTTP/1.1", "Content-Type: application/json", f"Content-Length: {len(body)}")
    done = jobs.run_as(layout, USER, CALL, stdin="\r\n".join((*head, "", body)))
    answer = json.loads(done.out[done.out.index("{") :])
    assert isinstance(answer, dict)
    return answer, done.err


def test_a_request_with_semicolons_between_its_keys_is_a_slice(cluster: Layout) -> None:
    answer, _ = submit(cluster, "gres:vgpu:mem=8G;cores=50")
    assert answer["errors"] == []
    job = int(answer["job_id"])
    jobs.wait_for_state(cluster, job, "COMPLETED")
    assert "NVIDIA H200: 8192 MiB in total" in jobs.output(cluster, USER, job)
    jobs.wait_until_recorded(cluster, job)
    assert "gres/vgpu_cores=50,gres/vgpu_mem=8192" in jobs.admin(cluster, "sacct", "-nPXj", str(job), "-o", "alloctres")


def test_a_request_with_commas_is_refused_by_slurmrestd_itself(cluster: Layout) -> None:
    answer, log = submit(cluster, "gres:vgpu:mem=8G,cores=50")
    assert (answer.get("job_id"), "Invalid generic resource (gres) specification" in log) == (None, True)


def test_job_submit_refuses_what_no_gpu_has_and_slurmrestd_logs_why(cluster: Layout) -> None:
    answer, log = submit(cluster, "gres:vgpu:mem=999G")
    assert [error["error_code"] for error in answer["errors"]] == [2072]
    assert "hami_hpc: mem=999G is more than a GPU of partition gpu has" in log
