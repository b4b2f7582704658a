-- SPDX-License-Identifier: Apache-2.0
-- The keys of a vgpu request: how the value of each is parsed and written. hami_hpc/core/request.py is the same in
-- Python; tests/vectors check that both agree.

return function(contract, errors)
	local M = {}
	local fail = errors.fail
	local rules = contract.request
	local limits = rules.limits
	local MIB = { M = 1, G = 1024, T = 1048576 }
	local US = { us = 1, ms = 1000, s = 1000000 }
	local MEM_RANGE = string.format(
		"1M to %dT, or %d%% to %d%%",
		limits.mem_mib_max / MIB.T,
		limits.percent_min,
		limits.percent_max
	)

	-- Returns a request that has `key`. A MIG profile and a preset stand alone: they say how much memory and cores.
	local function example_with(key)
		local example, of_key = rules.example, string.gsub(rules.keys[key].example, " or .*", "")
		if key == "mig" or key == "preset" then
			return "--gres=" .. rules.name .. ":" .. of_key
		end
		return string.find(example, key .. "=", 1, true) and example or example .. "," .. of_key
	end

	function M.fail_value(code, key, value)
		fail(code, { key = key, given = value, allowed = rules.keys[key].form, example = example_with(key) })
	end

	local function parse_mem(request, value)
		local digits, unit = string.match(value, "^([0-9]+)([MmGgTt%%]?)$")
		if not digits then
			if string.find(value, "^%-[0-9]+[MmGgTt%%]?$") then
				fail("E_MEM_RANGE", { given = value, allowed = MEM_RANGE })
			elseif string.find(value, "^%-?[0-9]*%.[0-9]*[MmGgTt%%]?$") and string.find(value, "[0-9]") then
				M.fail_value("E_MEM_FRACTION", "mem", value)
			end
			M.fail_value("E_MEM_FORM", "mem", value)
		end
		if unit == "" then
			M.fail_value("E_MEM_UNIT", "mem", value)
		end
		local number = tonumber(digits)
		local mib = unit ~= "%" and number * MIB[string.upper(unit)]
		if mib and mib >= 1 and mib <= limits.mem_mib_max then
			request.mem_mib = mib
		elseif not mib and number >= limits.percent_min and number <= limits.percent_max then
			request.mem_percent = number
		else
			fail("E_MEM_RANGE", { given = value, allowed = MEM_RANGE })
		end
	end

	-- One slice is no count, so that a request has one form.
	local function parse_count(request, value)
		if not string.find(value, "^[1-9][0-9]*$") then
			fail("E_COUNT_FORM", { given = value })
		elseif #value > 2 or tonumber(value) > limits.slices_max then
			fail("E_COUNT", { given = value, allowed = "slices_max can be " .. limits.slices_max .. " at most" })
		end
		request.count = tonumber(value) > 1 and tonumber(value) or nil
	end

	local function parse_preset(request, value)
		if #value > limits.preset_name_max or not string.find(value, "^[A-Za-z0-9_%-]+$") then
			M.fail_value("E_PRESET_FORM", "preset", value)
		end
		request.preset = value
	end

	-- Returns the names in the value of `type`, and whether they are those to avoid.
	function M.types_in(value)
		local names, negation, list = {}, string.match(value, "^(!?)(.*)$")
		for name in string.gmatch(list .. "|", "([^|]*)|") do
			names[#names + 1] = name
		end
		return names, negation == "!"
	end

	-- One type is what vgpu:TYPE asks for, so that a request has one form.
	local function parse_type(request, value)
		local names, is_negated = M.types_in(value)
		for _, name in ipairs(names) do
			if not string.find(name, "^[A-Za-z0-9_%-]+$") then
				M.fail_value("E_TYPE_LIST", "type", value)
			end
		end
		if #names == 1 and not is_negated then
			request.gpu_type = value
		else
			request.type = value
		end
	end

	local function parse_cores(request, value)
		local sign, digits = string.match(value, "^(%-?)([0-9]+)$")
		if not digits then
			M.fail_value("E_CORES_FORM", "cores", value)
		end
		local number = tonumber(digits)
		if sign ~= "" or number < limits.cores_min or number > limits.cores_max then
			M.fail_value("E_CORES_RANGE", "cores", value)
		end
		request.cores = number
	end

	local function parse_mode(request, value)
		if not rules.modes[value] and value ~= rules.mode_auto then
			M.fail_value("E_MODE", "mode", value)
		end
		request.mode = value
	end

	local function parse_mig(request, value)
		local suffix = string.match(value, "^[1-9][0-9]?g%.[1-9][0-9]*gb(.*)$")
		if #value > limits.mig_name_max or not suffix or suffix ~= "" and not string.find(suffix, "^[+%-][a-z.]+$") then
			M.fail_value("E_MIG_FORM", "mig", value)
		end
		request.mig = value
	end

	local function parse_isolation(request, value)
		if value ~= rules.isolation_hard then
			M.fail_value("E_ISOLATION", "isolation", value)
		end
		request.isolation = value
	end

	local function parse_policy(request, value)
		if not contract.policies[value] then
			M.fail_value("E_POLICY", "policy", value)
		end
		request.policy = value
	end

	local function parse_slo(request, value)
		local digits, unit = string.match(value, "^([0-9]+)([mu]?s)$")
		if not digits then
			M.fail_value("E_SLO_FORM", "slo", value)
		end
		local number, factor = tonumber(digits), US[unit]
		if number > limits.slo_us_max / factor or number * factor < limits.slo_us_min then
			M.fail_value("E_SLO_RANGE", "slo", value)
		end
		request.slo_us = number * factor
	end

	-- Returns an slo in us with the largest unit that divides it.
	function M.slo_text(slo_us)
		local unit = "us"
		for _, larger in ipairs({ "ms", "s" }) do
			if slo_us % US[larger] == 0 then
				unit = larger
			end
		end
		return string.format("%d%s", slo_us / US[unit], unit)
	end

	local function mem_text(request)
		if request.mem_percent then
			return request.mem_percent .. "%"
		elseif not request.mem_mib then
			return nil
		end
		local unit = "M"
		for _, larger in ipairs({ "G", "T" }) do
			if request.mem_mib % MIB[larger] == 0 then
				unit = larger
			end
		end
		return string.format("%d%s", request.mem_mib / MIB[unit], unit)
	end

	-- One row for each key of the contract: `parse` reads the value into the request, `text` returns it (nil: not set).
	M.KEYS = {
		preset = {
			parse = parse_preset,
			text = function(request)
				return request.preset
			end,
		},
		type = {
			parse = parse_type,
			text = function(request)
				return request.type
			end,
		},
		count = {
			parse = parse_count,
			text = function(request)
				return request.count and string.format("%d", request.count)
			end,
		},
		mem = { parse = parse_mem, text = mem_text },
		cores = {
			parse = parse_cores,
			text = function(request)
				return request.cores
			end,
		},
		mode = {
			parse = parse_mode,
			text = function(request)
				return request.mode
			end,
		},
		mig = {
			parse = parse_mig,
			text = function(request)
				return request.mig
			end,
		},
		isolation = {
			parse = parse_isolation,
			text = function(request)
				return request.isolation
			end,
		},
		policy = {
			parse = parse_policy,
			text = function(request)
				return request.policy
			end,
		},
		slo = {
			parse = parse_slo,
			text = function(request)
				return request.slo_us and M.slo_text(request.slo_us)
			end,
		},
	}

	return M
end
