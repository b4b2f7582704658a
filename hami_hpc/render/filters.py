# SPDX-License-Identifier: Apache-2.0
"""Checks that a job_submit.lua or cli_filter.lua calls hami_hpc's functions, and gives the lines to add; which plugin
runs cli_filter.lua. Pure."""

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
# In CliFilterPlugins: Slurm's own, which runs cli_filter.lua for every command; ours, for those that can concern it.
FOR_ALL, FOR_OURS = "lua", "hami_hpc"


def _code(text: str) -> str:
    """Returns a Lua script without comments."""
    text = re.sub(r"--\[\[.*?\]\]", "", text, flags=re.DOTALL)
    return re.sub(r"--[^\n]*", "", text)


def missing_calls(name: str, text: str) -> list[str]:
    """Returns the functions of hami_hpc.lua that the filter `name` with this text does not call."""
    code = _code(text)
    if not LOADS.search(code):
        return list(CALLS[name])
    return [function for function in CALLS[name] if not re.search(rf"\.{function}\s*\(", code)]


def client_plugins(value: str) -> list[str]:
    """Returns the names in a value of CliFilterPlugins."""
    return [name.strip().removeprefix("cli_filter/") for name in value.split(",") if name.strip()]


def has_rules_of_its_own(script: str, shipped: str) -> bool:
    """Returns whether a cli_filter.lua does anything that the one that hami_hpc installs does not."""
    return _code(script).split() != _code(shipped).split()


def client_plugin(site_value: str, script: str | None, shipped: str | None) -> str:
    """Returns the plugin that is to run cli_filter.lua.

    That is Slurm's own where the site names it, or has rules in its script, which must see every command. `site_value`
    is CliFilterPlugins of the site's own lines, `script` its cli_filter.lua, `shipped` hami_hpc's; None: there is none.
    """
    if FOR_ALL in client_plugins(site_value) or shipped is None:
        return FOR_ALL
    return FOR_ALL if script is not None and has_rules_of_its_own(script, shipped) else FOR_OURS


def lines_for(name: str, lua_dir: str) -> tuple[str, ...]:
    """Returns the lines that a site must add to its own filter."""
    lines = [f'local hami = dofile("{lua_dir}/hami_hpc.lua")  -- at the top']
    for function, call in CALLS[name].items():
        where = "after the code that sets partition or QoS" if function == "job_submit" else "in it"
        lines += [f"-- in slurm_{function}, {where}:", f"local rc = {call}"]
        lines.append("if rc ~= slurm.SUCCESS then return rc end")
    return tuple(lines)
