# SPDX-License-Identifier: Apache-2.0
"""A site with a job_submit.lua of its own adds two lines to it."""

from __future__ import annotations

from harness import jobs
from harness.config import write
from harness.layout import Layout

FOREIGN = """\
-- A site's own filter: a policy on names, a comment for every job, and a QoS for one account.
local hami = dofile("{etc}/hami_hpc.lua")

function slurm_job_submit(job_desc, part_list, submit_uid)
	if job_desc.name == "forbidden" then
		slurm.log_user("site: no job may be called 'forbidden'")
		return slurm.ERROR
	end
	job_desc.comment = "seen by the site"
	if job_desc.name == "urgent" then
		job_desc.qos = "lc"
	end
	local rc = hami.job_submit(job_desc, part_list, submit_uid)
	if rc ~= slurm.SUCCESS then return rc end
	return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
	local rc = hami.job_modify(job_desc, job_rec, part_list, modify_uid)
	if rc ~= slurm.SUCCESS then return rc end
	return slurm.SUCCESS
end

return slurm.SUCCESS
"""


def test_a_foreign_filter_and_ours_both_rewrite_a_job(restored: Layout) -> None:
    write(restored.etc / "job_submit.lua", FOREIGN.format(etc=restored.etc))
    plain = jobs.submit(restored, "games", script="true")
    job = jobs.submit(restored, "games", "--job-name=urgent", "--gres=vgpu:mem=2G,cores=10", script="slice --use 16")
    refused = jobs.run_as(restored, "games", ("sbatch", "--job-name=forbidden", "--gres=vgpu"), stdin="#!/bin/sh\n")
    for one in (plain, job):
        jobs.wait_for_state(restored, one, "COMPLETED")
    facts = jobs.job_facts(restored, job)
    assert jobs.job_facts(restored, plain)["Comment"] == facts["Comment"] == "seen"  # a value ends at a blank here
    assert "gres/vgpu:lc=1" in facts["TRES"]
    assert "2048 MiB in total" in jobs.output(restored, "games", job)
    assert refused.status != 0
    assert "site: no job may be called" in refused.err
