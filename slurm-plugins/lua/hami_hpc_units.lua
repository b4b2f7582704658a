-- SPDX-License-Identifier: Apache-2.0
-- Translates a request, by the site's table, into the units that Slurm schedules: shards, MiB, percent, class, node
-- features. hami_hpc/core/units.py is the same in Python; tests/vectors check that both agree.

return function(contract, errors, grammar, mig, places, models)
	local M = setmetatable({}, { __index = models })
	local fail = errors.fail
	local floor = math.floor

	local listed, contains = mig.listed, mig.contains
	local MIG, AUTO, SHARE = "mig", contract.request.mode_auto, "share"

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
	-- `mib` MiB of the GPU. Without cores where the site's default is proportional.
	local function with_defaults(request, site, mib)
		local full = { mem_mib = request.mem_mib, mem_percent = request.mem_percent, cores = request.cores }
		if not full.mem_mib and not full.mem_percent then
			full.mem_mib = site.default_request.mem_mib and math.min(site.default_request.mem_mib, mib)
			full.mem_percent = site.default_request.mem_percent
		end
		full.cores = full.cores or site.default_cores ~= contract.request.cores_proportional and site.default_cores or nil
		return full
	end

	-- Returns the node features that a request needs in a mode (nil: in any), in a fixed order. `allowed` are the models
	-- that it may run on.
	function M.features(request, mode, allowed)
		local names = {}
		if mode then
			names[#names + 1] = (string.gsub(contract.features.mode, "{mode}", mode))
		end
		names[#names + 1] = models.type_feature(request, allowed or { request.gpu_type })
		if request.policy then
			names[#names + 1] = (string.gsub(contract.features.policy, "{policy}", request.policy))
		end
		return names
	end

	-- Returns the class of service of a QoS (nil or "": none); std if no class names it. Ignores case, as Slurm does.
	function M.class_of(site, qos)
		local wanted = string.lower(qos or "")
		for _, class in ipairs(models.sorted_keys(site.classes)) do
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
		local _, shards = models.largest(site, models.candidates(site, request, partitions), request, partitions)
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
		for _, name in ipairs(models.sorted_keys(site.policies)) do
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

	-- Returns the shards that a job of `class` holds of those that are never moved off an oversold GPU, or nil: it is moved.
	function M.fixed_shards(site, class, shards)
		return contains(site.fixed, class) and shards or nil
	end

	-- Returns { shards, mem_mib, cores } of a request in a mode that divides a GPU's memory and time by shards.
	local function share_of(request, site, allowed, partitions)
		local mib, shards, sold = models.largest(site, allowed, request, partitions)
		if shards < 1 then
			fail("E_SITE", { given = "shard_mib is more than a GPU has" })
		end
		local full = with_defaults(request, site, mib)
		local mem_mib, needed = mem_units(full, site, mib, shards)
		if site.max_tenants > 0 then
			-- That many fit, and one more does not.
			needed = math.max(needed, floor(sold / site.max_tenants), floor(sold / (site.max_tenants + 1)) + 1)
		end
		local cores = full.cores or math.min(100, math.max(1, floor(100 * needed / shards)))
		local slice = { shards = math.max(needed, 1, floor(shards * cores / 100)), mem_mib = mem_mib, cores = cores }
		models.check_every_model(site, allowed, slice, partitions)
		return slice
	end

	-- Returns the profile of the MIG instance of a request, or nil and the refusal.
	local function instance_of(request, site, allowed, partitions)
		for _, model in ipairs(allowed) do
			M.capacity(site, model) -- that it is one of the site's
		end
		return mig.choose(mig.with_defaults(request, site, allowed), site, allowed, M.where_text(partitions))
	end

	-- Returns the mode that a request gets, which decides for mode=auto, and { shards, mem_mib, cores }.
	local function granted(mode, request, site, allowed, partitions)
		if request.count then
			return SHARE, share_of(request, site, allowed, partitions)
		elseif mode ~= MIG and mode ~= AUTO then
			return mode, share_of(request, site, allowed, partitions)
		end
		local other, instance, refusal
		for _, name in ipairs(site.modes) do
			other = other or name ~= MIG and name or nil
		end
		if mode == MIG or contains(site.modes, MIG) then
			instance, refusal = instance_of(request, site, allowed, partitions)
		end
		if mode == MIG or not other then
			if not instance then
				error(refusal or errors.new("E_SITE", { given = "modes is empty" }), 0)
			end
			return MIG, instance
		end
		local share = share_of(request, site, allowed, partitions)
		if instance and mig.wastes_little(instance.shards, share.shards, site.mig_waste_percent) then
			return MIG, instance
		end
		return other, share
	end

	-- Returns from how many places a request may choose in `partitions`. Refuses a count that no node there has.
	function M.places_of(request, site, partitions)
		local gpus = {}
		for i, name in ipairs(partitions) do
			gpus[i] = { M.where_text({ name }), site.partitions[name] and site.partitions[name].gpus or 0 }
		end
		return places.check_count(request, site.slices_max, gpus)
	end

	-- Returns whether a job whose slices are on GPUs of the types `names` can have them in `partitions`.
	function M.has_places(request, site, partitions, names)
		return places.are_among(names, M.places_of(request, site, partitions))
	end

	-- Refuses the types that a job has already where `partitions` do not have them: Slurm cannot change them.
	function M.check_places(request, site, partitions, names)
		places.check_kept(names, M.places_of(request, site, partitions), M.where_text(partitions))
	end

	-- Returns { shards, mem_mib, cores, service_class, mode, features, slo_us, count, places } of a request in `partitions`
	-- (list of names) with `qos`. `mode` is nil where the job's features do not say it. `shards` are those of each slice,
	-- `mem_mib` and `cores` the sums of `count` slices. Of more places than the request needs it takes those from number
	-- `turn` (nil: 0) on, so that jobs are spread over them; one slice has none.
	function M.resolve(request, site, partitions, qos, turn)
		M.apply_preset(request, site)
		local allowed = models.candidates(site, request, partitions)
		local places_here = M.places_of(request, site, partitions)
		places.check_mode(request, site.modes)
		local mode, slice = granted(mig.mode_of(request, site.modes), request, site, allowed, partitions)
		local is_only_mode = #site.modes == 1 and site.modes[1] == SHARE
		if request.mode or mode == MIG or contains(site.modes, MIG) or request.count and not is_only_mode then
			-- A site with MIG has nodes that isolate in one mode alone, so each job says which. Several slices are only
			-- of mode=share, whatever the node's first mode is.
		else
			mode = nil
		end
		local count = request.count or 1
		return {
			shards = slice.shards,
			mem_mib = slice.mem_mib * count,
			cores = slice.cores * count,
			service_class = M.class_of(site, qos),
			mode = mode,
			features = M.features(request, mode, allowed),
			slo_us = request.slo_us,
			count = count,
			places = places.chosen(request.count, places_here, turn or 0),
		}
	end

	-- Returns those of several partitions that have what the request asks for, since Slurm starts a job where it can, and
	-- users name partitions of all kinds, as does Slurm's plugin all_partitions; all where none has it. `is_exclusive` (nil in
	-- the client, which does not know): returns whether each job in a partition holds whole nodes.
	function M.narrowed(request, site, partitions, is_exclusive)
		local names = {}
		for _, name in ipairs(#partitions > 1 and partitions or {}) do
			if not (is_exclusive and is_exclusive(name)) and pcall(M.resolve, request, site, { name }) then
				names[#names + 1] = name
			end
		end
		return #names > 0 and names or partitions
	end

	return M
end
