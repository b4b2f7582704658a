-- SPDX-License-Identifier: Apache-2.0
-- The filters as Slurm calls them, in plain Lua with a stand-in for Slurm's table. Run by test_lua_filters.py:
--   lua filters.lua FILE_OF_TESTS DIRECTORY_OF_MODULES DIRECTORY_FOR_FILES
-- prints "ok NAME" or "failed NAME: why" for each test. SLURM_CONF points into the directory for files. What is global
-- here is what the tests use.

local file_of_tests
file_of_tests, modules, scratch = arg[1], arg[2], arg[3]
messages, logged = {}, {}

slurm = {
	SUCCESS = 0,
	ERROR = -1,
	log_user = function(...)
		messages[#messages + 1] = string.format(...)
	end,
	log_error = function(...)
		logged[#logged + 1] = string.format(...)
	end,
	log_debug = function(...)
		string.format(...)
	end,
}

SITE = [[return { version = 1, shard_mib = 256, memory_scaling = 1.0, default_mem = "25%", default_cores = 25,
	bare_shard = "BARE", modes = { "share", "mps" }, classes = { std = {}, lc = { "lc" }, be = { "be" } },
	latency = { "lc" }, policies = { std = { "cap" }, lc = { "burst" }, be = { "burst", "cap", "none" } },
	gpu_models = { h200 = { total_mib = 143156 }, a100 = { total_mib = 81559 } },
	partitions = { gpu = { gpu_models = { "h200" } }, mixed = { gpu_models = { "h200", "a100" } },
		small = { gpu_models = { "a100" } } } }]]

function write_site(text)
	local file = assert(io.open(scratch .. "/hami_hpc_site.lua", "w"))
	file:write(text)
	file:close()
end

function write_slurm_conf(text)
	local file = assert(io.open(scratch .. "/slurm.conf", "w"))
	file:write(text)
	file:close()
end

function restore_site(bare_shard)
	write_site((string.gsub(SITE, "BARE", bare_shard or "refuse")))
	write_slurm_conf("AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageEnforce=associations,qos\n")
end

hami = dofile(modules .. "/hami_hpc.lua")
PARTS = { gpu = { flag_default = 1 }, mixed = { flag_default = 0 }, cpu = { flag_default = 0 } }
INVALID_GRES, NOT_PENDING = 2072, 2073
tests, names = {}, {}

function test(name, body)
	names[#names + 1] = name
	tests[name] = body
end

function equal(got, wanted, what)
	if got ~= wanted then
		error((what or "value") .. " is " .. tostring(got) .. " instead of " .. tostring(wanted), 2)
	end
end

-- A record that, like Slurm's, lists what is written and fails on what it does not know how to write.
function record(fields)
	local written = {}
	return setmetatable({}, {
		__index = fields,
		__newindex = function(_, key, value)
			assert(type(value) == "string", "Slurm takes only strings here")
			written[key] = value
			fields[key] = value
		end,
	}), written
end

function batch(fields)
	fields.script = fields.script or "#!/bin/sh"
	return record(fields)
end

function submit(fields, parts)
	local job, written = batch(fields)
	return hami.job_submit(job, parts or PARTS, 1000), written, job
end

-- Takes the only message, and returns it.
function refused(rc, part, wanted_rc)
	equal(rc, wanted_rc or INVALID_GRES, "return code")
	equal(#messages, 1, "number of messages")
	if not string.find(messages[1], part, 1, true) then
		error("message is: " .. messages[1], 2)
	end
	local message = messages[1]
	messages = {}
	return message
end

-- An update of a pending job of the partition gpu, if `held` says nothing else.
function modify(fields, held)
	held.job_state = held.job_state or 0
	held.partition = held.partition or "gpu"
	local job, written = record(fields)
	return hami.job_modify(job, held, PARTS, 1000), written
end

-- `offset`: the component of a heterogeneous job, 0 if not given.
function pre_submit(fields, offset)
	fields.type = fields.type or "sbatch"
	local options, written = record(fields)
	return hami.cli_pre_submit(options, offset or 0), written
end

function client_refused(rc, part)
	equal(rc, -1, "return code")
	equal(#logged, 1, "number of messages")
	if not string.find(logged[1], part, 1, true) then
		error("message is: " .. logged[1], 2)
	end
	logged = {}
end

local real_getenv, real_popen = os.getenv, io.popen

-- Runs `body` in a step of job 7: with these variables, and what scontrol prints; nil: it must not be asked. `shown` may
-- also be a table of what each command prints.
function in_job(environment, shown, body)
	os.getenv = function(name)
		return environment[name] or (name == "SLURM_CONF" and real_getenv(name) or nil)
	end
	io.popen = function(command)
		local of_command = type(shown) == "table" and shown or { ["scontrol -o show job 7 2>/dev/null"] = shown }
		assert(of_command[command], "this was asked: " .. command)
		return {
			read = function()
				return of_command[command]
			end,
			close = function() end,
		}
	end
	local good, problem = pcall(body)
	os.getenv, io.popen = real_getenv, real_popen
	if not good then
		error(problem, 0)
	end
end

function untouched(written)
	local key = next(written)
	if key then
		error(key .. " was set to " .. written[key], 2)
	end
	equal(#messages, 0, "number of messages")
	equal(#logged, 0, "number of log lines")
end

UNITS = "gres:shard:279,gres:vgpu:std:1,gres:vgpu_mem:8192,gres:vgpu_cores:50"

dofile(file_of_tests)

for _, name in ipairs(names) do
	messages, logged = {}, {}
	restore_site()
	local good, problem = pcall(tests[name])
	print(good and "ok " .. name or "failed " .. name .. ": " .. string.gsub(tostring(problem), "%s", " "))
end
