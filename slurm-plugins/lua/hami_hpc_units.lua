-- SPDX-License-Identifier: Apache-2.0
-- Translates a request, by the site's table, into the units that Slurm schedules: shards, MiB, percent, class, node
-- features. hami_hpc/core/units.py is the same in Python; tests/vectors check that both agree.

return function(contract, errors, grammar, mig)
	local M = {}
	local fail = errors.fail
	local floor = math.floor

	local listed, contains = mig.listed, mig.contains
	local MIG, AUTO = "mig", contract.request.mode_auto

	local function sorted_keys(map)
		local names = {}
		for name in pairs(map) do
			names[#names + 1] = name
		end
		table.sort(names)
		return names
	end

	-- Returns "partition gpu" or "partitions a, b".
	function M.where_text(partitions)
		return (#partitions == 1 and "partition " or "partitions ") .. errors.shorten(table.concat(partitions, ", "))
	end

	-- Returns the MiB of one GPU of `model` that can be granted, and its number of shards.
	-- Rounds both down, so that shards * shard_mib never exceeds the MiB.
	function M.capacity(site, model)
		local entry = site.gpu_models[model]
		if not entry then
			fail("E_SITE", { given = "gpu_models." .. model .. " is missing" })
		end
		local mib = floor(entry.total_mib * site.memory_scaling)
		return mib, floor(mib / site.shard_mib)
	end

	-- Returns the models that a request may run on: the type asked for, or every model of the partitions.
	local function candidates(site, request, partitions)
		local models = {}
		for _, name in ipairs(partitions) do
			local partition = site.partitions[name]
			if not partition or #partition.gpu_models == 0 then
				local allowed = listed(sorted_keys(site.partitions))
				fail("E_NO_VGPU_HERE", { where = M.where_text({ name }), allowed = allowed })
			elseif request.gpu_type and not contains(partition.gpu_models, request.gpu_type) then
				fail("E_TYPE_UNKNOWN", {
					given = request.gpu_type,
					where = M.where_text({ name }),
					allowed = listed(partition.gpu_models),
					example = "--gres=vgpu:" .. partition.gpu_models[1] .. ":mem=8G",
				})
			end
			for _, model in ipairs(partition.gpu_models) do
				if not contains(models, model) then
					models[#models + 1] = model
				end
			end
		end
		return request.gpu_type and { request.gpu_type } or models
	end

	local function fail_type_needed(models, partitions)
		fail("E_TYPE_NEEDED", {
			where = M.where_text(partitions),
			allowed = listed(models),
			example = "--gres=vgpu:" .. models[1] .. ":mem=8G",
		})
	end

	-- Returns the MiB and shards per GPU that are valid for all of `models`.
	local function common_capacity(site, models, request, partitions)
		local smallest, largest, largest_model, shards
		local differ = false
		for _, model in ipairs(models) do
			local mib, count = M.capacity(site, model)
			differ = differ or (shards ~= nil and shards ~= count)
			shards = shards and math.min(shards, count) or count
			smallest = smallest and math.min(smallest, mib) or mib
			if not largest or mib > largest then
				largest, largest_model = mib, model
			end
		end
		if request.mem_mib and request.mem_mib > largest then
			fail("E_MEM_TOO_BIG", {
				given = string.match(grammar.canonical({ mem_mib = request.mem_mib }), "mem=(.*)$"),
				where = M.where_text(partitions),
				model = largest_model,
				allowed = string.format("%dM", largest),
				example = string.format("--gres=vgpu:mem=%dM", largest),
			})
		elseif differ or (request.mem_mib and request.mem_mib > smallest) then
			fail_type_needed(models, partitions)
		end
		return smallest, shards
	end

	-- Returns the MiB granted and the shards for a request's mem on a GPU of `mib` MiB and `shards` shards.
	local function mem_units(request, site, mib, shards)
		if request.mem_mib then
			-- A GPU has up to one shard of memory more than its whole shards; a request for that takes all shards.
			return request.mem_mib, math.min(shards, math.ceil(request.mem_mib / site.shard_mib))
		elseif request.mem_percent == 100 then
			return mib, shards
		end
		local count = math.max(1, floor(shards * request.mem_percent / 100))
		return count * site.shard_mib, count
	end

	-- Returns mem and cores of the request, with the site's defaults for what it lacks. A default in MiB is at most the
	-- `mib` MiB of the GPU.
	local function with_defaults(request, site, mib)
		local full = { mem_mib = request.mem_mib, mem_percent = request.mem_percent, cores = request.cores }
		if not full.mem_mib and not full.mem_percent then
			full.mem_mib = site.default_request.mem_mib and math.min(site.default_request.mem_mib, mib)
			full.mem_percent = site.default_request.mem_percent
		end
		full.cores = full.cores or site.default_cores
		return full
	end

	-- Returns the node features that a request needs in a mode (nil: in any), in a fixed order.
	function M.features(request, mode)
		local names = {}
		if mode then
			names[#names + 1] = (string.gsub(contract.features.mode, "{mode}", mode))
		end
		if request.gpu_type then
			names[#names + 1] = (string.gsub(contract.features.type, "{type}", request.gpu_type))
		end
		if request.policy then
			names[#names + 1] = (string.gsub(contract.features.policy, "{policy}", request.policy))
		end
		return names
	end

	-- Returns the class of service of a QoS (nil or "": none); std if no class names it. Ignores case, as Slurm does.
	function M.class_of(site, qos)
		local wanted = string.lower(qos or "")
		for _, class in ipairs(sorted_keys(site.classes)) do
			for _, name in ipairs(site.classes[class]) do
				if string.lower(name) == wanted then
					return class
				end
			end
		end
		return contract.classes.default
	end

	-- Returns the request that `count` bare shards are translated to. It resolves to the same number of shards, but at
	-- least to those of 1 % of a GPU's time.
	function M.of_shards(count, gpu_type, site, partitions)
		local request = { gpu_type = gpu_type, mem_mib = count * site.shard_mib }
		local _, shards = common_capacity(site, candidates(site, request, partitions), request, partitions)
		request.cores = math.min(100, math.max(1, floor(100 * count / shards)))
		return request
	end

	-- Refuses a policy (nil: none is asked for) that jobs of `class` may not ask for.
	function M.check_policy(site, class, policy)
		local allowed = site.policies[class] or {}
		if not policy or contains(allowed, policy) then
			return
		elseif #allowed == 0 then
			fail("E_SITE", { given = "policies of class " .. class .. " are missing" })
		end
		local classes = {}
		for _, name in ipairs(sorted_keys(site.policies)) do
			if contains(site.policies[name], policy) then
				classes[#classes + 1] = name .. " (QoS " .. listed(site.classes[name] or {}) .. ")"
			end
		end
		fail("E_POLICY_NOT_ALLOWED", {
			given = policy,
			where = class,
			allowed = listed(allowed),
			classes = #classes > 0 and table.concat(classes, "; ") or "no class",
			example = "--gres=vgpu:mem=8G,cores=50,policy=" .. allowed[1],
		})
	end

	-- Refuses an slo (nil: none is asked for) in a class that is not latency-critical.
	function M.check_slo(site, class, slo_us)
		if not slo_us then
			return
		elseif not site.latency then
			fail("E_SITE", { given = "the latency-critical classes are missing" })
		elseif contains(site.latency, class) then
			return
		end
		local latency, classes, qos = {}, {}, ""
		for i, name in ipairs(site.latency) do
			latency[i] = name
		end
		table.sort(latency)
		for i, name in ipairs(latency) do
			local names = site.classes[name] or {}
			classes[i] = name .. " (QoS " .. listed(names) .. ")"
			if qos == "" and names[1] then
				qos = "--qos=" .. names[1] .. " "
			end
		end
		local text = grammar.slo_text(slo_us)
		fail("E_SLO_NOT_ALLOWED", {
			given = text,
			where = class,
			classes = #classes > 0 and table.concat(classes, "; ") or "none",
			example = qos .. "--gres=vgpu:mem=8G,cores=50,slo=" .. text,
		})
	end

	-- Returns { shards, mem_mib, cores } of a request in a mode that divides a GPU's memory and time by shards.
	local function share_of(request, site, models, partitions)
		local mib, shards = common_capacity(site, models, request, partitions)
		if shards < 1 then
			fail("E_SITE", { given = "shard_mib is more than a GPU has" })
		end
		local full = with_defaults(request, site, mib)
		local mem_mib, mem_shards = mem_units(full, site, mib, shards)
		return {
			shards = math.max(mem_shards, 1, floor(shards * full.cores / 100)),
			mem_mib = mem_mib,
			cores = full.cores,
		}
	end

	-- Returns the profile of the MIG instance of a request, or nil and the refusal.
	local function instance_of(request, site, models, partitions)
		for _, model in ipairs(models) do
			M.capacity(site, model) -- that it is one of the site's
		end
		return mig.choose(mig.with_defaults(request, site, models), site, models, M.where_text(partitions))
	end

	-- Returns the mode that a request gets, which decides for mode=auto, and { shards, mem_mib, cores }.
	local function granted(mode, request, site, models, partitions)
		if mode ~= MIG and mode ~= AUTO then
			return mode, share_of(request, site, models, partitions)
		end
		local other, instance, refusal
		for _, name in ipairs(site.modes) do
			other = other or name ~= MIG and name or nil
		end
		if mode == MIG or contains(site.modes, MIG) then
			instance, refusal = instance_of(request, site, models, partitions)
		end
		if mode == MIG or not other then
			if not instance then
				error(refusal or errors.new("E_SITE", { given = "modes is empty" }), 0)
			end
			return MIG, instance
		end
		local share = share_of(request, site, models, partitions)
		if instance and mig.wastes_little(instance.shards, share.shards, site.mig_waste_percent) then
			return MIG, instance
		end
		return other, share
	end

	-- Returns { shards, mem_mib, cores, service_class, mode, features, slo_us } of a request in `partitions` (list of names)
	-- with `qos`. `mode` is nil where the job's features do not say it.
	function M.resolve(request, site, partitions, qos)
		local models = candidates(site, request, partitions)
		local mode, slice = granted(mig.mode_of(request, site.modes), request, site, models, partitions)
		if not request.mode and mode ~= MIG and not contains(site.modes, MIG) then
			mode = nil -- a site with MIG has nodes that isolate in one mode alone, so each job says which
		end
		return {
			shards = slice.shards,
			mem_mib = slice.mem_mib,
			cores = slice.cores,
			service_class = M.class_of(site, qos),
			mode = mode,
			features = M.features(request, mode),
			slo_us = request.slo_us,
		}
	end

	return M
end
