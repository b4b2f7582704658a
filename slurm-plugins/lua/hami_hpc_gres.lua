-- SPDX-License-Identifier: Apache-2.0
-- Writes units as gres tokens, parses them back, and finds vgpu requests in options that cannot carry them.

return function(contract, grammar)
	local M = {}
	local GRES = contract.gres
	local NAME = contract.request.name
	local limits = contract.request.limits
	local MAX_DIGITS = 6 -- of a count of shards; no GPU has that many
	local CLASS = "([a-z][a-z0-9_]*)"

	local function token(prefix, name, count)
		return string.format("%s%s:%d", prefix, name, count)
	end

	-- Returns a job's units as tokens with `prefix`. Without `class`, which the client does not decide, vgpu has no type.
	function M.job_tokens(units, prefix, class)
		local tokens = {
			token(prefix, GRES.shard, units.shards),
			prefix .. GRES.class .. (class and ":" .. class or "") .. ":1",
			token(prefix, GRES.mem, units.mem_mib),
			token(prefix, GRES.cores, units.cores),
		}
		if units.slo_us then
			tokens[#tokens + 1] = token(prefix, GRES.slo, units.slo_us)
		end
		return tokens
	end

	-- Returns a step's units as tokens, without vgpu: the job has only one, and its steps must be able to run at once.
	function M.step_tokens(units)
		return { token("", GRES.shard, units.shards), token("", GRES.mem, units.mem_mib), token("", GRES.cores, units.cores) }
	end

	-- Returns whether the list names vgpu_mem, vgpu_cores, vgpu_slo or one of `classes` (a table by name). Steps may; Slurm limits
	-- them to the job's.
	function M.has_raw_units(text, classes)
		local token = grammar.find_token(text, NAME)
		local head = token and string.match(token, "^" .. NAME .. ":" .. CLASS)
		return grammar.find_token(text, GRES.mem) ~= nil
			or grammar.find_token(text, GRES.cores) ~= nil
			or grammar.find_token(text, GRES.slo) ~= nil
			or (head ~= nil and classes[head] ~= nil)
	end

	-- Returns true and the class for "vgpu", "vgpu:1" or, if with_class, "vgpu:std:1"; else false. With_class is for what
	-- Slurm has of a job, whose class the settings may have lost since.
	local function read_class(body, with_class)
		local rest = string.sub(body, #NAME + 1)
		if rest == "" or string.find(rest, "^[:=]1$") then
			return true, nil
		end
		local class = string.match(rest, "^:" .. CLASS .. "[:=]1$") or string.match(rest, "^:" .. CLASS .. "$")
		if with_class and class and #class <= contract.classes.name_max then
			return true, class
		end
		return false, nil
	end

	-- Parses units: returns { request = { mem_mib, cores, slo_us }, service_class, others, prefix }, or nil if `text` is not the
	-- complete form that job_tokens writes (plus other gres). Ignores shards, because they follow from the rest.
	function M.parse_units(text, with_class)
		if not string.find(text, GRES.mem, 1, true) or #text > contract.request.max_length then
			return nil
		end
		local request, parsed = {}, { others = {} }
		for token in string.gmatch(text, "[^,]+") do
			local prefix, body = grammar.split_prefix(token)
			local name = grammar.name_of(body)
			local count = tonumber(string.match(body, "^[a-z_]+[:=]([0-9]+)$"))
			if name == GRES.class then
				local is_valid, class = read_class(body, with_class)
				if not is_valid or parsed.prefix then
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
			elseif name ~= GRES.shard then
				parsed.others[#parsed.others + 1] = token
			end
		end
		local mem, cores = request.mem_mib, request.cores
		if not parsed.prefix or not mem or mem < 1 or mem > limits.mem_mib_max then
			return nil
		elseif not cores or cores < limits.cores_min or cores > limits.cores_max then
			return nil
		end
		local slo = request.slo_us
		if slo and (slo < limits.slo_us_min or slo > limits.slo_us_max) then
			return nil
		end
		parsed.request = request
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

	for name, value in pairs(grammar) do
		M[name] = value
	end
	return M
end
