# SPDX-License-Identifier: Apache-2.0
"""Checks that a job_submit.lua or cli_filter.lua calls hami_hpc's functions, and gives the lines to add. Pure."""

from __future__ import annotations

import re

# File -> the functions of hami_hpc.lua that it must call, each with its call.
CALLS = {
    "job_submit.lua": {
        "job_submit": "hami.job_submit(job_desc, part_list, submit_uid)",
        "job_modify": "hami.job_modify(job_desc, job_rec, part_list, modify_uid)",
    },
    "cli_filter.lua": {"cli_pre_submit": "hami.cli_pre_submit(options, offset)"},
}
LOADS = re.compile(r"hami_hpc\.lua")


def missing_calls(name: str, text: str) -> list[str]:
    """Returns the functions of hami_hpc.lua that the filter `name` with this text does not call."""
    code = re.sub(r"--\[\[.*?\]\]", "", text, flags=re.DOTALL)
    code = re.sub(r"--[^\n]*", "", code)
    if not LOADS.search(code):
        return list(CALLS[name])
    return [function for function in CALLS[name] if not re.search(rf"\.{function}\s*\(", code)]


def lines_for(name: str, lua_dir: str) -> tuple[str, ...]:
    """Returns the lines that a site must add to its own filter."""
    lines = [f'local hami = dofile("{lua_dir}/hami_hpc.lua")  -- at the top']
    for function, call in CALLS[name].items():
        where = "after the code that sets partition or QoS" if function == "job_submit" else "in it"
        lines += [f"-- in slurm_{function}, {where}:", f"local rc = {call}"]
        lines.append("if rc ~= slurm.SUCCESS then return rc end")
    return tuple(lines)
