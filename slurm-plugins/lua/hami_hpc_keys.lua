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

	-- Returns a request that has `key`. A MIG profile stands alone: it says how much memory and how many cores it has.
	local function example_with(key)
		local example = rules.example
		if key == "mig" then
			return "--gres=" .. rules.name .. ":" .. rules.keys.mig.example
		end
		return string.find(example, key .. "=", 1, true) and example or example .. "," .. rules.keys[key].example
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
