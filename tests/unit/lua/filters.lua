-- SPDX-License-Identifier: Apache-2.0
-- The filters as Slurm calls them, in plain Lua with a stand-in for Slurm's table. Run by test_lua_filters.py:
--   lua filters.lua DIRECTORY_OF_MODULES DIRECTORY_FOR_FILES
-- prints "ok NAME" or "failed NAME: why" for each test. SLURM_CONF points into the directory for files.

local modules, scratch = arg[1], arg[2]
local messages, logged

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

local SITE = [[return { version = 1, shard_mib = 256, memory_scaling = 1.0, default_mem = "25%", default_cores = 25,
	bare_shard = "BARE", modes = { "share", "mps" }, classes = { std = {}, lc = { "lc" }, be = { "be" } },
	gpu_models = { h200 = { total_mib = 143156 }, a100 = { total_mib = 81559 } },
	partitions = { gpu = { gpu_models = { "h200" } }, mixed = { gpu_models = { "h200", "a100" } },
		small = { gpu_models = { "a100" } } } }]]

local function write_site(text)
	local file = assert(io.open(scratch .. "/hami_hpc_site.lua", "w"))
	file:write(text)
	file:close()
end

local function restore_site(bare_shard)
	write_site((string.gsub(SITE, "BARE", bare_shard or "allow")))
end

local hami = dofile(modules .. "/hami_hpc.lua")
local PARTS = { gpu = { flag_default = 1 }, mixed = { flag_default = 0 }, cpu = { flag_default = 0 } }
local INVALID_GRES, NOT_PENDING = 2072, 2073
local tests, names = {}, {}

local function test(name, body)
	names[#names + 1] = name
	tests[name] = body
end

local function equal(got, wanted, what)
	if got ~= wanted then
		error((what or "value") .. " is " .. tostring(got) .. " instead of " .. tostring(wanted), 2)
	end
end

-- A record that, like Slurm's, lists what is written and fails on what it does not know how to write.
local function record(fields)
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

local function batch(fields)
	fields.script = fields.script or "#!/bin/sh"
	return record(fields)
end

local function submit(fields, parts)
	local job, written = batch(fields)
	return hami.job_submit(job, parts or PARTS, 1000), written, job
end

local function refused(rc, part, wanted_rc)
	equal(rc, wanted_rc or INVALID_GRES, "return code")
	equal(#messages, 1, "number of messages")
	if not string.find(messages[1], part, 1, true) then
		error("message is: " .. messages[1], 2)
	end
end

local function untouched(written)
	local key = next(written)
	if key then
		error(key .. " was set to " .. written[key], 2)
	end
	equal(#messages, 0, "number of messages")
	equal(#logged, 0, "number of log lines")
end

local UNITS = "gres:shard:279,gres:vgpu:std:1,gres:vgpu_mem:8192,gres:vgpu_cores:50"

-- job_submit ---------------------------------------------------------------------------------------------------

test("a request becomes units in the prefix form it came in", function()
	for _, prefix in ipairs({ "gres:", "gres/", "" }) do
		local rc, written = submit({ tres_per_node = prefix .. "vgpu:mem~8G;cores~50" })
		equal(rc, 0)
		equal(written.tres_per_node, (string.gsub(UNITS, "gres:", prefix)))
		equal(written.features, nil)
	end
end)

test("a request that no client filter has glued is understood as well", function()
	local _, written = submit({ tres_per_node = "gres:nic:1,gres:vgpu:mem=8G,gres:cores=50" })
	equal(written.tres_per_node, UNITS .. ",gres:nic:1")
end)

test("jobs without vgpu are not touched", function()
	for _, text in ipairs({ "gres:gpu:1", "gres:shard:4", "gres:xvgpux:1", "license:a", "", string.rep("y", 10000), "\255\254" }) do
		local rc, written = submit({ tres_per_node = text, tres_per_task = text, qos = "lc", features = "a|b" })
		equal(rc, 0)
		untouched(written)
	end
	local rc, written = submit({})
	equal(rc, 0)
	untouched(written)
end)

test("the class follows the QoS, or the default QoS", function()
	local _, written = submit({ tres_per_node = "gres:vgpu", qos = "LC", default_qos = "be" })
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "lc")
	_, written = submit({ tres_per_node = "gres:vgpu", default_qos = "be" })
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "be")
	_, written = submit({ tres_per_node = "gres:vgpu", qos = "", default_qos = "be" })
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "be")
	_, written = submit({ tres_per_node = "gres:vgpu", qos = "normal" })
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "std")
end)

test("mode and type become node features beside the job's own", function()
	local function features(given)
		local rc, written = submit({ tres_per_node = "gres:vgpu:h200;mode~mps", features = given })
		return rc == 0 and written.features
	end
	equal(features(nil), "vgpu_mps&vgpu_type_h200")
	equal(features("a"), "a&vgpu_mps&vgpu_type_h200")
	equal(features("a&b"), "a&b&vgpu_mps&vgpu_type_h200")
	equal(features("a|b"), "(a|b)&vgpu_mps&vgpu_type_h200")
	equal(features("(a|b)&c"), "(a|b)&c&vgpu_mps&vgpu_type_h200")
	equal(features("[a|b]"), "[a|b]&vgpu_mps&vgpu_type_h200")
	equal(features("vgpu_type_h200&a"), "vgpu_type_h200&a&vgpu_mps")
	equal(features("vgpu_type_h200,vgpu_mps"), nil, "features that are all there")
end)

test("a constraint that needs two levels of parentheses is refused", function()
	refused(submit({ tres_per_node = "gres:vgpu:h200", features = "(a&b)|c" }), "--constraint=(a&b)|c cannot be combined")
end)

test("a type in the constraint names the GPU of a mixed partition", function()
	local _, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50", partition = "mixed", features = "vgpu_type_a100" })
	equal(string.match(written.tres_per_node, "shard:(%d+)"), "159")
	refused(submit({ tres_per_node = "gres:vgpu", partition = "mixed", features = "vgpu_type_a100|x" }), "of several sizes")
end)

test("the default partition is used where none is asked for", function()
	local rc = submit({ tres_per_node = "gres:vgpu" }, { cpu = { flag_default = 1 }, gpu = { flag_default = 0 } })
	refused(rc, "partition cpu has no GPU that hami_hpc manages; partitions that have: gpu, mixed, small")
	messages = {}
	refused(submit({ tres_per_node = "gres:vgpu" }, {}), "partition (default) has no GPU")
end)

test("all of several partitions must agree", function()
	refused(submit({ tres_per_node = "gres:vgpu", partition = "gpu,small" }), "partitions gpu, small has GPUs of several")
end)

test("memory above the largest GPU names it", function()
	refused(submit({ tres_per_node = "gres:vgpu:mem~200G" }), "the largest, h200, has 143156M")
end)

test("vgpu in other options is refused with the spelling that works", function()
	for field, option in pairs({
		tres_per_job = "--gpus",
		tres_per_socket = "--gpus-per-socket",
		tres_per_task = "--gpus-per-task or --tres-per-task",
		tres_per_node = "--gpus-per-node",
	}) do
		for _, value in ipairs({ "gres:gpu:vgpu:mem=8G", "gres/gpu:vgpu", "gres:gpu:1,gres:gpu:vgpu=3" }) do
			messages = {}
			refused(submit({ [field] = value }), option .. "=" .. value)
		end
	end
	messages = {}
	refused(submit({ tres_per_task = "gres/vgpu:mem=8G" }), "use --gres=vgpu:mem=8G,cores=50")
end)

test("whole GPUs and shards in other options do not go with vgpu", function()
	refused(submit({ tres_per_node = "gres:vgpu", tres_per_job = "gres:gpu:2" }), "'gpu:2' in one request")
	messages = {}
	refused(submit({ tres_per_node = "gres:vgpu", tres_per_task = "gres/shard:2" }), "leave 'shard:2' out")
end)

test("an exclusive job, which would wait forever for its vgpu, is refused", function()
	refused(submit({ tres_per_node = "gres:vgpu", shared = 0 }), "vgpu and --exclusive")
	messages = {}
	equal(submit({ tres_per_node = "gres:vgpu", shared = 65534 }), 0)
	equal(submit({ tres_per_node = "gres:gpu:1", shared = 0 }), 0)
end)

test("units are refused in a batch job and counted again from srun", function()
	local units = "gres:shard:1,gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,gres:nic:1"
	refused(submit({ tres_per_node = units }), "'vgpu_mem:8192' is set by hami_hpc itself")
	local job, written = record({ tres_per_node = units })
	equal(hami.job_submit(job, PARTS, 1000), 0)
	equal(written.tres_per_node, UNITS .. ",gres:nic:1")
end)

test("units from srun with a class, a count or a part missing are refused", function()
	for _, units in ipairs({
		"gres:shard:1,gres:vgpu:lc:1,gres:vgpu_mem:8192,gres:vgpu_cores:50",
		"gres:vgpu:1,gres:vgpu_mem:8192",
		"gres:vgpu:1,gres:vgpu_mem:0,gres:vgpu_cores:50",
		"gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:101",
		"gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_mem:1,gres:vgpu_cores:50",
		"gres:gpu:1,gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50",
		"gres:vgpu_mem:8192,gres:vgpu_cores:50",
		"gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,x gres:shard:1",
	}) do
		messages = {}
		local job = record({ tres_per_node = units })
		refused(hami.job_submit(job, PARTS, 1000), "cannot be asked for")
	end
end)

test("bare shards are refused only where the site says so", function()
	restore_site("refuse")
	refused(submit({ tres_per_node = "gres:shard:3" }), "'shard:3' is not allowed on this cluster")
	messages = {}
	refused(submit({ tres_per_task = "gres/shard:3" }), "'shard:3' is not allowed")
	messages = {}
	local rc, written = submit({ tres_per_node = "gres:gpu:1" })
	equal(rc, 0)
	untouched(written)
end)

test("what Slurm's loose search for gres would find is not let through", function()
	for _, text in ipairs({ "x gres:vgpu_mem:99999", "xgres:vgpu:std:1", "gresvgpu_cores:1", "gres:vgpu,x gres:shard:1" }) do
		messages = {}
		refused(submit({ tres_per_node = text }), "is not understood")
	end
	messages = {}
	refused(submit({ tres_per_task = "x gres:vgpu_mem:99999" }), "cannot carry a vgpu request")
	messages = {}
	refused(submit({ tres_per_node = "gres:vgpu", tres_per_task = "x gres:shard:1" }), "leave 'x gres:shard:1' out")
	restore_site("refuse")
	messages = {}
	refused(submit({ tres_per_node = "x gres:shard:3" }), "is not allowed on this cluster")
end)

test("10 kB of noise after vgpu is refused in one short line", function()
	refused(submit({ tres_per_node = "gres:vgpu:" .. string.rep("x", 10000) }), "10010 bytes long")
	messages = {}
	refused(submit({ tres_per_node = "gres:vgpu:" .. string.rep("\200%s", 100) }), "plain printable ASCII")
	assert(#messages[1] < 300)
end)

test("a broken site table keeps the last good one, and says so", function()
	submit({ tres_per_node = "gres:vgpu" })
	write_site("return { version = 1,")
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50" })
	equal(rc, 0)
	equal(written.tres_per_node, UNITS)
	equal(#logged, 1)
	assert(string.find(logged[1], "keeping the last good site table", 1, true), logged[1])
end)

test("without any good site table vgpu is refused and nothing else", function()
	local fresh = dofile(modules .. "/hami_hpc.lua")
	for _, text in ipairs({ "return 3", "return { version = 2 }", "return { version = 1 }", "error('x')", "%",
		"return { version = 1, gpu_models = { a = {} }, partitions = {} }",
		"return { version = 1, gpu_models = {}, partitions = { p = {} } }",
		"return { version = 1, gpu_models = {}, partitions = {}, default_mem = 'lots' }" }) do
		messages = {}
		write_site(text)
		refused(fresh.job_submit(batch({ tres_per_node = "gres:vgpu" }), PARTS, 0), "settings cannot be read")
		equal(fresh.job_submit(batch({ tres_per_node = "gres:gpu:1" }), PARTS, 0), 0)
	end
	os.remove(scratch .. "/hami_hpc_site.lua")
	messages = {}
	refused(fresh.job_submit(batch({ tres_per_node = "gres:vgpu" }), PARTS, 0), "hami_hpc_site.lua not found")
end)

test("a bug refuses vgpu with a clear line and lets other jobs through", function()
	local broken = function(fields)
		return setmetatable({}, {
			__index = function(_, key)
				return fields[key]
			end,
			__newindex = function()
				error("cannot write")
			end,
		})
	end
	refused(hami.job_submit(broken({ tres_per_node = "gres:vgpu", script = "x" }), PARTS, 0), "could not be handled")
	equal(#logged, 1)
	messages = {}
	-- A field of an unexpected kind, in a job that is none of ours.
	equal(hami.job_submit(broken({ tres_per_node = {}, tres_per_job = {} }), PARTS, 0), INVALID_GRES, "unreadable job")
	messages = {}
	equal(hami.job_submit(broken({ tres_per_node = "gres:gpu:1", tres_per_job = 7 }), PARTS, 0), 0)
end)

-- job_modify ---------------------------------------------------------------------------------------------------

local function modify(fields, held)
	held.job_state = held.job_state or 0
	held.partition = held.partition or "gpu"
	local job, written = record(fields)
	return hami.job_modify(job, held, PARTS, 1000), written
end

test("an update of a pending job's request is translated", function()
	local rc, written = modify({ tres_per_node = "gres:vgpu:mem=8G,gres:cores=50" }, { tres_per_node = "gres:nic:1", qos = "be" })
	equal(rc, 0)
	equal(written.tres_per_node, (string.gsub(UNITS, "std", "be")))
end)

test("an update of a running job's request is refused as not pending", function()
	for _, state in ipairs({ 1, 2, 1 + 0x8000 }) do
		messages = {}
		refused(modify({ tres_per_node = "gres:vgpu" }, { job_state = state }), "not pending", NOT_PENDING)
	end
	-- Flags above the state's byte do not make a pending job a running one.
	messages = {}
	equal(modify({ tres_per_node = "gres:vgpu" }, { job_state = 0x20000 }), 0)
end)

test("units in an update are refused", function()
	refused(modify({ tres_per_node = UNITS }, { tres_per_node = UNITS }), "cannot be asked for")
end)

test("another QoS of the same class is let through, one of another class is refused", function()
	for _, state in ipairs({ 0, 1 }) do
		for _, qos in ipairs({ "lc", "" }) do
			messages = {}
			local held = { tres_per_node = UNITS, qos = "normal", job_state = state }
			refused(modify({ qos = qos, default_qos = "be" }, held), "is of another class", NOT_PENDING)
		end
		messages = {}
		local rc, written = modify({ qos = "other" }, { tres_per_node = UNITS, qos = "normal", job_state = state })
		equal(rc, 0)
		untouched(written)
	end
	messages = {}
	local held = { tres_per_node = UNITS, qos = "normal" }
	refused(modify({ qos = "be", tres_per_node = "gres:vgpu" }, held), "is of another class", NOT_PENDING)
end)

test("an update cannot leave a vgpu job part of its units", function()
	for _, fields in ipairs({
		{ tres_per_node = "gres:shard:1" },
		{ tres_per_node = "gres:gpu:1" },
		{ tres_per_node = "gres:nic:1" },
		{ tres_per_job = "gres:shard:1" },
		{ tres_per_task = "gres:gpu:1" },
		{ tres_per_node = "gres:" }, -- scontrol update gres=
		{ tres_per_node = "" },
	}) do
		messages = {}
		refused(modify(fields, { tres_per_node = UNITS }), "hami_hpc: ")
	end
end)

test("another partition counts a pending job's shards again", function()
	local rc, written = modify({ partition = "small" }, { tres_per_node = UNITS })
	equal(rc, 0)
	equal(string.match(written.tres_per_node, "shard:(%d+)"), "159")
	refused(modify({ partition = "cpu" }, { tres_per_node = UNITS }), "partition cpu has no GPU")
end)

test("another constraint keeps the features that the request needs", function()
	local held = { tres_per_node = UNITS, features = "a&vgpu_mps&vgpu_type_h200" }
	local _, written = modify({ features = "b" }, held)
	equal(written.features, "b&vgpu_mps&vgpu_type_h200")
	_, written = modify({ features = "" }, held)
	equal(written.features, "vgpu_mps&vgpu_type_h200")
end)

test("a new type or mode replaces the old one in the constraint", function()
	local held = { tres_per_node = UNITS, partition = "mixed", features = "a&vgpu_mps&vgpu_type_h200" }
	local _, written = modify({ tres_per_node = "gres:vgpu:a100:mode=share" }, held)
	equal(written.features, "a&vgpu_share&vgpu_type_a100")
end)

test("updates that do not concern the request are not touched", function()
	for _, fields in ipairs({ { time_limit = 5 }, { comment = "x" } }) do
		local rc, written = modify(fields, { tres_per_node = UNITS })
		equal(rc, 0)
		untouched(written)
	end
	local rc, written = modify({ qos = "lc", partition = "cpu", features = "x" }, { tres_per_node = "gres:gpu:1" })
	equal(rc, 0)
	untouched(written)
	rc, written = modify({ tres_per_node = "gres:gpu:1" }, { tres_per_node = "gres:shard:1" })
	equal(rc, 0)
	untouched(written)
end)

-- cli_filter ---------------------------------------------------------------------------------------------------

local function pre_submit(fields)
	fields.type = fields.type or "sbatch"
	local options, written = record(fields)
	return hami.cli_pre_submit(options, 0), written
end

local function client_refused(rc, part)
	equal(rc, -1, "return code")
	equal(#logged, 1, "number of messages")
	if not string.find(logged[1], part, 1, true) then
		error("message is: " .. logged[1], 2)
	end
	logged = {}
end

test("the client's filter glues a job's request into one token", function()
	for _, kind in ipairs({ "sbatch", "salloc", "scrontab" }) do
		local rc, written = pre_submit({ type = kind, gres = "gres:nic:1,gres:vgpu:h200:mem=8G,gres:cores=50,gres:mode=mps" })
		equal(rc, 0)
		equal(written.gres, "vgpu:h200;mem~8G;cores~50;mode~mps,nic:1")
	end
end)

test("the client's filter leaves commands without vgpu alone", function()
	for _, gres in ipairs({ "gres:gpu:1", "none", "NONE", "gres:" .. string.rep("y", 10000), "\255" }) do
		for _, kind in ipairs({ "sbatch", "srun", "salloc" }) do
			local rc, written = pre_submit({ type = kind, gres = gres, jobid = "1", gpus = "2" })
			equal(rc, 0)
			untouched(written)
		end
	end
	local rc, written = pre_submit({ type = "srun" })
	equal(rc, 0)
	untouched(written)
end)

test("the client's filter refuses early what it can see", function()
	client_refused(pre_submit({ gres = "vgpu:mem=8" }), "mem=8 has no unit")
	client_refused(pre_submit({ gres = "vgpu:mem=200G", partition = "gpu" }), "the largest, h200, has 143156M")
	client_refused(pre_submit({ gres = "vgpu", partition = "gpu,cpu" }), "partition cpu has no GPU")
	client_refused(pre_submit({ gres = "vgpu", gpus = "2" }), "'gpu:2' in one request")
	client_refused(pre_submit({ ["gpus-per-node"] = "vgpu:mem=8G" }), "--gpus-per-node=vgpu:mem=8G cannot carry")
	client_refused(pre_submit({ ["tres-per-task"] = "gres/vgpu:mem=8G" }), "--tres-per-task=gres/vgpu:mem=8G cannot carry")
end)

test("without a site table the client's filter only glues", function()
	os.remove(scratch .. "/hami_hpc_site.lua")
	local rc, written = pre_submit({ gres = "vgpu:mem=200G", partition = "cpu" })
	equal(rc, 0)
	equal(written.gres, "vgpu:mem~200G")
end)

test("a type in the constraint counts for the early check, and stays out of the token", function()
	local rc, written = pre_submit({ gres = "vgpu:mem=8G", partition = "mixed", constraint = "vgpu_type_a100" })
	equal(rc, 0)
	equal(written.gres, "vgpu:mem~8G")
end)

test("srun outside an allocation writes units for job and step, and features", function()
	local rc, written = pre_submit({ type = "srun", gres = "gres:vgpu:h200:mem=8G,gres:cores=50,gres:nic:1", constraint = "a|b" })
	equal(rc, 0)
	equal(written.gres, "shard:1,vgpu:1,vgpu_mem:8192,vgpu_cores:50,nic:1", "gres where the partitions differ")
	equal(written.constraint, "(a|b)&vgpu_type_h200")
	rc, written = pre_submit({ type = "srun", gres = "vgpu:mem=50%", partition = "gpu", jobid = "unset" })
	equal(rc, 0)
	equal(written.gres, "shard:279,vgpu:1,vgpu_mem:71424,vgpu_cores:25")
	equal(written.constraint, nil)
	client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=50%" }), "GPUs of several sizes")
	client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=1T,cores=5", partition = "gpu" }), "the largest, h200")
	write_site((string.gsub(string.gsub(SITE, "mixed = %b{},", ""), "small = %b{}", "")))
	rc, written = pre_submit({ type = "srun", gres = "vgpu:mem=8G,cores=50" })
	equal(rc, 0)
	equal(written.gres, "shard:279,vgpu:1,vgpu_mem:8192,vgpu_cores:50", "gres where all partitions agree")
	os.remove(scratch .. "/hami_hpc_site.lua")
	client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=50%" }), "hami_hpc_site.lua not found")
	rc, written = pre_submit({ type = "srun", gres = "vgpu:mem=1G,cores=5" })
	equal(rc, 0)
	equal(written.gres, "shard:1,vgpu:1,vgpu_mem:1024,vgpu_cores:5")
end)

local real_getenv, real_popen = os.getenv, io.popen

-- Runs `body` in a step of a job: with the variables of the gres plugins, or with what scontrol prints.
local function in_job(environment, shown, body)
	os.getenv = function(name)
		return environment[name] or (name == "SLURM_CONF" and real_getenv(name) or nil)
	end
	io.popen = function(command)
		equal(command, "scontrol -o show job 7 2>/dev/null")
		return {
			read = function()
				return shown
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

local IN_STEP = { SLURM_JOB_ID = "7", HAMI_HPC_MEM_MIB = "8192", HAMI_HPC_CORES = "50", SLURM_JOB_PARTITION = "gpu" }

test("srun inside an allocation becomes a step that leaves the job's one vgpu alone", function()
	in_job(IN_STEP, nil, function()
		local rc, written = pre_submit({ type = "srun", gres = "gres:vgpu:mem=4G,gres:cores=25,gres:nic:1", jobid = "7" })
		equal(rc, 0)
		equal(written.gres, "shard:139,vgpu_mem:4096,vgpu_cores:25,nic:1")
		rc, written = pre_submit({ type = "srun", gres = "vgpu:mem=4G", jobid = "7" })
		equal(written.gres, "shard:279,vgpu_mem:4096,vgpu_cores:50")
		rc, written = pre_submit({ type = "srun", gres = "vgpu" })
		equal(written.gres, "shard:279,vgpu_mem:8192,vgpu_cores:50")
		rc, written = pre_submit({ type = "srun", gres = "vgpu:mem=1%,cores=1,mode=mps" })
		equal(written.gres, "shard:5,vgpu_mem:1280,vgpu_cores:1")
		equal(written.constraint, nil)
	end)
end)

test("a step larger than its job is refused early", function()
	in_job(IN_STEP, nil, function()
		client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=9G" }), "mem=9G is more than the job has (8192M)")
		client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=50%" }), "mem=50% is more than the job has")
		client_refused(pre_submit({ type = "srun", gres = "vgpu:cores=51" }), "cores=51 is more than the job has (50)")
	end)
end)

test("a step may name units itself", function()
	in_job(IN_STEP, nil, function()
		for _, gres in ipairs({ "shard:1,vgpu:1,vgpu_mem:5,vgpu_cores:5", "vgpu_mem:5", "vgpu:std:1" }) do
			local rc, written = pre_submit({ type = "srun", gres = gres })
			equal(rc, 0)
			untouched(written)
		end
	end)
end)

test("sbatch inside an allocation makes a new job", function()
	in_job(IN_STEP, nil, function()
		local _, written = pre_submit({ type = "sbatch", gres = "vgpu:mem=50G" })
		equal(written.gres, "vgpu:mem~50G")
	end)
end)

test("the shell of an salloc learns the job's units from slurmctld", function()
	local shown = "JobId=7 Partition=gpu NumNodes=1 TresPerNode=" .. UNITS .. " Comment=TresPerNode=gres:vgpu"
	in_job({ SLURM_JOB_ID = "7" }, shown, function()
		local rc, written = pre_submit({ type = "srun", gres = "vgpu:mem=4G" })
		equal(rc, 0)
		equal(written.gres, "shard:279,vgpu_mem:4096,vgpu_cores:50")
	end)
	in_job(IN_STEP, "", function()
		-- Another job's step: this step's environment says nothing about it.
		os.getenv = function(name)
			return name == "SLURM_JOB_ID" and "8" or IN_STEP[name]
		end
		client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=4G", jobid = "7" }), "needs a job that has one")
	end)
	for _, line in ipairs({ "", "JobId=7 Partition=gpu TresPerNode=gres:gpu:1 " }) do
		in_job({ SLURM_JOB_ID = "7" }, line, function()
			client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=4G" }), "vgpu in a step needs a job that has one")
		end)
	end
end)

test("a step's shards are the fewest where the GPU is not known", function()
	local here = { SLURM_JOB_ID = "7", HAMI_HPC_MEM_MIB = "8192", HAMI_HPC_CORES = "50", SLURM_JOB_PARTITION = "mixed" }
	in_job(here, nil, function()
		local _, written = pre_submit({ type = "srun", gres = "vgpu:mem=4G" })
		equal(written.gres, "shard:159,vgpu_mem:4096,vgpu_cores:50")
		_, written = pre_submit({ type = "srun", gres = "vgpu:h200:mem=4G" })
		equal(written.gres, "shard:279,vgpu_mem:4096,vgpu_cores:50")
		client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=1%" }), "GPUs of several sizes")
	end)
	os.remove(scratch .. "/hami_hpc_site.lua")
	in_job(here, nil, function()
		local _, written = pre_submit({ type = "srun", gres = "vgpu:mem=4G" })
		equal(written.gres, "shard:1,vgpu_mem:4096,vgpu_cores:50")
	end)
end)

-- In a site's own scripts --------------------------------------------------------------------------------------

test("two lines in a foreign script work beside what it does itself", function()
	local path = scratch .. "/foreign.lua"
	local file = assert(io.open(path, "w"))
	file:write(string.format([[
		local hami = dofile(%q)
		function slurm_job_submit(job_desc, part_list, submit_uid)
			if not job_desc.partition then job_desc.partition = "small" end
			if job_desc.account == "emergency" then job_desc.qos = "lc" end
			local rc = hami.job_submit(job_desc, part_list, submit_uid)
			if rc ~= slurm.SUCCESS then return rc end
			job_desc.comment = "seen by the site"
			return slurm.SUCCESS
		end
		function slurm_cli_pre_submit(options, offset)
			if not options.partition then options.partition = "small" end
			local rc = hami.cli_pre_submit(options, offset)
			if rc ~= slurm.SUCCESS then return rc end
			return slurm.SUCCESS
		end]], modules .. "/hami_hpc.lua"))
	file:close()
	dofile(path)
	local job, written = batch({ tres_per_node = "gres:vgpu:mem~8G;cores~50", account = "emergency" })
	equal(slurm_job_submit(job, PARTS, 1000), 0)
	equal(written.tres_per_node, "gres:shard:159,gres:vgpu:lc:1,gres:vgpu_mem:8192,gres:vgpu_cores:50")
	equal(written.comment, "seen by the site")
	job, written = batch({ tres_per_node = "gres:vgpu:mem~200G" })
	refused(slurm_job_submit(job, PARTS, 1000), "partition small has; the largest, a100")
	equal(written.comment, nil)
	local options
	options, written = record({ type = "sbatch", gres = "vgpu:mem=8G" })
	equal(slurm_cli_pre_submit(options, 0), 0)
	equal(written.gres, "vgpu:mem~8G")
	equal(written.partition, "small")
end)

test("the ready-made scripts load, find their modules and hold every function that Slurm asks for", function()
	dofile(modules .. "/job_submit.lua")
	dofile(modules .. "/cli_filter.lua")
	for _, name in ipairs({ "slurm_job_submit", "slurm_job_modify", "slurm_cli_setup_defaults", "slurm_cli_pre_submit",
		"slurm_cli_post_submit" }) do
		equal(type(_G[name]), "function", name)
	end
	local job, written = batch({ tres_per_node = "gres:vgpu:mem~8G;cores~50" })
	equal(slurm_job_submit(job, PARTS, 1000), 0)
	equal(written.tres_per_node, UNITS)
	equal(slurm_cli_setup_defaults({}, false), 0)
	equal(slurm_cli_post_submit(0, 1, 0), 0)
end)

test("a job without vgpu costs a few field reads", function()
	local reads = 0
	local job = setmetatable({}, {
		__index = function(_, key)
			reads = reads + 1
			return key == "tres_per_node" and "gres:gpu:4" or nil
		end,
	})
	local open = io.open
	io.open = function()
		error("a file was opened")
	end
	local rc = hami.job_submit(job, PARTS, 1000)
	io.open = open
	equal(rc, 0)
	assert(reads <= 8, reads .. " field reads")
end)

for _, name in ipairs(names) do
	messages, logged = {}, {}
	restore_site()
	local good, problem = pcall(tests[name])
	print(good and "ok " .. name or "failed " .. name .. ": " .. string.gsub(tostring(problem), "%s", " "))
end
