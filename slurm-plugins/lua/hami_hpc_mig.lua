-- SPDX-License-Identifier: Apache-2.0
-- Which MIG profile a request takes, by what the site offers. hami_hpc/core/mig_choice.py is the same in Python;
-- tests/vectors check that both agree.

return function(contract, errors, grammar)
	local M = {}
	local MIG = "mig"
	local AUTO = contract.request.mode_auto
	local fail = errors.fail

	function M.contains(list, wanted)
		for _, item in ipairs(list) do
			if item == wanted then
				return true
			end
		end
		return false
	end

	-- Returns "h200, a100" for { "h200", "a100" }, "none" for {}.
	function M.listed(names)
		return #names > 0 and table.concat(names, ", ") or "none"
	end

	-- Returns the key by which a request asks for a MIG instance whatever its mode, nil if there is none.
	local function mig_key(request)
		return request.mig and "mig=" .. request.mig or request.isolation and "isolation=" .. request.isolation
	end

	local function not_here(key, where, modes)
		return errors.new("E_MIG_NOT_HERE", {
			key = key,
			where = where,
			allowed = M.listed(modes),
			example = "--gres=vgpu:mem=8G",
		})
	end

	-- Returns the mode that a request names, "auto" too, else the site's first; nil if the site has none. Refuses one that
	-- the site does not offer, and a request that contradicts itself.
	function M.mode_of(request, modes)
		local key = mig_key(request)
		if not key and not request.mode then
			return modes[1]
		elseif key and request.mode and request.mode ~= MIG and request.mode ~= AUTO then
			local example = "--gres=" .. contract.request.name .. ":" .. key
			fail("E_MODE_CONFLICT", { given = request.mode, key = key, example = example })
		elseif key and not M.contains(modes, MIG) then
			error(not_here(key, "this cluster", modes), 0)
		end
		local mode = key and MIG or request.mode
		if mode ~= AUTO and not M.contains(modes, mode) then
			fail("E_MODE_NOT_OFFERED", {
				given = mode,
				where = "this cluster",
				allowed = M.listed(modes),
				example = "--gres=vgpu:mem=8G",
			})
		end
		return mode
	end

	local function has_mem(profile, request)
		if request.mem_mib then
			return request.mem_mib <= profile.mem_mib
		end
		return not request.mem_percent or request.mem_percent <= profile.mem_percent
	end

	-- Returns "mem=8G,cores=50" for a request's size.
	local function size_text(size)
		local text = string.sub(grammar.canonical(size), #contract.request.name + 2)
		return (string.gsub(text, ";", ","))
	end

	-- Returns the profile on one model, or nil and the refusal.
	local function on_model(request, profiles, where, modes)
		if not profiles or #profiles == 0 then
			return nil, not_here(mig_key(request) or "mode=" .. (request.mode or MIG), where, modes)
		end
		local enough, named, texts
		texts = {}
		for i, profile in ipairs(profiles) do
			if not enough and has_mem(profile, request) and profile.cores >= (request.cores or 0) then
				enough = profile
			end
			if profile.name == request.mig then
				named = profile
			end
			texts[i] = string.format("%s (%dM, cores=%d)", profile.name, profile.mem_mib, profile.cores)
		end
		local fields = {
			where = where,
			allowed = table.concat(texts, ", "),
			example = "--gres=vgpu:mig=" .. (enough or profiles[#profiles]).name,
		}
		if not request.mig then
			fields.given = size_text({ mem_mib = request.mem_mib, mem_percent = request.mem_percent, cores = request.cores })
			return enough, not enough and errors.new("E_MIG_TOO_BIG", fields) or nil
		elseif not named then
			fields.given = request.mig
			return nil, errors.new("E_MIG_UNKNOWN", fields)
		elseif not has_mem(named, request) then
			fields.key = size_text({ mem_mib = request.mem_mib, mem_percent = request.mem_percent })
		elseif named.cores < (request.cores or 0) then
			fields.key = size_text({ cores = request.cores })
		end
		if fields.key then
			fields.given = named.name
			return nil, errors.new("E_MIG_TOO_SMALL", fields)
		end
		return named
	end

	local function are_equal(a, b)
		for _, key in ipairs({ "name", "mem_mib", "mem_percent", "cores", "shards" }) do
			if a[key] ~= b[key] then
				return false
			end
		end
		return true
	end

	-- Returns the smallest profile with the request's mem and cores, or the one that it names; else nil and the refusal.
	-- It has to be the same one on all of `models`. `where` is text.
	function M.choose(request, site, models, where)
		local first, first_refusal, differs
		for i, model in ipairs(models) do
			local profiles = site.gpu_models[model] and site.gpu_models[model].mig
			local profile, refusal = on_model(request, profiles, model .. " in " .. where, site.modes)
			if i == 1 then
				first, first_refusal = profile, refusal
			elseif first and profile then
				differs = differs or not are_equal(first, profile)
			elseif first or profile then
				differs = true
			end
		end
		if differs then
			return nil,
				errors.new("E_TYPE_NEEDED", {
					where = where,
					allowed = M.listed(models),
					example = "--gres=vgpu:" .. models[1] .. ":mem=8G",
				})
		end
		return first, first_refusal
	end

	-- Returns the request with the site's defaults where it does not say its size. mode=auto may also become a share, so it
	-- needs as much as that would get. A default in MiB is at most that of the largest profile.
	function M.with_defaults(request, site, models)
		local sized = {}
		for key, value in pairs(request) do
			sized[key] = value
		end
		local says_mem = request.mem_mib or request.mem_percent
		if request.mode == AUTO and not request.mig or not (request.mig or says_mem or request.cores) then
			local largest
			for _, model in ipairs(models) do
				local profiles = site.gpu_models[model] and site.gpu_models[model].mig or {}
				local mib = #profiles > 0 and profiles[#profiles].mem_mib
				largest = mib and math.min(largest or mib, mib) or largest
			end
			if not says_mem then
				sized.mem_mib = site.default_request.mem_mib and math.min(site.default_request.mem_mib, largest or 0)
				sized.mem_percent = site.default_request.mem_percent
			end
			local default = site.default_cores ~= contract.request.cores_proportional and site.default_cores or nil
			sized.cores = request.cores or default -- nil: the instance has the cores of its memory
		end
		return sized
	end

	-- Returns whether at most that part of an instance of `shards` is more than the `needed` ones of a share.
	function M.wastes_little(shards, needed, most_percent)
		return 100 * (shards - needed) <= most_percent * shards
	end

	return M
end
