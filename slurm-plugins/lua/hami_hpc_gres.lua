-- SPDX-License-Identifier: Apache-2.0
-- Writes units as gres tokens, parses them back, and finds vgpu requests in options that cannot carry them.

return function(contract, grammar)
	local M = {}
	local GRES = contract.gres
	local NAME = contract.request.name
	local limits = contract.request.limits
	local MAX_DIGITS = 6 -- of a count of shards; no GPU has that many
	local CLASS = "([a-z][a-z0-9_]*)"

	-- Returns the items of a list with commas; none of nil.
	function M.split_list(text)
		local items = {}
		for item in string.gmatch(text or "", "[^,]+") do
			items[#items + 1] = item
		end
		return items
	end

	local function token(prefix, name, count)
		return string.format("%s%s:%d", prefix, name, count)
	end

	-- Returns the shards of each slice as tokens: several slices have a type each, one slice has none.
	local function shard_tokens(units, prefix)
		local tokens = {}
		for i, place in ipairs(units.places or {}) do
			tokens[i] = token(prefix, GRES.shard .. ":" .. place, units.shards)
		end
		if #tokens == 0 then
			tokens[1] = token(prefix, GRES.shard, units.shards)
		end
		return tokens
	end

	-- Returns a job's units as tokens with `prefix`. Without `class`, which the client does not decide, vgpu has no type.
	function M.job_tokens(units, prefix, class)
		local tokens = shard_tokens(units, prefix)
		tokens[#tokens + 1] = token(prefix, GRES.class .. (class and ":" .. class or ""), units.count or 1)
		tokens[#tokens + 1] = token(prefix, GRES.mem, units.mem_mib)
		tokens[#tokens + 1] = token(prefix, GRES.cores, units.cores)
		if units.slo_us then
			tokens[#tokens + 1] = token(prefix, GRES.slo, units.slo_us)
		end
		if units.fixed then
			tokens[#tokens + 1] = token(prefix, GRES.fixed, units.fixed)
		end
		return tokens
	end

	-- Returns a step's units as tokens. Without vgpu where the job has one slice, because its steps must be able to run at
	-- once; `units.count` is nil there.
	function M.step_tokens(units)
		local tokens = shard_tokens(units, "")
		if units.count then
			tokens[#tokens + 1] = token("", GRES.class, units.count)
		end
		tokens[#tokens + 1] = token("", GRES.mem, units.mem_mib)
		tokens[#tokens + 1] = token("", GRES.cores, units.cores)
		return tokens
	end

	-- Returns whether the list names vgpu_mem, vgpu_cores, vgpu_slo, vgpu_fixed or one of `classes` (a table by name). Steps may; Slurm limits
	-- them to the job's.
	function M.has_raw_units(text, classes)
		local token = grammar.find_token(text, NAME)
		local head = token and string.match(token, "^" .. NAME .. ":" .. CLASS)
		return grammar.find_token(text, GRES.mem) ~= nil
			or grammar.find_token(text, GRES.cores) ~= nil
			or grammar.find_token(text, GRES.slo) ~= nil
			or grammar.find_token(text, GRES.fixed) ~= nil
			or (head ~= nil and classes[head] ~= nil)
	end

	-- Returns the count and the class for "vgpu", "vgpu:2" or, if with_class, "vgpu:std:2"; else nil. With_class is for what
	-- Slurm has of a job, whose class the settings may have lost since.
	local function read_class(body, with_class)
		local head, digits = string.match(body, "^(.-)[:=]([0-9]+)$")
		local count = tonumber(digits or "1")
		local rest = string.sub(head or body, #NAME + 1)
		if count < 1 or count > limits.slices_max then
			return nil
		elseif rest == "" then
			return count
		end
		local class = string.match(rest, "^:" .. CLASS .. "$")
		if with_class and class and #class <= contract.classes.name_max then
			return count, class
		end
		return nil
	end

	-- Returns the types of the shards in a list, in its order: "" for shards without one.
	function M.shard_types(text)
		local types = {}
		for token in string.gmatch(#text > contract.request.max_length and "" or text, "[^,]+") do
			local _, body = grammar.split_prefix(token)
			if grammar.name_of(body) == GRES.shard then
				types[#types + 1] = string.match(body, "^%w+:(%a%w*)") or ""
			end
		end
		return types
	end

	-- Divides the sums of several slices. Returns whether they are equal slices, each with a shard type of its own.
	local function divide(parsed, count, text)
		local request, types, seen = parsed.request, M.shard_types(text), {}
		for _, name in ipairs(types) do
			if seen[name] or not string.find(contract.places.names, name, 1, true) or #name ~= 1 then
				return false
			end
			seen[name] = true
		end
		if #types ~= count or request.mem_mib % count ~= 0 or request.cores % count ~= 0 then
			return false
		end
		request.mem_mib, request.cores, request.count = request.mem_mib / count, request.cores / count, count
		parsed.places = types
		return true
	end

	-- Parses units: returns { request = { count, mem_mib, cores, slo_us }, service_class, places, others, prefix }, or nil if
	-- `text` is not the complete form that job_tokens writes (plus other gres). `request` is of each slice. `places` are the
	-- types of several slices. Ignores the number of shards, and those that are never moved: they follow from the rest.
	function M.parse_units(text, with_class)
		if not string.find(text, GRES.mem, 1, true) or #text > contract.request.max_length then
			return nil
		end
		local request, parsed, slices = {}, { others = {} }, nil
		for token in string.gmatch(text, "[^,]+") do
			local prefix, body = grammar.split_prefix(token)
			local name = grammar.name_of(body)
			local count = tonumber(string.match(body, "^[a-z_]+[:=]([0-9]+)$"))
			if name == GRES.class then
				local class
				if parsed.prefix then
					return nil
				end
				slices, class = read_class(body, with_class)
				if not slices then
					return nil
				end
				parsed.prefix, parsed.service_class = prefix, class
			elseif name == GRES.mem and count and not request.mem_mib then
				request.mem_mib = count
			elseif name == GRES.cores and count and not request.cores then
				request.cores = count
			elseif name == GRES.slo and count and not request.slo_us then
				request.slo_us = count
			elseif name == GRES.mem or name == GRES.cores or name == GRES.slo or name == "gpu" or name == "mps" then
				return nil
			elseif string.find(body, "gres", 1, true) then
				return nil -- see is_hidden in hami_hpc_request.lua
			elseif name ~= GRES.shard and name ~= GRES.fixed then
				parsed.others[#parsed.others + 1] = token
			end
		end
		parsed.request = request
		if not parsed.prefix or not request.mem_mib or not request.cores then
			return nil
		elseif slices > 1 and not divide(parsed, slices, text) then
			return nil
		end
		local mem, cores = request.mem_mib, request.cores
		if mem < 1 or mem > limits.mem_mib_max then
			return nil
		elseif cores < limits.cores_min or cores > limits.cores_max then
			return nil
		end
		local slo = request.slo_us
		if slo and (slo < limits.slo_us_min or slo > limits.slo_us_max) then
			return nil
		end
		return parsed
	end

	-- Parses a list that asks for N shards and for no other part of a GPU: returns { count, others, prefix }, or nil.
	function M.parse_shards(text)
		if #text > contract.request.max_length then
			return nil
		end
		local parsed = { others = {} }
		for token in string.gmatch(text, "[^,]+") do
			local prefix, body = grammar.split_prefix(token)
			local name = grammar.name_of(body)
			if name == GRES.shard then
				local digits = body == GRES.shard and "1" or string.match(body, "^%w+[:=]([0-9]+)$")
				if parsed.count or not digits or #digits > MAX_DIGITS or tonumber(digits) < 1 then
					return nil
				end
				parsed.count, parsed.prefix = tonumber(digits), prefix
			elseif name == "gpu" or name == "mps" or string.find(body, "gres", 1, true) then
				return nil
			elseif body ~= "" then
				parsed.others[#parsed.others + 1] = token
			end
		end
		return parsed.count and parsed or nil
	end

	-- Returns the first token of a list without vgpu that means one, VGPU:mem=8G or one behind a blank, or nil. Slurm
	-- refuses such a list without saying why.
	function M.misspelt(text)
		for token in string.gmatch(#text > contract.request.max_length and "" or text, "[^,]+") do
			local _, body = grammar.split_prefix(token)
			local bare = string.match(body, "^%s*(.*)$")
			if string.lower(grammar.name_of(string.gsub(bare, "^gres=", "", 1))) == NAME then
				return body -- with the blank, which is what is wrong
			end
		end
		return nil
	end

	-- Returns whether the list has gpu:vgpu..., which Slurm makes from --gpus-per-node=vgpu...
	function M.carries_in_gpu(text)
		if not string.find(text, NAME, 1, true) or #text > contract.request.max_length then
			return false
		end
		for token in string.gmatch(text, "[^,]+") do
			local _, body = grammar.split_prefix(token)
			if grammar.name_of(body) == "gpu" and grammar.name_of(string.sub(body, 5)) == NAME then
				return true
			end
		end
		return false
	end

	-- Returns whether the value of an option that cannot carry a vgpu request has one.
	function M.carries(text)
		return M.carries_in_gpu(text) or grammar.mentions(text)
	end

	return setmetatable(M, { __index = grammar })
end
