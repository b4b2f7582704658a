-- SPDX-License-Identifier: Apache-2.0
-- The GPU models that a request may run on, and what it takes of them (docs/adr/066). hami_hpc/core/gpu_choice.py is the
-- same in Python; tests/vectors check that both agree.

return function(contract, errors, grammar, mig)
	local M = {}
	local fail = errors.fail
	local floor = math.floor
	local listed, contains = mig.listed, mig.contains

	function M.sorted_keys(map)
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

	-- Returns the MiB of one GPU of `model` that can be granted to one slice, the shards of these, and the shards that
	-- Slurm has of the GPU for all slices, which are more where memory is oversold. hami_hpc/core/sizes.py says more.
	-- Rounds all down, so that shards * shard_mib never exceeds the MiB.
	function M.capacity(site, model)
		local entry = site.gpu_models[model]
		if not entry then
			fail("E_SITE", { given = "gpu_models." .. model .. " is missing" })
		end
		local sold_mib = floor(entry.total_mib * site.memory_scaling)
		local sold = floor(sold_mib / site.shard_mib)
		if site.memory_scaling <= 1 then
			return sold_mib, sold, sold
		end
		local mib = floor(entry.total_mib * contract.site.oversold.oversold_part)
		local shards = floor(mib / site.shard_mib)
		return shards < 1 and mib or shards * site.shard_mib, shards, sold
	end

	local function fail_unknown_type(given, where, allowed)
		local example = #allowed > 0 and "--gres=vgpu:" .. allowed[1] .. ":mem=8G" or nil
		fail("E_TYPE_UNKNOWN", { given = given, where = where, allowed = listed(allowed), example = example })
	end

	-- Returns those of a partition's `models` that the request's type allows. Refuses a type that no GPU of the site is of,
	-- and one that leaves none.
	local function allowed_models(site, request, models, name)
		if request.gpu_type and not contains(models, request.gpu_type) then
			fail_unknown_type(request.gpu_type, M.where_text({ name }), models)
		elseif request.gpu_type then
			return { request.gpu_type }
		elseif not request.type then
			return models
		end
		local names, is_negated = grammar.types_in(request.type)
		for _, wanted in ipairs(names) do
			if not site.gpu_models[wanted] then
				fail_unknown_type(wanted, "this cluster", M.sorted_keys(site.gpu_models))
			end
		end
		local left = {}
		for _, model in ipairs(models) do
			if contains(names, model) ~= is_negated then
				left[#left + 1] = model
			end
		end
		if #left == 0 then
			fail("E_TYPE_NONE", {
				given = request.type,
				where = M.where_text({ name }),
				allowed = listed(models),
				example = "--gres=vgpu:" .. models[1] .. ":mem=8G",
			})
		end
		return left
	end

	-- Returns the models that a request may run on, each once.
	function M.candidates(site, request, partitions)
		local models = {}
		for _, name in ipairs(partitions) do
			local partition = site.partitions[name]
			if not partition or #partition.gpu_models == 0 then
				local allowed = listed(M.sorted_keys(site.partitions))
				fail("E_NO_VGPU_HERE", { where = M.where_text({ name }), allowed = allowed })
			end
			for _, model in ipairs(allowed_models(site, request, partition.gpu_models, name)) do
				if not contains(models, model) then
					models[#models + 1] = model
				end
			end
		end
		return models
	end

	local function fail_too_big(mem_mib, largest, partitions)
		fail("E_MEM_TOO_BIG", {
			given = string.match(grammar.canonical({ mem_mib = mem_mib }), "mem=(.*)$"),
			where = M.where_text(partitions),
			model = largest.model,
			allowed = string.format("%dM", largest.mib),
			example = string.format("--gres=vgpu:mem=%dM", largest.mib),
		})
	end

	-- Returns the MiB and the shards of a GPU of the model with the most shards, of those with at least the MiB that the
	-- request names; of several such models, the fewest MiB. Percentages are of this GPU. The third result are the shards
	-- that Slurm has of it, of several such models the most.
	--
	-- Slurm has one number of shards for a job, whatever GPU it gets, and none of a GPU with fewer. So many of this GPU's
	-- are at least the same part of each other one.
	function M.largest(site, models, request, partitions)
		local largest, smaller, mib, shards, sold
		for _, model in ipairs(models) do
			local size = { model = model }
			size.mib, size.shards, size.sold = M.capacity(site, model)
			if not largest or size.mib > largest.mib then
				largest = size
			end
			if request.mem_mib and size.mib < request.mem_mib then
				smaller = math.max(smaller or 0, size.shards)
			elseif not shards or size.shards > shards then
				mib, shards, sold = size.mib, size.shards, size.sold
			elseif size.shards == shards then
				mib, sold = math.min(mib, size.mib), math.max(sold, size.sold)
			end
		end
		if not shards then
			fail_too_big(request.mem_mib, largest, partitions)
		elseif smaller and smaller >= shards then
			-- A model has as many shards and less memory: a slice of all shards must not get it.
			M.fail_type_needed(models, partitions)
		end
		return mib, shards, sold
	end

	-- Refuses a slice that Slurm could place on a GPU of which no slice may have so much memory: an oversold GPU has more
	-- shards for all slices than one slice of it may have.
	function M.check_every_model(site, models, slice, partitions)
		for _, model in ipairs(models) do
			local mib, _, sold = M.capacity(site, model)
			if mib < slice.mem_mib and slice.shards <= sold then
				M.fail_type_needed(models, partitions)
			end
		end
	end

	function M.fail_type_needed(models, partitions)
		fail("E_TYPE_NEEDED", {
			where = M.where_text(partitions),
			allowed = listed(models),
			example = "--gres=vgpu:" .. models[1] .. ":mem=8G",
		})
	end

	-- Refuses a request that is in percent of a GPU where it may run on GPUs of several sizes. For the client, which does not
	-- know a job's default partition, nor the type of the job of a step.
	function M.check_percentages(request, site, partitions)
		local says_mem = request.mem_mib or not request.mem_percent and site.default_request.mem_mib
		if says_mem and (request.cores or site.default_cores ~= contract.request.cores_proportional) then
			return
		end
		local allowed, first = M.candidates(site, request, partitions), nil
		for _, model in ipairs(allowed) do
			local _, shards = M.capacity(site, model)
			first = first or shards
			if shards ~= first then
				M.fail_type_needed(allowed, partitions)
			end
		end
	end

	-- Returns the node feature that a request for a type needs, nil if it names none. Of several types a node has one.
	function M.type_feature(request, models)
		local names = {}
		for i, model in ipairs((request.gpu_type or request.type) and models or {}) do
			names[i] = string.gsub(contract.features.type, "{type}", model)
		end
		return #names > 1 and "(" .. table.concat(names, "|") .. ")" or names[1]
	end

	-- Fills in what the request's preset has and the request itself does not say.
	function M.apply_preset(request, site)
		local name = request.preset
		if not name then
			return
		end
		local preset = site.presets[name]
		if not preset then
			local names = M.sorted_keys(site.presets)
			local example = names[1] and "--gres=" .. contract.request.name .. ":preset=" .. names[1] or nil
			fail("E_PRESET", { given = name, allowed = listed(names), example = example })
		end
		local says = {
			mem_mib = request.mem_mib or request.mem_percent,
			gpu_type = request.gpu_type or request.type,
			mode = request.mode or request.mig or request.isolation,
		}
		says.mem_percent, says.type = says.mem_mib, says.gpu_type
		says.mig, says.isolation = says.mode, says.mode
		for key, value in pairs(preset) do
			if not says[key] and not request[key] then
				request[key] = value
			end
		end
		request.preset = nil
	end

	return M
end
