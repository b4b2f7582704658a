-- SPDX-License-Identifier: Apache-2.0
-- hami_hpc's two Slurm filters, as one module with one entry point each. Slurm runs exactly one job_submit.lua and one
-- cli_filter.lua; a site that has its own adds these lines to them:
--
--   job_submit.lua
--     local hami = dofile("/usr/lib/hami-hpc/lua/hami_hpc.lua")          -- at the top
--     local rc = hami.job_submit(job_desc, part_list, submit_uid)        -- in slurm_job_submit, after the code that
--     if rc ~= slurm.SUCCESS then return rc end                          --   sets partition or QoS
--     local rc = hami.job_modify(job_desc, job_rec, part_list, modify_uid)   -- the same in slurm_job_modify
--     if rc ~= slurm.SUCCESS then return rc end
--
--   cli_filter.lua
--     local hami = dofile("/usr/lib/hami-hpc/lua/hami_hpc.lua")
--     local rc = hami.cli_pre_submit(options, offset)                    -- in slurm_cli_pre_submit
--     if rc ~= slurm.SUCCESS then return rc end
--
-- slurmctld loads these files again when it restarts or when job_submit.lua itself changes (touch it after an upgrade).
-- The site's table is read for each vgpu request.
--
-- Jobs without vgpu are not changed. No error leaves this module: a bug refuses only vgpu requests, with a message.
-- Works with Lua 5.1 to 5.4, the versions that Slurm may be linked with.

-- Error numbers of slurm_errno.h that Slurm does not give to scripts. Slurm prints their texts after our message. Users
-- of scontrol update see only these texts before Slurm 23.02.
local ESLURM_INVALID_GRES = 2072
local RETURN_CODES = { E_UPDATE = 2073, E_CLASS_CHANGE = 2073 } -- ESLURM_JOB_NOT_PENDING

local source = string.gsub(debug.getinfo(1, "S").source, "^@", "")
local directory = string.match(source, "^(.*/)") or "./"

-- The script that Slurm runs is beside slurm.conf, and so is the site's table.
local script_directory, script
for level = 2, 8 do
	local info = debug.getinfo(level, "S")
	local path, name = string.match(info and info.source or "", "^@(.*)/([^/]*)$")
	if name == "job_submit.lua" or name == "cli_filter.lua" then
		script_directory, script = path, name
	end
end

local function load_part(name)
	return dofile(directory .. "hami_hpc_" .. name .. ".lua")
end

-- A part that is loaded when something of it is first used: most jobs need none, and most requests only some, and each
-- sbatch would wait for all of them.
local parts, is_loaded = {}, {}
local function part(name, ...)
	local given, loaded = { ... }, nil
	local function load()
		if not loaded then
			local made = load_part(name)
			loaded = type(made) == "function" and made((unpack or table.unpack)(given)) or made
			is_loaded[name] = true
		end
		return loaded
	end
	parts[#parts + 1] = load
	return setmetatable({}, {
		__index = function(_, key)
			return load()[key]
		end,
	})
end

local contract = part("contract")
local errors = part("errors", contract)
local grammar = part("gres", contract, part("request", contract, errors, part("keys", contract, errors)))
local places = part("places", contract, errors)
local mig = part("mig", contract, errors, grammar)
local models = part("models", contract, errors, grammar, mig)
local units = part("units", contract, errors, grammar, mig, places, models)
local features = part("features", contract, errors)
local settings = part("settings", contract, errors, grammar, script_directory)
local slurm_conf = part("slurm_conf", contract, settings)
local whole = part("whole", contract, errors, grammar, features, settings)
local jobs = part("jobs", contract, errors, grammar, units, features, settings, slurm_conf, whole)
local step_places = part("step_places", contract, grammar)
local steps = part("steps", contract, errors, grammar, units, features, settings, step_places)
local client = part("client", errors, grammar, units, features, settings, slurm_conf, whole, steps)

-- slurmctld runs for months, and has all parts from the start: those of a later version would not fit.
if script == "job_submit.lua" then
	for _, load in ipairs(parts) do
		load()
	end
end

-- Runs `act` and returns Slurm's result code. Passes a refusal to `refuse`. Logs any other error, and then refuses only
-- if `concerns` returns true or fails.
local function guarded(act, concerns, refuse)
	if is_loaded.settings then
		settings.forget()
	end
	local succeeded, problem = pcall(act)
	if succeeded then
		return slurm.SUCCESS
	end
	if type(problem) == "table" and problem.message then
		return refuse(problem)
	end
	slurm.log_error("%s", contract.errors.prefix .. "internal error: " .. tostring(problem))
	local concerns_succeeded, is_ours = pcall(concerns)
	if concerns_succeeded and not is_ours then
		return slurm.SUCCESS
	end
	return refuse(errors.new("E_INTERNAL", { given = problem }))
end

local function refuse_in_controller(refusal)
	slurm.log_user("%s", refusal.message)
	return RETURN_CODES[refusal.code] or ESLURM_INVALID_GRES
end

local function refuse_in_client(refusal)
	slurm.log_error("%s", refusal.message)
	return slurm.ERROR
end

-- The options of sbatch, salloc and srun in which a vgpu request may stand, --gres the first.
local OPTIONS = { "gres", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-per-task" }

-- Returns whether a command names `word` anywhere, in letters of any case: a vgpu, or one of its units, if that is "vgpu".
local function mentions(options, word)
	for _, name in ipairs(OPTIONS) do
		local value = options[name]
		if value and string.find(string.lower(value), word, 1, true) then
			return true
		end
	end
	return false
end

local M = { slurm_conf = slurm_conf, grammar = grammar, units = units, features = features, settings = settings, errors = errors }

-- For slurm_job_submit. Call it after the code that sets the job's partition or QoS.
function M.job_submit(job_desc, part_list, submit_uid)
	return guarded(function()
		jobs.submit(job_desc, part_list, submit_uid)
	end, function()
		return jobs.concerns(job_desc)
	end, refuse_in_controller)
end

-- For slurm_job_modify.
function M.job_modify(job_desc, job_rec, part_list, _modify_uid)
	return guarded(function()
		jobs.modify(job_desc, job_rec, part_list)
	end, function()
		return jobs.concerns(job_desc, job_rec)
	end, refuse_in_controller)
end

-- For slurm_cli_pre_submit. srun also has bare shards, and GPUs of a type, to translate. The plugin
-- cli_filter_hami_hpc.so passes over the same commands as this function.
function M.cli_pre_submit(options, offset)
	if not mentions(options, options.type == "srun" and "" or "vgpu") then
		return slurm.SUCCESS
	end
	return guarded(function()
		client.pre_submit(options, offset or 0)
	end, function()
		return mentions(options, "vgpu")
	end, refuse_in_client)
end

return M
