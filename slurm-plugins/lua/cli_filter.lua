-- SPDX-License-Identifier: Apache-2.0
-- A cli_filter.lua for sites that have none of their own (other sites add the lines in hami_hpc.lua to theirs). Install
-- it beside slurm.conf; hami_hpc.lua must be in the same directory or in /usr/lib/hami-hpc/lua.

local function load_hami()
	local here = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or "./"
	for _, directory in ipairs({ here, "/usr/lib/hami-hpc/lua/" }) do
		local file = io.open(directory .. "hami_hpc.lua", "r")
		if file then
			file:close()
			return dofile(directory .. "hami_hpc.lua")
		end
	end
	error("hami_hpc.lua is neither in " .. here .. " nor in /usr/lib/hami-hpc/lua: install hami_hpc or remove this script")
end

local hami = load_hami()

function slurm_cli_setup_defaults(_options, _early)
	return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
	return hami.cli_pre_submit(options, offset)
end

function slurm_cli_post_submit(_offset, _job_id, _step_id)
	return slurm.SUCCESS
end

return slurm.SUCCESS
