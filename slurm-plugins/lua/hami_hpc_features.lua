-- SPDX-License-Identifier: Apache-2.0
-- Adds hami_hpc's node features to a job's --constraint without changing the meaning of the rest.
--
-- Slurm (22.05, build_feature_list) supports one level of parentheses, reads ',' as '&', and evaluates a mixture of '&'
-- and '|' from left to right. So "a|b" becomes "(a|b)&ours"; a constraint that would need a second level is refused.

return function(contract, errors)
	local M = {}
	local MODES = {} -- by feature
	for mode in pairs(contract.request.modes) do
		MODES[(string.gsub(contract.features.mode, "{mode}", mode))] = mode
	end
	local POLICIES = {} -- by feature
	for policy in pairs(contract.policies) do
		POLICIES[(string.gsub(contract.features.policy, "{policy}", policy))] = policy
	end
	local TYPE_HEAD = string.match(contract.features.type, "^[^{]*")

	-- Returns the GPU types of "(vgpu_type_a|vgpu_type_b)", or of the same in brackets, which gives all nodes of a job one of
	-- them; nil for another term.
	local function types_of_group(term)
		local inside = string.match(term, "^%((.*)%)$") or string.match(term, "^%[(.*)%]$")
		local types = {}
		for word in string.gmatch(inside and inside .. "|" or "", "([^|]*)|") do
			local name = string.sub(word, 1, #TYPE_HEAD) == TYPE_HEAD and string.sub(word, #TYPE_HEAD + 1)
			if not name or not string.find(name, "^[%w_%-]+$") then
				return nil
			end
			types[#types + 1] = name
		end
		return inside and types or nil
	end

	-- Returns "mode", "policy" or "type" for a feature of hami_hpc's, nil for the site's own.
	local function kind_of(term)
		if MODES[term] then
			return "mode"
		elseif POLICIES[term] then
			return "policy"
		elseif string.sub(term, 1, #TYPE_HEAD) == TYPE_HEAD or types_of_group(term) then
			return "type"
		end
		return nil
	end

	-- Returns the terms of an expression that are joined by & outside of parentheses and brackets, and whether there is
	-- an | outside of them, so that not all terms are required.
	local function split(expression)
		local terms, depth, start, has_or = {}, 0, 1, false
		for i = 1, #expression do
			local c = string.sub(expression, i, i)
			if c == "(" or c == "[" then
				depth = depth + 1
			elseif c == ")" or c == "]" then
				depth = depth - 1
			elseif depth == 0 and c == "|" then
				has_or = true
			elseif depth == 0 and (c == "&" or c == ",") then
				terms[#terms + 1] = string.sub(expression, start, i - 1)
				start = i + 1
			end
		end
		terms[#terms + 1] = string.sub(expression, start)
		return terms, has_or
	end

	-- Returns hami_hpc's features that `expression` (nil or a --constraint) requires, in order: without those in
	-- alternatives, but for a choice of GPU types, which is one term.
	function M.ours(expression)
		local required = {}
		local terms, has_or = split(expression or "")
		for _, term in ipairs(has_or and {} or terms) do
			if kind_of(term) then
				required[#required + 1] = term
			end
		end
		return required
	end

	-- Returns whether two expressions require different features of hami_hpc's.
	function M.differ(one, other)
		local first, second = M.ours(one), M.ours(other)
		table.sort(first)
		table.sort(second)
		return table.concat(first, "&") ~= table.concat(second, "&")
	end

	-- Returns the GPU type that `expression` requires, or nil.
	function M.type_of(expression)
		for _, term in ipairs(M.ours(expression)) do
			if kind_of(term) == "type" and not types_of_group(term) then
				return string.sub(term, #TYPE_HEAD + 1)
			end
		end
		return nil
	end

	-- Returns the mode that `expression` requires, or nil.
	function M.mode_of(expression)
		for _, term in ipairs(M.ours(expression)) do
			if MODES[term] then
				return MODES[term]
			end
		end
		return nil
	end

	-- Returns the GPU types that `expression` leaves to choose from, as the value of the key type, or nil.
	local function types_of(expression)
		for _, term in ipairs(M.ours(expression)) do
			local types = types_of_group(term)
			if types then
				return table.concat(types, "|")
			end
		end
		return nil
	end

	-- Gives a request the GPU type or types and the mode that `expression` requires, where it says none itself.
	function M.complete(request, expression)
		if not request.gpu_type and not request.type then
			request.gpu_type = M.type_of(expression)
			request.type = not request.gpu_type and types_of(expression) or nil
		end
		if not request.mode and not request.mig and not request.isolation then
			request.mode = M.mode_of(expression)
		end
	end

	-- Refuses an expression that names the feature of another mode than `mode` anywhere, also in an alternative: the prolog
	-- reads all words of a job's constraint, and its units are those of `mode`.
	function M.check_modes(expression, mode)
		for word in string.gmatch(expression or "", "[%w_%-]+") do
			if MODES[word] and MODES[word] ~= mode then
				errors.fail("E_MODE_FEATURES", {
					given = expression,
					allowed = "mode=" .. mode,
					example = "--gres=" .. contract.request.name .. ":mem=8G,mode=" .. MODES[word],
				})
			end
		end
	end

	-- Returns the policies that `expression` requires.
	function M.policies_of(expression)
		local policies = {}
		for _, term in ipairs(M.ours(expression)) do
			policies[#policies + 1] = POLICIES[term]
		end
		return policies
	end

	-- Returns `expression` without hami_hpc's features of the kinds (mode, policy, type) that are in `wanted`.
	local function without_kinds(expression, wanted)
		local terms, has_or = split(expression)
		if has_or then
			return expression
		end
		local drop, kept = {}, {}
		for _, term in ipairs(wanted) do
			drop[kind_of(term)] = true
		end
		for _, term in ipairs(terms) do
			local kind = kind_of(term)
			if not (kind and drop[kind]) then
				kept[#kept + 1] = term
			end
		end
		return table.concat(kept, "&")
	end

	-- Returns `expression` AND all of `wanted`. With `replace`, a mode, policy or type in `wanted` replaces the one in it.
	function M.combine(expression, wanted, replace)
		if #wanted == 0 then
			return expression
		end
		local base = expression or ""
		if replace then
			base = without_kinds(base, wanted)
		end
		local present, missing = {}, {}
		for _, term in ipairs(M.ours(base)) do
			present[term] = true
			present["(" .. string.sub(term, 2, -2) .. ")"] = types_of_group(term) and true or nil
		end
		for _, term in ipairs(wanted) do
			if not present[term] then
				missing[#missing + 1] = term
			end
		end
		local added = table.concat(missing, "&")
		if added == "" or base == "" then
			return base .. added
		end
		local _, has_or = split(base)
		if has_or and string.find(base, "[%(%[]") then
			errors.fail("E_FEATURES", { given = base, allowed = added })
		elseif has_or then
			base = "(" .. base .. ")"
		end
		return base .. "&" .. added
	end

	return M
end
