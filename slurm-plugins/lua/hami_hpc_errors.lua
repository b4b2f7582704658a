-- SPDX-License-Identifier: Apache-2.0
-- Refusals of the filters: one line each, worded by the contract.
--
-- A refusal is raised with error() as a table { code = "E_...", message = "hami_hpc: ..." } and caught at the
-- filters' entry (hami_hpc.lua). Anything else that is caught there is a bug, and is reported as E_INTERNAL.

return function(contract)
	local M = {}
	local texts = contract.errors.codes
	local max = contract.errors.given_max

	-- What the user wrote, fit for one line of a log: printable ASCII, at most given_max bytes.
	function M.shorten(value)
		local text = tostring(value)
		if #text > max then
			text = string.sub(text, 1, max - 3) .. "..."
		end
		return (string.gsub(text, "[^\32-\126]", "?"))
	end

	-- The refusal for `code`; `fields` fill the placeholders of its text (example: the contract's, if not given).
	-- `allowed`, `example`, `model` and `where` are ours and stay as they are; `given` and `key` are the user's.
	function M.new(code, fields)
		fields = fields or {}
		local values = {
			given = M.shorten(fields.given or ""),
			key = M.shorten(fields.key or ""),
			where = fields.where or "",
			allowed = fields.allowed or "",
			model = fields.model or "",
			example = fields.example or contract.request.example,
		}
		local line = string.gsub(texts[code], "{([a-z]+)}", values)
		return { code = code, message = contract.errors.prefix .. line }
	end

	function M.fail(code, fields)
		error(M.new(code, fields), 0)
	end

	return M
end
