-- SPDX-License-Identifier: Apache-2.0
-- A job_submit.lua for sites that have none of their own (other sites add the lines in hami_hpc.lua to theirs). Install
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

function slurm_job_submit(job_desc, part_list, submit_uid)
	return hami.job_submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
	return hami.job_modify(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
