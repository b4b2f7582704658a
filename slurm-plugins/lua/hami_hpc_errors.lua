-- SPDX-License-Identifier: Apache-2.0
-- Makes the filters' refusals: one line each, with the contract's texts.
--
-- A refusal is raised with error() as a table { code = "E_...", message = "hami_hpc: ..." } and caught at the
-- filters' entry points (hami_hpc.lua). Any other error there is a bug and is reported as E_INTERNAL.

return function(contract)
	local M = {}
	local texts = contract.errors.codes
	local max = contract.errors.given_max

	-- Shortens the user's text for one line of a log: printable ASCII, at most given_max bytes.
	function M.shorten(value)
		local text = tostring(value)
		if #text > max then
			text = string.sub(text, 1, max - 3) .. "..."
		end
		return (string.gsub(text, "[^\32-\126]", "?"))
	end

	-- Returns a request as the user wrote it, for what a client's filter has made of it: "mem=8G,cores=50" for
	-- "mem~8G;cores~50".
	local function as_written(text)
		if type(text) ~= "string" or not string.find(text, "~", 1, true) then
			return text
		end
		return (string.gsub(text, "[~;]", { ["~"] = "=", [";"] = "," }))
	end

	-- Returns the refusal for `code`. `fields` fill the placeholders of its text; the default `example` is the contract's.
	-- `given` and `key` are the user's text and are shortened; the other fields are used unchanged.
	function M.new(code, fields)
		fields = fields or {}
		local values = {
			given = M.shorten(as_written(fields.given or "")),
			key = M.shorten(fields.key or ""),
			where = fields.where or "",
			allowed = fields.allowed or "",
			model = fields.model or "",
			classes = fields.classes or "",
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
