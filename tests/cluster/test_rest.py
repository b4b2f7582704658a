# SPDX-License-Identifier: Apache-2.0
"""Jobs submitted to slurmrestd, which asks no cli_filter; that of 22.05 splits a request at its commas itself."""

from __future__ import annotations

import json
from typing import Any

from harness import config, jobs
from harness.layout import Layout

USER = "games"
# 23.11 knows 0.0.40, 24.11 to 26.05 know 0.0.42. The first one calls what sbatch has as --gres `gres`.
RELEASE = config.slurm_release()
IS_OLD = RELEASE < (23, 2)
VERSION = "v0.0.38" if IS_OLD else "v0.0.40" if RELEASE < (24, 11) else "v0.0.42"
FIELD = "gres" if IS_OLD else "tres_per_node"
PLUGINS = f"-s openapi/{VERSION}" if IS_OLD else f"-s slurmctld -d {VERSION}"
# It answers one request, of a file that its user alone can read.
CALL = ("sh", "-c", f"umask 077; cat >request; /usr/sbin/slurmrestd {PLUGINS} -a rest_auth/local <request")


def submit(layout: Layout, gres: str) -> tuple[dict[str, Any], str]:
    """Returns slurmrestd's answer, and what it wrote in its log."""
    path = jobs.user_environment(layout, USER)["PATH"]
    job = {
        "name": "rest",
        FIELD: gres,
        "current_working_directory": str(layout.home / USER),
        "environment": {"PATH": path} if IS_OLD else [f"PATH={path}"],
    }
    body = json.dumps({"script": "#!/bin/sh\nsrun slice\n", "job": job})
    head = (f"POST /slurm/{VERSION}/job/submit HTTP/1.1", "Content-Type: application/json")
    done = jobs.run_as(layout, USER, CALL, stdin="\r\n".join((*head, f"Content-Length: {len(body)}", "", body)))
    answer, _ = json.JSONDecoder().raw_decode(done.out, done.out.index("{"))  # 26.05 says once more that it failed
    assert isinstance(answer, dict)
    return answer, done.err


def ran(layout: Layout, answer: dict[str, Any]) -> None:
    """Checks that the job ran with 8 GiB and 50 %."""
    assert answer["errors"] == []
    job = int(answer["job_id"])
    jobs.wait_for_state(layout, job, "COMPLETED")
    assert "NVIDIA H200: 8192 MiB in total" in jobs.output(layout, USER, job)
    jobs.wait_until_recorded(layout, job)
    assert "gres/vgpu_cores=50,gres/vgpu_mem=8192" in jobs.admin(layout, "sacct", "-nPXj", str(job), "-o", "alloctres")


def test_a_request_with_semicolons_between_its_keys_is_a_slice(cluster: Layout) -> None:
    ran(cluster, submit(cluster, "gres:vgpu:mem=8G;cores=50")[0])


def test_a_request_with_commas_is_a_slice_or_is_refused_by_slurmrestd_itself(cluster: Layout) -> None:
    answer, log = submit(cluster, "gres:vgpu:mem=8G,cores=50")
    if IS_OLD:  # it takes the value apart itself
        assert (answer.get("job_id"), "Invalid generic resource (gres) specification" in log) == (None, True)
    else:
        ran(cluster, answer)


def test_job_submit_refuses_what_no_gpu_has_and_slurmrestd_logs_why(cluster: Layout) -> None:
    answer, log = submit(cluster, "gres:vgpu:mem=999G")
    assert [error["error_code" if IS_OLD else "error_number"] for error in answer["errors"]] == [2072]
    assert "hami_hpc: mem=999G is more than a GPU of partition gpu has" in log
