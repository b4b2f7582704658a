-- SPDX-License-Identifier: Apache-2.0
-- Reads the site's table, hami_hpc_site.lua beside slurm.conf (written by `hami-hpc render`), or where that is missing its
-- copy in comments of slurm-hami-hpc.conf: on a configless cluster slurmctld sends hosts that file and not the other.
--
-- The table is read once for each vgpu request, so that a change takes effect at once and other jobs are not delayed.

return function(contract, errors, grammar, script_directory)
	local M = {}
	local VERSION = 1
	local FILE = "hami_hpc_site.lua"
	local SENT = { "slurm-hami-hpc.conf", "slurm.conf" } -- a site may have copied the lines into slurm.conf
	local last_good
	local current -- what was read for the request at hand

	local function directory_of(path)
		return string.match(path, "^(.*)/[^/]*$") or "."
	end

	-- Returns the directories to search: SLURM_CONF's; that of the script that Slurm runs, which is beside slurm.conf also
	-- if slurmctld was started with -f and has no SLURM_CONF; /etc/slurm.
	local function directories()
		local paths = {}
		local conf = os.getenv("SLURM_CONF")
		if conf and conf ~= "" then
			paths[1] = directory_of(conf)
		end
		if script_directory then
			paths[#paths + 1] = script_directory
		end
		paths[#paths + 1] = "/etc/slurm"
		return paths
	end

	-- Returns the possible paths of slurm.conf. First that in the script's directory: slurmctld runs the scripts that are
	-- beside its slurm.conf.
	function M.slurm_conf_paths()
		local paths, conf = {}, os.getenv("SLURM_CONF")
		if script_directory then
			if conf and directory_of(conf) == script_directory then
				paths[1] = conf
			end
			paths[#paths + 1] = script_directory .. "/slurm.conf"
		end
		if conf and conf ~= "" then
			paths[#paths + 1] = conf
		end
		paths[#paths + 1] = "/etc/slurm/slurm.conf"
		return paths
	end

	local function find_table()
		for _, directory in ipairs(directories()) do
			local path = directory .. "/" .. FILE
			local file = io.open(path, "r")
			if file then
				file:close()
				return path
			end
		end
		return nil
	end

	-- Returns the copy of the table in a file's comments, as Lua; nil where there is no such file, or no copy in it.
	local function copy_in(path)
		local file, lines = io.open(path, "r"), {}
		if not file then
			return nil
		end
		for line in file:lines() do
			lines[#lines + 1] = string.match(line, "^#lua (.*)$")
		end
		file:close()
		return #lines > 0 and "return " .. table.concat(lines, "\n") or nil
	end

	-- Returns the table as a function that makes it, or nil and why not; the third result is true if there is none.
	local function load_table()
		local path = find_table()
		if path then
			return loadfile(path)
		end
		for _, directory in ipairs(directories()) do
			for _, name in ipairs(SENT) do
				local copy = copy_in(directory .. "/" .. name)
				if copy then
					return (loadstring or load)(copy, "@" .. directory .. "/" .. name)
				end
			end
		end
		return nil, FILE .. " not found", true
	end

	local function number_or(value, default)
		return type(value) == "number" and value > 0 and value or default
	end

	local PROFILE_NUMBERS = { "mem_mib", "mem_percent", "cores", "shards" }

	-- Returns whether this is a list of MIG profiles, as render writes it for a GPU model.
	local function are_profiles(list)
		if type(list) ~= "table" then
			return false
		end
		for _, profile in ipairs(list) do
			if type(profile) ~= "table" or type(profile.name) ~= "string" then
				return false
			end
			for _, key in ipairs(PROFILE_NUMBERS) do
				if not number_or(profile[key]) then
					return false
				end
			end
		end
		return true
	end

	-- Returns the requests of the presets by name; nil and a reason if one is not understood.
	local function read_presets(texts)
		local presets = {}
		if type(texts) ~= "table" then
			return nil, "presets is not understood"
		end
		for name, text in pairs(texts) do
			local succeeded, parsed = pcall(grammar.parse, contract.request.name .. ":" .. tostring(text))
			if not succeeded or not parsed or parsed.request.preset or parsed.request.count then
				return nil, "presets." .. tostring(name) .. " = " .. tostring(text) .. " is not understood"
			end
			presets[name] = parsed.request
		end
		return presets
	end

	-- Returns the table with the contract's defaults for what it lacks; nil and a reason if it cannot be used.
	function M.complete(site)
		local defaults = contract.site.defaults
		if type(site) ~= "table" or site.version ~= VERSION then
			return nil, FILE .. " is not of version " .. VERSION
		elseif type(site.gpu_models) ~= "table" or type(site.partitions) ~= "table" then
			return nil, FILE .. " names no GPU models or partitions"
		end
		for model, entry in pairs(site.gpu_models) do
			if type(entry) ~= "table" or not number_or(entry.total_mib) then
				return nil, "gpu_models." .. tostring(model) .. " has no total_mib"
			elseif entry.mig ~= nil and not are_profiles(entry.mig) then
				return nil, "gpu_models." .. tostring(model) .. ".mig is not understood"
			end
		end
		for name, entry in pairs(site.partitions) do
			if type(entry) ~= "table" or type(entry.gpu_models) ~= "table" then
				return nil, "partitions." .. tostring(name) .. " has no gpu_models"
			elseif entry.gpus ~= nil and not number_or(entry.gpus) then
				return nil, "partitions." .. tostring(name) .. ".gpus is not understood"
			end
		end
		local scaling_max = contract.site.oversold.memory_scaling_max
		if number_or(site.memory_scaling, 1) > scaling_max then
			return nil, string.format("memory_scaling = %s is above %g", site.memory_scaling, scaling_max)
		end
		local slices_max = site.slices_max or defaults.slices_max
		if not number_or(slices_max) or slices_max % 1 ~= 0 or slices_max > contract.request.limits.slices_max then
			return nil, "slices_max = " .. tostring(slices_max) .. " is not understood"
		end
		local presets, reason = read_presets(site.presets or {})
		if not presets then
			return nil, reason
		end
		local full = {
			slices_max = slices_max,
			shard_mib = number_or(site.shard_mib, defaults.shard_mib),
			memory_scaling = number_or(site.memory_scaling, defaults.memory_scaling),
			default_cores = site.default_cores == contract.request.cores_proportional and site.default_cores
				or number_or(site.default_cores, defaults.default_cores),
			max_tenants = number_or(site.max_tenants, defaults.max_tenants),
			presets = presets,
			bare_shard = site.bare_shard or defaults.bare_shard,
			qos_enforced = site.qos_enforced,
			modes = site.modes or defaults.modes,
			mig_waste_percent = type(site.mig_waste_percent) == "number" and site.mig_waste_percent
				or defaults.mig_waste_percent,
			classes = site.classes or {},
			policies = site.policies or {},
			fixed = type(site.fixed) == "table" and site.fixed or {},
			latency = type(site.latency) == "table" and site.latency or nil,
			gpu_models = site.gpu_models,
			partitions = site.partitions,
		}
		local mem = site.default_mem or defaults.default_mem
		local succeeded, parsed = pcall(grammar.parse, contract.request.name .. ":mem=" .. mem)
		if not succeeded then
			return nil, "default_mem=" .. tostring(mem) .. " is not understood"
		end
		full.default_request = parsed.request
		return full
	end

	local function read_table()
		local chunk, reason, is_missing = load_table()
		if is_missing then
			return nil, reason, true
		end
		local succeeded, value = pcall(chunk or error, reason)
		local site
		if succeeded then
			site, reason = M.complete(value)
		else
			reason = value
		end
		if site then
			last_good = site
		end
		return site, reason
	end

	-- Returns the site's table, or nil and a reason. The third result is true if there is no such file, as on a login node
	-- without it.
	function M.read()
		current = current or { read_table() }
		return current[1], current[2], current[3]
	end

	-- The next request begins: the table is read again when it is needed.
	function M.forget()
		current = nil
	end

	-- Returns a table by the names of the site's classes, as far as they are known.
	function M.classes()
		local classes = {}
		for _, name in ipairs(contract.classes.names) do
			classes[name] = true
		end
		for name in pairs((M.read() or last_good or { classes = {} }).classes) do
			classes[name] = true
		end
		return classes
	end

	-- Returns the site's table, or the last valid one while the file is invalid. Refuses if there was none.
	function M.need()
		local site, reason = M.read()
		if not site and last_good then
			slurm.log_error("%s", contract.errors.prefix .. "using the last valid site table: " .. tostring(reason))
			return last_good
		elseif not site then
			errors.fail("E_SITE", { given = reason })
		end
		return site
	end

	return M
end
