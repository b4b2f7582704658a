-- SPDX-License-Identifier: Apache-2.0
-- Node features: adding ours to a job's --constraint without changing what the rest of it means.
--
-- Slurm (22.05, build_feature_list) knows one level of parentheses, takes ',' for '&', and reads a mixture of '&' and
-- '|' from left to right; so "a|b" becomes "(a|b)&ours", and what would need a second level is refused.

return function(contract, errors)
	local M = {}
	local MODES = {}
	for mode in pairs(contract.request.modes) do
		MODES[(string.gsub(contract.features.mode, "{mode}", mode))] = true
	end
	local TYPE_HEAD = string.match(contract.features.type, "^[^{]*")

	-- "mode" or "type" for a feature of ours, nil for the site's own.
	local function kind_of(term)
		if MODES[term] then
			return "mode"
		elseif string.sub(term, 1, #TYPE_HEAD) == TYPE_HEAD then
			return "type"
		end
		return nil
	end

	-- The terms of an expression that are joined by & outside parentheses and brackets, and whether there is an |
	-- there, in which case the terms are not all required.
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

	-- Our features that `expression` (nil or a --constraint) requires, in order; a feature in an alternative is none.
	function M.ours(expression)
		local out = {}
		local terms, has_or = split(expression or "")
		for _, term in ipairs(has_or and {} or terms) do
			if kind_of(term) then
				out[#out + 1] = term
			end
		end
		return out
	end

	-- The GPU type that `expression` requires, or nil.
	function M.type_of(expression)
		for _, term in ipairs(M.ours(expression)) do
			if kind_of(term) == "type" then
				return string.sub(term, #TYPE_HEAD + 1)
			end
		end
		return nil
	end

	-- `expression` with the terms of ours removed that have the kind of one in `wanted`.
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

	-- `expression` AND all of `wanted`. With `replace`, a mode or type of ours in it gives way to the one in `wanted`.
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
