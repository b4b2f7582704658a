-- SPDX-License-Identifier: Apache-2.0
-- The site's table, hami_hpc_site.lua beside slurm.conf (written by `hami-hpc render`).
--
-- It is read when a vgpu request needs it, so a change counts at once and other jobs pay nothing.

return function(contract, errors, grammar)
	local M = {}
	local VERSION = 1
	local FILE = "hami_hpc_site.lua"
	local last_good

	local function directory_of(path)
		return string.match(path, "^(.*)/[^/]*$") or "."
	end

	-- Directories to look in: SLURM_CONF's; that of the script which Slurm runs (it lies beside slurm.conf, also where
	-- slurmctld was started with -f and has no SLURM_CONF); /etc/slurm.
	local function directories()
		local out = {}
		local conf = os.getenv("SLURM_CONF")
		if conf and conf ~= "" then
			out[1] = directory_of(conf)
		end
		if M.script_directory then
			out[#out + 1] = M.script_directory
		end
		out[#out + 1] = "/etc/slurm"
		return out
	end

	-- Where slurm.conf may be, the likeliest first: slurmctld takes its scripts from the directory of its slurm.conf.
	function M.slurm_conf_paths()
		local out, given = {}, os.getenv("SLURM_CONF")
		if M.script_directory then
			if given and directory_of(given) == M.script_directory then
				out[1] = given
			end
			out[#out + 1] = M.script_directory .. "/slurm.conf"
		end
		if given and given ~= "" then
			out[#out + 1] = given
		end
		out[#out + 1] = "/etc/slurm/slurm.conf"
		return out
	end

	local function open_table()
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

	local function number_or(value, default)
		return type(value) == "number" and value > 0 and value or default
	end

	-- Fills in the contract's defaults; nil and a reason if the table cannot be used.
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
			end
		end
		for name, entry in pairs(site.partitions) do
			if type(entry) ~= "table" or type(entry.gpu_models) ~= "table" then
				return nil, "partitions." .. tostring(name) .. " has no gpu_models"
			end
		end
		if number_or(site.memory_scaling, 1) > 1 then
			return nil, "memory_scaling = " .. site.memory_scaling .. " is above 1, and memory cannot be oversold yet"
		end
		local full = {
			shard_mib = number_or(site.shard_mib, defaults.shard_mib),
			memory_scaling = number_or(site.memory_scaling, defaults.memory_scaling),
			default_cores = number_or(site.default_cores, defaults.default_cores),
			bare_shard = site.bare_shard or defaults.bare_shard,
			qos_enforced = site.qos_enforced,
			modes = site.modes or defaults.modes,
			classes = site.classes or {},
			gpu_models = site.gpu_models,
			partitions = site.partitions,
		}
		local mem = site.default_mem or defaults.default_mem
		local good, parsed = pcall(grammar.parse, contract.request.name .. ":mem=" .. mem)
		if not good then
			return nil, "default_mem=" .. tostring(mem) .. " is not understood"
		end
		full.default_request = parsed.request
		return full
	end

	-- The site's table, or nil and a reason. `is_missing` tells "no such file" (a login node without it) from "broken".
	function M.read()
		local path = open_table()
		if not path then
			return nil, FILE .. " not found", true
		end
		local chunk, reason = loadfile(path)
		local good, value = pcall(chunk or error, reason)
		local site
		if good then
			site, reason = M.complete(value)
		else
			reason = value
		end
		if site then
			last_good = site
		end
		return site, reason
	end

	-- The same, or the last one that was good while the file is broken; a refusal if there never was one.
	function M.need()
		local site, reason = M.read()
		if not site and last_good then
			slurm.log_error("%s", contract.errors.prefix .. "keeping the last good site table: " .. tostring(reason))
			return last_good
		elseif not site then
			errors.fail("E_SITE", { given = reason })
		end
		return site
	end

	return M
end
