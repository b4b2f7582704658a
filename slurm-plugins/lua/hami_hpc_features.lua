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

	-- Returns "mode", "policy" or "type" for a feature of hami_hpc's, nil for the site's own.
	local function kind_of(term)
		if MODES[term] then
			return "mode"
		elseif POLICIES[term] then
			return "policy"
		elseif string.sub(term, 1, #TYPE_HEAD) == TYPE_HEAD then
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

	-- Returns hami_hpc's features that `expression` (nil or a --constraint) requires, in order, without those in
	-- alternatives.
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
			if kind_of(term) == "type" then
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

	-- Gives a request the GPU type and the mode that `expression` requires, where it says none itself.
	function M.complete(request, expression)
		request.gpu_type = request.gpu_type or M.type_of(expression)
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
