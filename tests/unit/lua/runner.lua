-- SPDX-License-Identifier: Apache-2.0
-- Answers questions about the Lua grammar and units, one line each, for the tests in Python (tests/unit/lua_process.py).
-- usage: lua runner.lua DIRECTORY_OF_MODULES      Fields are separated by tabs; fields of a question are in hex.
--   parse GRES CLASSES             -> none | ok CANONICAL GLUED PREFIX OTHERS | error CODE MESSAGE
--   token GRES NAME                -> none | ok TOKEN
--   site LUA_TABLE                 -> ok | error - REASON
--   shards GRES PARTITIONS TYPE    -> none | ok CANONICAL SHARDS PREFIX OTHERS | error CODE MESSAGE   (in the last site)
--   resolve GRES PARTITIONS QOS TURN -> ok SHARDS CLASS MIB CORES FEATURES [SLO_US] [PLACES] | error CODE MESSAGE      (in the last site)

slurm = { SUCCESS = 0, ERROR = -1 }
local hami = dofile(arg[1] .. "/hami_hpc.lua")
local grammar = hami.grammar
local site

local function from_hex(text)
	return (string.gsub(text, "..", function(digits)
		return string.char(tonumber(digits, 16))
	end))
end

local function list(text)
	local out = {}
	for item in string.gmatch(text, "[^,]+") do
		out[#out + 1] = item
	end
	return out
end

local commands = {}

function commands.parse(gres, names)
	local classes = {}
	for _, name in ipairs(list(names or "")) do
		classes[name] = {}
	end
	local parsed = grammar.parse(gres, classes)
	if not parsed then
		return "none"
	end
	local request = parsed.request
	local others = table.concat(parsed.others, ",")
	return table.concat({ "ok", grammar.canonical(request), grammar.glued(request), parsed.prefix, others }, "\t")
end

function commands.token(gres, name)
	local token = grammar.find_token(gres, name)
	return token and "ok\t" .. token or "none"
end

function commands.site(text)
	local reason
	site, reason = hami.settings.complete((loadstring or load)("return " .. text)())
	return site and "ok" or "error\t-\t" .. reason
end

function commands.resolve(gres, partitions, qos, turn)
	local request = grammar.parse(gres).request
	local units = hami.units.resolve(request, site, list(partitions), qos, tonumber(turn))
	hami.units.check_policy(site, units.service_class, request.policy)
	hami.units.check_slo(site, units.service_class, request.slo_us)
	local numbers = string.format("ok\t%d\t%s\t%d\t%d", units.shards, units.service_class, units.mem_mib, units.cores)
	local slo = units.slo_us and string.format("\t%d", units.slo_us) or ""
	local places = units.count > 1 and "\t" .. units.count .. "x" .. table.concat(units.places) or ""
	return numbers .. "\t" .. table.concat(units.features, ",") .. slo .. places
end

function commands.shards(gres, partitions, gpu_type)
	local shards = grammar.parse_shards(gres)
	if not shards then
		return "none"
	end
	local names = list(partitions)
	local request = hami.units.of_shards(shards.count, gpu_type ~= "" and gpu_type or nil, site, names)
	local again = string.format("%d", hami.units.resolve(request, site, names).shards)
	return table.concat({ "ok", grammar.canonical(request), again, shards.prefix, table.concat(shards.others, ",") }, "\t")
end

for line in io.lines() do
	local fields = {}
	for field in string.gmatch(line .. "\t", "([^\t]*)\t") do
		fields[#fields + 1] = #fields == 0 and field or from_hex(field)
	end
	local good, answer = pcall(commands[fields[1]], fields[2], fields[3], fields[4], fields[5])
	if not good then
		answer = type(answer) == "table" and "error\t" .. answer.code .. "\t" .. answer.message
			or "error\tBUG\t" .. string.gsub(tostring(answer), "%s", " ")
	end
	io.write(answer, "\n")
	io.flush()
end
