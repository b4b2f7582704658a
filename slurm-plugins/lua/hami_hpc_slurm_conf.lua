-- SPDX-License-Identifier: Apache-2.0
-- Reads from slurm.conf whether Slurm checks who may use which QoS, and the cluster's name. slurmctld cannot be asked
-- (scontrol, any RPC): the call would wait for the lock under which job_submit runs.

return function(_contract, settings)
	local M = {}
	local MAX_DEPTH = 8 -- of include
	local REMEMBERED_S = 60 -- slurmctld itself reads slurm.conf only at a start or reconfigure
	local KEYS = { "accountingstorageenforce", "accountingstoragetype", "clustername" }
	local last -- { enforced, reason, read_at } of the last reading

	local function value_in(line, key)
		return string.match(line, "^%s*" .. key .. "%s*=%s*\"?([^%s\"]*)")
			or string.match(line, "%s" .. key .. "%s*=%s*\"?([^%s\"]*)")
	end

	-- Puts the values of KEYS in `path`, and in the files that it includes, into `values`. As in Slurm, keys ignore case
	-- and the last value counts. Skips files that cannot be read; returns false if `path` is one.
	local function read_into(values, path, directory, depth)
		local file = depth <= MAX_DEPTH and io.open(path, "r")
		if not file then
			return false
		end
		for raw in file:lines() do
			local text = string.gsub(raw, "#.*", "")
			local line = string.lower(text)
			local included = string.match(line, "^%s*include%s") and string.match(text, "^%s*%a+%s+(%S+)")
			if included then
				local is_absolute = string.sub(included, 1, 1) == "/"
				read_into(values, is_absolute and included or directory .. "/" .. included, directory, depth + 1)
			elseif string.find(line, "accountingstorage", 1, true) or string.find(line, "clustername", 1, true) then
				for _, key in ipairs(KEYS) do
					values[key] = value_in(line, key) or values[key]
				end
			end
		end
		file:close()
		return true
	end

	-- Returns whether a list such as associations,qos makes Slurm check QoS.
	local function checks_qos(list)
		for word in string.gmatch(list, "[^,]+") do
			if word == "qos" or word == "all" then
				return true
			end
		end
		return false
	end

	-- Returns the values of KEYS and the file that has them, or nil.
	local function read_values()
		for _, path in ipairs(settings.slurm_conf_paths()) do
			local values = {}
			local succeeded, was_read = pcall(read_into, values, path, string.match(path, "^(.*)/") or ".", 1)
			if succeeded and was_read then
				return values, path
			end
		end
		return nil
	end

	local function read_enforcement()
		local values, path = read_values()
		if not values then
			return false, 'slurm.conf could not be read; if Slurm checks QoS, set qos_enforced = "yes" in hami-hpc.toml'
		elseif values.accountingstoragetype ~= "accounting_storage/slurmdbd" then
			return false, path .. " has no AccountingStorageType=accounting_storage/slurmdbd"
		end
		local enforce = values.accountingstorageenforce or ""
		return checks_qos(enforce), path .. " has AccountingStorageEnforce=" .. enforce
	end

	-- Returns the names that --clusters of a command gives (nil: none), if they are not this cluster's, else nil. For the
	-- client.
	function M.other_clusters(names)
		if not names or names == "" or string.lower(names) == (read_values() or {}).clustername then
			return nil
		end
		return names
	end

	-- Returns the cluster of the job in which srun starts a step, if that is another one than this, else nil: the one that
	-- --clusters of srun names, else the one that salloc -M has written into the environment of its shell.
	function M.other_cluster_of_job(names)
		local working = string.match(os.getenv("SLURM_WORKING_CLUSTER") or "", "^([^:]*):")
		local name = names and names ~= "" and names or working
		if not name or name == "all" or not string.find(name, "^[%w_.%-]+$") then
			return nil -- of several, the job's environment says which
		end
		return M.other_clusters(name)
	end

	-- Returns true if Slurm refuses a QoS that the job's user may not use, else false and the reason.
	function M.qos_is_enforced(site)
		if site.qos_enforced == "yes" then
			return true
		end
		local now = os.time()
		if not last or now < last.read_at or now >= last.read_at + REMEMBERED_S then
			local enforced, reason = read_enforcement()
			last = { enforced = enforced, reason = reason, read_at = now }
		end
		return last.enforced, last.reason
	end

	return M
end
