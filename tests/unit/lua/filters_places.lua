-- SPDX-License-Identifier: Apache-2.0
-- Several slices, and whole GPUs where the types of GPUs are places. The names used are filters.lua's.

local PAIR = "gres:shard:a:279,gres:shard:b:279,gres:vgpu:std:2,gres:vgpu_mem:16384,gres:vgpu_cores:100"
local ASKED = "gres:vgpu:2:mem~8G;cores~50"

local function with_places(slices_max)
	local text = string.gsub(SITE, "BARE", "refuse")
	text = string.gsub(text, "version = 1,", "version = 1, slices_max = " .. slices_max .. ",")
	write_site((string.gsub(text, 'small = { gpu_models', 'small = { gpus = 2, gpu_models')))
end

-- The filters as a slurmctld has them that just started.
local function start_again()
	hami = dofile(modules .. "/hami_hpc.lua")
end

test("several slices are shards of as many types, and sums of memory and cores", function()
	with_places(2)
	for _, prefix in ipairs({ "gres:", "gres/", "" }) do
		local rc, written = submit({ tres_per_node = prefix .. "vgpu:2:mem~8G;cores~50" })
		equal(rc, 0)
		equal(written.tres_per_node, (string.gsub(PAIR, "gres:", prefix)))
		equal(written.features, "vgpu_share")
	end
	for _, text in ipairs({ "gres:vgpu:2:mem=8G,gres:cores=50", "gres:vgpu:count~2;mem~8G;cores~50" }) do
		local _, written = submit({ tres_per_node = text .. ",gres:nic:1" })
		equal(written.tres_per_node, PAIR .. ",gres:nic:1")
	end
	local _, written = submit({ tres_per_node = "gres:vgpu:h200:2:mem~8G;cores~50;slo~10ms", qos = "lc" })
	equal(written.tres_per_node, (string.gsub(PAIR, "std", "lc")) .. ",gres:vgpu_slo:10000")
	equal(written.features, "vgpu_share&vgpu_type_h200")
end)

test("one slice has no type, whatever slices_max is", function()
	for _, slices_max in ipairs({ 1, 2, 16 }) do
		with_places(slices_max)
		for _, text in ipairs({ "gres:vgpu:mem~8G;cores~50", "gres:vgpu:1:mem~8G;cores~50" }) do
			local _, written = submit({ tres_per_node = text })
			equal(written.tres_per_node, UNITS)
			equal(written.features, nil)
		end
	end
end)

test("jobs take the places in rotation, and refused ones take none", function()
	with_places(4)
	start_again()
	local function places()
		local _, written = submit({ tres_per_node = ASKED })
		return string.match(written.tres_per_node, "shard:(%a)") .. string.match(written.tres_per_node, "shard:%a:%d+,gres:shard:(%a)")
	end
	equal(places(), "ab")
	equal(places(), "cd")
	submit({ tres_per_node = "gres:vgpu:5" })
	submit({ tres_per_node = "gres:vgpu" })
	equal(places(), "ab")
	submit({ tres_per_node = "gres:vgpu:3:mem~1G" })
	equal(places(), "bc")
end)

test("counts that cannot be are refused with what to ask for", function()
	with_places(1)
	refused(submit({ tres_per_node = "gres:vgpu:2" }), "slices_max is 1 here, so a job has one vgpu per node. Ask for fewer")
	with_places(4)
	for text, part in pairs({
		["gres:vgpu:5"] = "slices_max is 4 here",
		["gres:vgpu:17"] = "slices_max can be 16 at most",
		["gres:vgpu:" .. string.rep("9", 300)] = "slices_max can be 16 at most",
		["gres:vgpu:0"] = "'0' is not a count of vgpus",
		["gres:vgpu:-2"] = "'-2' is not a count of vgpus",
		["gres:vgpu:count~two"] = "'two' is not a count of vgpus",
		["gres:vgpu:2;mode~mps"] = "a count of 2 and mode=mps cannot be combined",
		["gres:vgpu:2;mode~mig"] = "a count of 2 and mode=mig cannot be combined",
		["gres:vgpu:2,gres:vgpu:1"] = "vgpu is requested twice",
		["gres:vgpu:h200:1,gres:vgpu:a100:1"] = "vgpu is requested twice",
		["gres:vgpu:2:3"] = "'count' is given twice",
	}) do
		messages = {}
		refused(submit({ tres_per_node = text }), part)
	end
	messages = {}
	refused(submit({ tres_per_node = "gres:vgpu:3", partition = "small" }), "no node of partition small has more than 2 GPUs")
	refused(submit({ tres_per_node = ASKED, shared = 0 }), "vgpu and --exclusive")
	refused(submit({ tres_per_node = ASKED, tres_per_job = "gres:gpu:2" }), "'gpu:2' cannot be combined")
	refused(submit({ tres_per_node = ASKED, features = "vgpu_mps" }), "mode=mps cannot be combined")
end)

test("an update keeps the places of a job, and cannot change its count", function()
	with_places(4)
	local held = string.gsub(string.gsub(PAIR, "shard:a", "shard:c"), "shard:b", "shard:d")
	local rc, written = modify({ tres_per_node = "gres:vgpu:2:mem=4G,gres:cores=25" }, { tres_per_node = held })
	equal(rc, 0)
	local half = string.gsub(string.gsub(string.gsub(held, "279", "139"), "16384", "8192"), "100", "50")
	equal(written.tres_per_node, half)
	for _, case in ipairs({ { "gres:vgpu:1", held }, { "gres:vgpu", held }, { "gres:vgpu:3", held }, { "gres:vgpu:2", UNITS } }) do
		messages = {}
		refused(modify({ tres_per_node = case[1] }, { tres_per_node = case[2] }), "an update cannot change the count")
	end
	messages = {}
	refused(modify({ tres_per_node = "gres:vgpu:2" }, { tres_per_node = "gres:shard:100" }), "count of a job's vgpus from 1 to 2")
	equal(modify({ tres_per_node = "gres:vgpu:2" }, { tres_per_node = "gres:nic:1" }), 0)
end)

test("a job keeps its places in another partition, or is refused there", function()
	with_places(4)
	local held = string.gsub(string.gsub(PAIR, "shard:a", "shard:c"), "shard:b", "shard:d")
	refused(modify({ partition = "small" }, { tres_per_node = held, features = "vgpu_share" }),
		"on GPUs of the types c, d, and partition small has only those from a to b")
	messages = {}
	local rc, written = modify({ partition = "small" }, { tres_per_node = PAIR, features = "vgpu_share" })
	equal(rc, 0)
	equal(written.tres_per_node, (string.gsub(PAIR, "279", "159")))
	with_places(1)
	refused(modify({ partition = "small" }, { tres_per_node = PAIR }), "slices_max is 1 here")
end)

local IN_PAIR = { SLURM_JOB_ID = "7", HAMI_HPC_VGPU = "2", HAMI_HPC_MEM_MIB = "16384", HAMI_HPC_CORES = "100",
	SLURM_SHARDS_ON_NODE = "558", SLURM_JOB_PARTITION = "gpu" }
local SHOWN = "JobId=7 Partition=gpu NumNodes=1 TresPerNode=" .. PAIR .. " Comment="

test("a step of one slice has all shards of a slice and no type", function()
	with_places(2)
	in_job(IN_PAIR, nil, function()
		for text, wanted in pairs({
			["vgpu:1"] = "shard:279,vgpu:1,vgpu_mem:8192,vgpu_cores:50",
			["gres:vgpu:mem=4G,gres:cores=25,gres:nic:1"] = "shard:279,vgpu:1,vgpu_mem:4096,vgpu_cores:25,nic:1",
			["vgpu:mem=1%,cores=1"] = "shard:279,vgpu:1,vgpu_mem:1280,vgpu_cores:1",
		}) do
			local rc, written = pre_submit({ type = "srun", gres = text })
			equal(rc, 0)
			equal(written.gres, wanted)
		end
	end)
	in_job({ SLURM_JOB_ID = "7" }, SHOWN, function()
		local _, written = pre_submit({ type = "srun", gres = "vgpu:1" })
		equal(written.gres, "shard:279,vgpu:1,vgpu_mem:8192,vgpu_cores:50")
	end)
end)

test("a step of several slices has types of the job, which slurmctld knows", function()
	with_places(4)
	in_job(IN_PAIR, SHOWN, function()
		local rc, written = pre_submit({ type = "srun", gres = "vgpu:2:mem=4G" })
		equal(rc, 0)
		equal(written.gres, "shard:a:279,shard:b:279,vgpu:2,vgpu_mem:8192,vgpu_cores:100")
	end)
end)

-- A job of four slices, and what its steps and the processes of srun are. Each srun is { pid, start, words, job, parent }.
local function step_of_four(asked, steps, sruns)
	local job = "JobId=7 TresPerNode="
	for _, place in ipairs({ "a", "b", "c", "d" }) do
		job = job .. "gres:shard:" .. place .. ":9,"
	end
	local files, pids = {}, ""
	for i, srun in ipairs(sruns) do
		local pid, words = tostring(srun[1]), srun[3] or "srun --gres=vgpu:2 true"
		local stat = pid .. " (srun) S " .. (srun[5] or 1) .. string.rep(" 0", 17) .. " " .. srun[2] .. " 0 0\n"
		files["/proc/" .. pid .. "/stat"] = stat
		files["/proc/" .. pid .. "/environ"] = "A=1\0SLURM_JOB_ID=" .. (srun[4] or "7") .. "\0B=SLURM_JOB_ID=7\0"
		files["/proc/" .. pid .. "/cmdline"] = string.gsub(words, " ", "\0") .. "\0"
		files["/proc/self/stat"] = i == #sruns and stat or nil
		pids = pids .. pid .. "\n"
	end
	local real_open, gres = io.open, nil
	io.open = function(path, mode)
		if not string.find(path, "^/proc/") then
			return real_open(path, mode)
		end
		return files[path] and { read = function() return files[path] end, close = function() end } or nil
	end
	local good, problem = pcall(in_job, { SLURM_JOB_ID = "7" }, {
		["scontrol -o show job 7 2>/dev/null"] = job .. "gres:vgpu:std:4,gres:vgpu_mem:40,gres:vgpu_cores:40 ",
		["scontrol -o show step 7 2>/dev/null"] = steps,
		["pgrep -x srun 2>/dev/null"] = pids,
	}, function()
		local _, written = pre_submit({ type = "srun", gres = asked })
		gres = written.gres
	end)
	io.open = real_open
	assert(good, problem)
	return string.gsub(string.gsub(gres, ",vgpu:%d,vgpu_mem:%d+,vgpu_cores:%d+$", ""), "shard:(%a):9,?", "%1")
end

local function running(pid, places)
	local list = string.gsub(places, "%a", "gres:shard:%0:9,")
	return "StepId=7.1 UserId=5 State=RUNNING Name=sh SrunHost:Pid=vm:" .. pid .. " TresPerNode=" .. list .. "gres:vgpu:2\n"
end

test("steps of some slices take the last types that no running step has", function()
	with_places(4)
	equal(step_of_four("vgpu:2", "", {}), "cd")
	equal(step_of_four("vgpu:3", "", {}), "bcd")
	equal(step_of_four("vgpu:4", "", {}), "abcd")
	equal(step_of_four("vgpu:2", running(50, "cd"), { { 50, 1 }, { 51, 2 } }), "ab")
	equal(step_of_four("vgpu:2", running(50, "bd"), {}), "ac")
	equal(step_of_four("vgpu:2", running(50, "bcd"), {}), "cd", "it has to wait for some")
	local waiting = "StepId=7.TDB State=PENDING SrunHost:Pid=vm:50 TresPerNode=gres:shard:c:9,gres:shard:d:9\n"
	equal(step_of_four("vgpu:2", waiting, {}), "cd")
	equal(step_of_four("vgpu:2", "slurm_load_job_steps error\n", {}), "cd")
end)

test("sruns of the same moment take different types, in the order of their starts", function()
	with_places(4)
	equal(step_of_four("vgpu:2", "", { { 50, 100 } }), "cd")
	equal(step_of_four("vgpu:2", "", { { 50, 100 }, { 51, 101 } }), "ab")
	equal(step_of_four("vgpu:2", "", { { 50, 100 }, { 51, 100 } }), "ab")
	equal(step_of_four("vgpu:2", "", { { 51, 100 }, { 50, 100 } }), "cd")
	equal(step_of_four("vgpu:2", "", { { 52, 102 }, { 53, 103 }, { 50, 101 } }), "cd", "both are younger")
	equal(step_of_four("vgpu:2", "", { { 50, 1 }, { 51, 2 }, { 52, 3 } }), "cd", "three do not fit")
	-- The first one runs, and the second one has no step yet.
	equal(step_of_four("vgpu:1:mem=1M", running(50, "cd"), { { 50, 1 }, { 51, 2 } }), "shard:9")
	equal(step_of_four("vgpu:2", running(49, "cd"), { { 49, 1 }, { 50, 2 } }), "ab")
end)

test("sruns that are of no concern do not count", function()
	with_places(4)
	for _, other in ipairs({
		{ 50, 100, "srun true" },
		{ 50, 100, "srun --gres=vgpu:1 true" },
		{ 50, 100, "srun --gres=vgpu:2:what true" },
		{ 50, 100, nil, "77" },
		{ 50, 100, nil, "70" },
	}) do
		equal(step_of_four("vgpu:2", "", { other, { 51, 101 } }), "cd")
	end
	equal(step_of_four("vgpu:2", "", { { 50, 100, "srun --gres=vgpu:3 true" }, { 51, 101 } }), "ad", "one GPU is left")
	equal(step_of_four("vgpu:2", "", { { 50, 100 }, { 52, 100, nil, nil, 50 }, { 53, 101 } }), "ab", "a child of srun")
	for _, words in ipairs({ "srun --gres vgpu:2:mem=4G true", "srun --gres=vgpu:h200:2 x", "srun -n1 --gres=vgpu:count=2,mem=1G x" }) do
		equal(step_of_four("vgpu:2", "", { { 50, 100, words }, { 51, 101 } }), "ab")
	end
end)

test("a step has no more slices, memory or cores than the job", function()
	with_places(4)
	in_job(IN_PAIR, nil, function()
		client_refused(pre_submit({ type = "srun", gres = "vgpu:3" }), "count=3 is more than the job has (2)")
		client_refused(pre_submit({ type = "srun", gres = "vgpu:1:mem=9G" }), "mem=9G is more than the job has (8192M)")
		client_refused(pre_submit({ type = "srun", gres = "vgpu:2:cores=51" }), "cores=51 is more than the job has (50)")
	end)
end)

test("srun outside an allocation gives job and step the same places", function()
	with_places(4)
	local rc, written = pre_submit({ type = "srun", gres = "vgpu:2:mem=8G,cores=50", partition = "gpu" })
	equal(rc, 0)
	equal(written.constraint, "vgpu_share")
	local sent = written.gres
	assert(string.find(sent, "^shard:%a:279,shard:%a:279,vgpu:2,vgpu_mem:16384,vgpu_cores:100$"), sent)
	local job, stored = record({ tres_per_node = sent, partition = "gpu", features = "vgpu_share" })
	equal(hami.job_submit(job, PARTS, 1000), 0)
	equal(stored.tres_per_node, (string.gsub(sent, "vgpu:2", "vgpu:std:2")))
	os.remove(scratch .. "/hami_hpc_site.lua")
	client_refused(pre_submit({ type = "srun", gres = "vgpu:2:mem=8G,cores=50" }), "hami_hpc_site.lua not found")
end)

test("units of several slices that nobody but srun could have made are refused", function()
	with_places(4)
	for _, text in ipairs({
		"shard:a:279,vgpu:2,vgpu_mem:16384,vgpu_cores:100",
		"shard:a:279,shard:a:279,vgpu:2,vgpu_mem:16384,vgpu_cores:100",
		"shard:558,vgpu:2,vgpu_mem:16384,vgpu_cores:100",
		"shard:a:279,shard:zz:279,vgpu:2,vgpu_mem:16384,vgpu_cores:100",
		"shard:a:279,shard:b:279,vgpu:2,vgpu_mem:16385,vgpu_cores:100",
		"shard:a:279,shard:b:279,vgpu:2,vgpu_mem:16384,vgpu_cores:101",
		"shard:a:279,shard:b:279,vgpu:2,vgpu_mem:16384,vgpu_cores:202",
		"shard:a:279,shard:b:279,vgpu:0,vgpu_mem:16384,vgpu_cores:100",
		"shard:a:279,shard:b:279,vgpu:99,vgpu_mem:16384,vgpu_cores:100",
		"shard:a:279,shard:b:279,vgpu:std:2,vgpu_mem:16384,vgpu_cores:100",
	}) do
		messages = {}
		refused(hami.job_submit(record({ tres_per_node = text, partition = "gpu" }), PARTS, 1000), "hami_hpc: ")
	end
	-- Places that the partition's nodes do not have are chosen again.
	local job, stored = record({ tres_per_node = string.gsub(string.gsub(PAIR, "shard:a", "shard:d"), "std:", ""), partition = "small" })
	equal(hami.job_submit(job, PARTS, 1000), 0)
	equal(stored.tres_per_node, (string.gsub(PAIR, "279", "159")))
end)

test("whole GPUs of a model become GPUs and the model's feature", function()
	with_places(2)
	for _, case in ipairs({
		{ "tres_per_node", "gres:gpu:h200:2", "gres:gpu:2" },
		{ "tres_per_node", "gres/gpu:h200=2,gres/nic:1", "gres/gpu:2,gres/nic:1" },
		{ "tres_per_node", "gpu:h200", "gpu:1" },
		{ "tres_per_job", "gres:gpu:h200:3", "gres:gpu:3" },
		{ "tres_per_task", "cpu=2,gres/gpu:h200:1", "cpu=2,gres/gpu:1" },
		{ "tres_per_socket", "gres:gpu:h200:1", "gres:gpu:1" },
	}) do
		local rc, written = submit({ [case[1]] = case[2] })
		equal(rc, 0)
		equal(written[case[1]], case[3])
		equal(written.features, "vgpu_type_h200")
	end
	local _, written = submit({ tres_per_node = "gres:gpu:h200:2", features = "a|b", prefer = "x" })
	equal(written.features, "(a|b)&vgpu_type_h200")
	equal(written.prefer, "x&vgpu_type_h200")
	_, written = modify({ tres_per_node = "gres:gpu:a100:2" }, { features = "x&vgpu_type_h200", tres_per_node = "gres:gpu:2" })
	equal(written.tres_per_node, "gres:gpu:2")
	equal(written.features, "x&vgpu_type_a100")
	refused(submit({ tres_per_node = "gres:gpu:h200:1,gres:gpu:a100:1" }), "asks for GPUs of several models")
end)

test("whole GPUs stay as they are where types are models, and where nobody named one", function()
	for slices_max, fields in pairs({
		[1] = { tres_per_node = "gres:gpu:h200:2" },
		[2] = { tres_per_node = "gres:gpu:2" },
		[3] = { tres_per_node = "gres:gpu:b:2" },
		[4] = { tres_per_node = "gres:gpu:h200:2", partition = "others" },
	}) do
		with_places(slices_max)
		local rc, written = submit(fields)
		equal(rc, 0)
		untouched(written)
	end
	os.remove(scratch .. "/hami_hpc_site.lua")
	local rc, written = submit({ tres_per_node = "gres:gpu:h200:2" })
	equal(rc, 0)
	untouched(written)
end)

test("srun of whole GPUs asks for the same in job and step", function()
	with_places(2)
	for _, case in ipairs({
		{ "gres", "gres:gpu:h200:2", "gres:gpu:2" },
		{ "gpus", "h200:2", "2" },
		{ "gpus-per-task", "h200", "1" },
		{ "gpus-per-node", "h200=2", "2" },
		{ "tres-per-task", "gres/gpu:h200:1", "gres/gpu:1" },
	}) do
		local rc, written = pre_submit({ type = "srun", [case[1]] = case[2], partition = "gpu" })
		equal(rc, 0)
		equal(written[case[1]], case[3])
		equal(written.constraint, "vgpu_type_h200")
		in_job({ SLURM_JOB_ID = "7", SLURM_JOB_PARTITION = "gpu" }, nil, function()
			rc, written = pre_submit({ type = "srun", [case[1]] = case[2] })
			equal(rc, 0)
			equal(written[case[1]], case[3])
			equal(written.constraint, nil)
		end)
		in_job({ SLURM_JOB_ID = "7", SLURM_JOB_PARTITION = "cpu", SLURM_JOB_PARTITION_HET_GROUP_1 = "gpu" }, nil, function()
			rc, written = pre_submit({ type = "srun", [case[1]] = case[2] })
			untouched(written)
			rc, written = pre_submit({ type = "srun", [case[1]] = case[2] }, 1)
			equal(written[case[1]], case[3])
		end)
	end
	with_places(1)
	local rc, written = pre_submit({ type = "srun", gres = "gpu:h200:2", gpus = "h200:2" })
	equal(rc, 0)
	untouched(written)
end)

test("a site table with a slices_max that is none is refused", function()
	for _, wrong in ipairs({ "0", "17", "1.5", '"2"', "-1", "0/0" }) do
		local site, reason = hami.settings.complete((loadstring or load)("return { version = 1, slices_max = " .. wrong
			.. ", gpu_models = {}, partitions = {} }")())
		equal(site, nil)
		assert(string.find(reason, "slices_max = ", 1, true), reason)
	end
end)

test("whatever is asked for, a job has as many equal slices as its count, or none", function()
	with_places(4)
	local words = { "vgpu", ":", "2", "h200", "gpu", "shard", "a", "=", "~", ";", ",", "mem=8G", "cores=50", "count=2", "gres:",
		"gres/", "vgpu_mem:16384", "vgpu_cores:100", "shard:a:279", "vgpu:2", "vgpu:4", "0", "-1", " ", "gpu:h200:2", "(", "std" }
	math.randomseed(7)
	for _ = 1, 4000 do
		local parts = {}
		for i = 1, math.random(9) do
			parts[i] = words[math.random(#words)]
		end
		local text = table.concat(parts)
		local job, written = record({ tres_per_node = text, partition = "gpu", script = math.random(2) == 1 and "x" or nil })
		hami.job_submit(job, PARTS, 1000)
		local count = tonumber(string.match(written.tres_per_node or "", "vgpu:%l+:(%d+)") or "1")
		local seen, types = {}, 0
		for shards_of, shards in string.gmatch("," .. (written.tres_per_node or ""), ",g?r?e?s?[:/]?shard:(%a):(%d+)") do
			assert(not seen[shards_of] and shards == (seen.shards or shards), written.tres_per_node)
			seen[shards_of], seen.shards, types = true, shards, types + 1
		end
		equal(types, count > 1 and count or 0, "types in " .. tostring(written.tres_per_node))
		hami.cli_pre_submit(record({ type = "srun", gres = text, partition = "gpu" }), 0)
		for _, line in ipairs(logged) do
			assert(not string.find(line, "internal error", 1, true), line)
		end
	end
end)
