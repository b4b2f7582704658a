-- SPDX-License-Identifier: Apache-2.0
-- The grammar of a vgpu request. hami_hpc/core/request.py is the same in Python; tests/vectors check that both agree.
--
--   vgpu[:TYPE][:COUNT][:KEY=VALUE{,|;}...]  as users write it; COUNT may also be last
--   vgpu[:[TYPE;]KEY~VALUE;...]             as the client's filter rewrites it for Slurm's own parsers, which count
--                                           colons and read what follows the last = as a number
--
-- Slurm's client splits the list at commas and prefixes each piece (gres:vgpu:mem=8G,gres:cores=50 on 22.05, gres/ on
-- later versions), so a piece KEY=VALUE after vgpu is part of it. All text is handled as bytes.

return function(contract, errors, keys)
	local M = {}
	local fail = errors.fail
	local rules = contract.request
	local NAME = rules.name
	local RAW = {}
	for _, name in ipairs({ "mem", "cores", "slo", "fixed" }) do
		RAW[contract.gres[name]] = true
	end
	local WHOLE = { gpu = "E_WITH_GPU", mps = "E_WITH_GPU", [contract.gres.shard] = "E_WITH_SHARD" }
	local CLASSES = {} -- that each site has
	for _, name in ipairs(contract.classes.names) do
		CLASSES[name] = true
	end
	local ALLOWED_KEYS = table.concat(contract.key_order, ", ")
	local KEYS, fail_value = keys.KEYS, keys.fail_value

	M.slo_text = keys.slo_text
	M.types_in = keys.types_in

	-- Splits "gres:vgpu:1" into "gres:" and "vgpu:1"; the prefix may be "".
	function M.split_prefix(token)
		local prefix = string.sub(token, 1, 5)
		if prefix == "gres:" or prefix == "gres/" then
			return prefix, string.sub(token, 6)
		end
		return "", token
	end

	-- Returns the name of a gres token ("gpu" of "gpu:a100:2").
	function M.name_of(body)
		return string.match(body, "^[A-Za-z0-9_.%-]*")
	end

	local function is_count(text)
		return string.find(text, "^[+%-]?[0-9]+[KkMmGgTtPp]?$") ~= nil
	end

	-- Refuses a value of `type` that vgpu:TYPE could not say either: a key, a count or a class is no GPU type.
	local function check_type(state, value, piece)
		if KEYS[value] or is_count(value) then
			fail_value("E_TYPE_LIST", "type", value)
		elseif state.classes[value] or CLASSES[value] then
			fail("E_RAW_UNITS", { given = piece })
		end
	end

	-- Reads one KEY=VALUE into `state`.
	local function assign(state, piece)
		local key, value = string.match(piece, "^([^=~]*)[=~](.*)$")
		if not key then
			if KEYS[piece] then
				fail_value("E_VALUE_EMPTY", piece, "")
			end
			fail("E_FORM", { given = piece })
		elseif not KEYS[key] then
			fail("E_KEY_UNKNOWN", { key = key, given = piece, allowed = ALLOWED_KEYS })
		elseif state.seen[key] then
			fail("E_KEY_DOUBLE", { key = key, given = piece })
		elseif value == "" then
			fail_value("E_VALUE_EMPTY", key, "")
		elseif key == "type" and state.request.gpu_type then
			fail("E_KEY_DOUBLE", { key = key, given = state.request.gpu_type .. " and " .. piece })
		end
		state.seen[key] = true
		KEYS[key].parse(state.request, value)
		if key == "type" then
			check_type(state, value, piece)
		end
	end

	-- Reads what stands without a key: the type, or the count.
	local function set_type(state, text, body)
		if is_count(text) then
			assign(state, "count=" .. text)
			return
		elseif state.has_parameters or state.request.gpu_type or state.seen.count then
			fail("E_FORM", { given = body })
		elseif KEYS[text] then
			fail_value("E_VALUE_EMPTY", text, "")
		elseif not string.find(text, "^[A-Za-z0-9_%-]+$") then
			fail("E_TYPE_FORM", { given = text, example = "--gres=vgpu:h200:mem=8G" })
		elseif state.classes[text] or CLASSES[text] then
			fail("E_RAW_UNITS", { given = body })
		end
		state.request.gpu_type = text
	end

	-- Reads pieces between semicolons; the first may be the type or the count.
	local function feed_pieces(state, segment, body)
		for piece in string.gmatch(segment .. ";", "([^;]*);") do
			if piece ~= "" and not state.has_parameters and not string.find(piece, "[=~]") then
				set_type(state, piece, body)
			else
				assign(state, piece)
			end
			state.has_parameters = true
		end
	end

	-- Reads the segments between colons of what follows "vgpu:" in `body`, or of a later piece of the same request.
	local function feed(state, text, body)
		for segment in string.gmatch(text .. ":", "([^:]*):") do
			if segment == "" then
				fail("E_EMPTY", { given = body })
			elseif string.find(segment, "[=~;]") then
				feed_pieces(state, segment, body)
			else
				set_type(state, segment, body)
			end
		end
	end

	-- Returns whether `text` asks for `wanted` in the middle of a token. Slurm searches for "gres:" (22.05) or "gres"
	-- (later) anywhere in a list, so that "x gres:vgpu_mem:9" asks for vgpu_mem.
	local function is_hidden(text, wanted)
		local from = 1
		while true do
			local first, last = string.find(text, "gres[:/]?" .. wanted, from)
			if not first or not string.find(text, "^[A-Za-z0-9_.%-]", last + 1) then
				return first ~= nil
			end
			from = first + 1
		end
	end

	-- Returns whether this gres list asks for one of our names. Must be cheap, because it runs for every job of the
	-- cluster. A list that is too long to parse counts as ours if it contains our name anywhere.
	function M.mentions(text)
		if not string.find(text, NAME, 1, true) then
			return false
		elseif #text > rules.max_length then
			return true
		end
		for token in string.gmatch(text, "[^,]+") do
			local name = M.name_of(token)
			if name == NAME or RAW[name] then
				return true
			end
		end
		for name in pairs(RAW) do
			if is_hidden(text, name) then
				return true
			end
		end
		return is_hidden(text, NAME)
	end

	-- Refuses a value that is longer than any vgpu request needs; `key` is the option. This comes before code that reads
	-- the value several times, because slurmctld handles no other request meanwhile.
	function M.check_length(key, text)
		if #text > rules.max_length then
			fail("E_TOO_LONG", { key = key, given = #text, allowed = rules.max_length })
		end
	end

	-- Returns the list's token for the gres `wanted`, without prefix, or nil. Returns the whole list if it is too long to
	-- parse and contains the name.
	function M.find_token(text, wanted)
		if not string.find(text, wanted, 1, true) then
			return nil
		elseif #text > rules.max_length then
			return text
		end
		for token in string.gmatch(text, "[^,]+") do
			local _, body = M.split_prefix(token)
			if M.name_of(body) == wanted then
				return body
			end
		end
		return is_hidden(text, wanted) and text or nil
	end

	local function open_request(state, body, text)
		if state.request then
			fail("E_DOUBLE_VGPU", { given = text })
		end
		state.request = {}
		local rest = string.sub(body, #NAME + 1)
		if rest ~= "" then
			if string.sub(rest, 1, 1) ~= ":" then
				fail("E_FORM", { given = body })
			end
			feed(state, string.sub(rest, 2), body)
		end
	end

	-- Keeps a token of another gres; refuses one that cannot be combined with a vgpu.
	local function keep_other(state, token, body, name)
		local key = string.match(body, "^([a-z]+)=") or body
		if KEYS[key] or string.find(body, "gres", 1, true) then
			fail("E_FORM", { given = body }) -- a key without its vgpu, or what Slurm might read as another gres
		end
		if WHOLE[name] and not state.conflict then
			state.conflict = { WHOLE[name], body }
		end
		state.others[#state.others + 1] = token
	end

	-- Parses a whole gres list. Returns nil if it has nothing of hami_hpc's, else
	--   { request = { preset, gpu_type | type, count, mem_mib | mem_percent, cores, mode, policy, slo_us }, others = { tokens }, prefix = "" | "gres:" | "gres/" }
	-- `classes` is a table by the names of the site's classes: no user may write one, as it is the type of the units.
	-- Raises a refusal (errors.fail).
	function M.parse(text, classes)
		if not M.mentions(text) then
			return nil
		end
		M.check_length("--gres", text)
		if string.find(text, "[^\32-\126]") then
			fail("E_CHARS", { given = text })
		end
		local state = { seen = {}, others = {}, prefix = "", classes = classes or {} }
		local is_open = false
		for token in string.gmatch(text, "[^,]+") do
			local prefix, body = M.split_prefix(token)
			local name = M.name_of(body)
			if name == NAME then
				open_request(state, body, text)
				state.prefix = prefix
				is_open = true
			elseif RAW[name] then
				fail("E_RAW_UNITS", { given = body })
			elseif is_open and (string.find(body, "^[^:=]*=") or KEYS[body]) then
				feed(state, KEYS[body] and body .. "=" or body, body)
			elseif body ~= "" then
				keep_other(state, token, body, name)
				is_open = false
			end
		end
		if state.conflict then
			fail(state.conflict[1], { given = state.conflict[2] })
		elseif state.request.preset and state.request.count then
			fail("E_PRESET_COUNT", {
				given = string.format("%d", state.request.count),
				key = state.request.preset,
				example = "--gres=vgpu:2:mem=8G,cores=50",
			})
		end
		return { request = state.request, others = state.others, prefix = state.prefix }
	end

	-- Returns the canonical text of a request, as one token; parsing it gives the same request.
	function M.canonical(request)
		local parts = {}
		for _, key in ipairs(contract.key_order) do
			local text = KEYS[key].text(request)
			if text then
				parts[#parts + 1] = key .. "=" .. text
			end
		end
		local head = NAME
		if request.gpu_type then
			head = head .. ":" .. request.gpu_type
		end
		if #parts > 0 then
			head = head .. ":" .. table.concat(parts, ";")
		end
		return head
	end

	-- Returns the form that Slurm's client accepts, as the name of a type (22.05 to 26.05).
	function M.glued(request)
		local text = string.gsub(string.sub(M.canonical(request), #NAME + 2), ":", ";")
		return text == "" and NAME or NAME .. ":" .. string.gsub(text, "=", "~")
	end

	-- Returns the tokens without the prefixes that Slurm's client or scontrol put before each.
	function M.without_prefixes(tokens)
		local bodies = {}
		for i, token in ipairs(tokens) do
			local _, body = M.split_prefix(token)
			bodies[i] = body
		end
		return bodies
	end

	-- Returns the list for --gres of these tokens and then the others, without prefixes.
	function M.joined(first, others)
		local tokens = M.without_prefixes(others)
		for i, token in ipairs(first) do
			table.insert(tokens, i, token)
		end
		return table.concat(tokens, ",")
	end

	return M
end
