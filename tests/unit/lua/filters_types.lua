-- SPDX-License-Identifier: Apache-2.0
-- GPU types as constraints, requests without one where models differ, presets. The names used are filters.lua's.

local real_getenv = os.getenv
local BOTH = "(vgpu_type_h200|vgpu_type_a100)"
local PRESETS = 'version = 1, presets = { half = "mem=50%;cores=50", a100 = "a100;mem=8G;cores=25", dear = "policy=none" },'

local function with_presets()
	local text = string.gsub(SITE, "BARE", "refuse")
	write_site((string.gsub(text, "version = 1,", function() return PRESETS end)))
end

local function submit(fields)
	local job, written = record(fields)
	return hami.job_submit(job, PARTS, 1000), written
end

local function units(shards, mem, cores)
	return string.format("gres:shard:%d,gres:vgpu:std:1,gres:vgpu_mem:%d,gres:vgpu_cores:%d", shards, mem, cores)
end

test("a request without a type has the shards that its part of the largest GPU takes", function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50", partition = "mixed" })
	equal(rc, 0, "rc")
	equal(written.tres_per_node, units(279, 8192, 50), "units")
	equal(written.features, nil, "features")
end)

test("several types are a choice in the constraint, beside what the user wrote there", function()
	local asked = "gres:vgpu:type~h200|a100;mem~8G;cores~50"
	for given, wanted in pairs({
		[""] = BOTH,
		rack1 = "rack1&" .. BOTH,
		["rack1|rack2"] = "(rack1|rack2)&" .. BOTH,
		[BOTH] = nil,
		["[vgpu_type_h200|vgpu_type_a100]"] = nil,
		["vgpu_type_a100"] = "vgpu_type_a100&" .. BOTH,
	}) do
		local rc, written = submit({ tres_per_node = asked, partition = "mixed", features = given })
		equal(rc, 0, "rc")
		equal(written.tres_per_node, units(279, 8192, 50), "units with " .. given)
		equal(written.features, wanted, "features with " .. given)
	end
	local rc, written = submit({ tres_per_node = asked, partition = "mixed", features = BOTH })
	equal(rc, 0, "rc")
	equal(written.features, nil, "features")
end)

test("one type that is left is that type", function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:type~!h200;mem~8G;cores~50", partition = "mixed" })
	equal(rc, 0, "rc")
	equal(written.tres_per_node, units(159, 8192, 50), "units")
	equal(written.features, "vgpu_type_a100", "features")
end)

test("types that nothing satisfies are refused in one line", function()
	refused(submit({ tres_per_node = "gres:vgpu:type~!h200", partition = "gpu" }), "leaves no GPU type of partition gpu")
	refused(submit({ tres_per_node = "gres:vgpu:type~h200|v100", partition = "mixed" }), "GPU type 'v100' is not in this cluster")
	refused(submit({ tres_per_node = "gres:vgpu:type~v100|k80", partition = "gpu,cpu" }), "GPU type 'v100' is not in this cluster")
	local rc, written = submit({ tres_per_node = "gres:vgpu:type~a100|h200", partition = "gpu,small,cpu" })
	equal(rc, 0)
	equal(written.partition, "gpu,small")
end)

test("a choice of types in the constraint alone decides the units", function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:cores~50;mem~8G", partition = "mixed", features = "(vgpu_type_a100)" })
	equal(rc, 0, "rc")
	equal(written.tres_per_node, units(159, 8192, 50), "units")
	-- what is no choice among GPU types alone may still be any GPU
	for _, other in ipairs({ "vgpu_type_a100|rack1", "(vgpu_type_a100|rack1)", "(vgpu_type_a100*1|vgpu_type_h200)", "()" }) do
		rc, written = submit({ tres_per_node = "gres:vgpu:cores~50;mem~8G", partition = "mixed", features = other })
		equal(rc, 0, "rc")
		equal(written.tres_per_node, units(279, 8192, 50), "units with " .. other)
	end
end)

test("an update keeps a choice of types, and drops those of the new constraint", function()
	local held = { partition = "mixed", tres_per_node = units(279, 8192, 50), features = "rack1&" .. BOTH }
	local rc, written = modify({ features = "rack2&vgpu_type_a100" }, held)
	equal(rc, 0, "rc")
	equal(written.features, "rack2&" .. BOTH, "features")
	equal(written.tres_per_node, units(279, 8192, 50), "units")
	rc, written = modify({ partition = "small" }, held)
	equal(rc, 0, "rc")
	equal(written.tres_per_node, units(159, 8192, 50), "units there")
	rc, written = modify({ tres_per_node = "gres:vgpu:a100:mem=8G,gres:cores=50" }, held)
	equal(rc, 0, "rc")
	equal(written.features, "rack1&vgpu_type_a100", "features")
	equal(written.tres_per_node, units(159, 8192, 50), "units")
end)

test("a preset is what the site wrote down, and keys beside it replace its own", function()
	with_presets()
	for asked, wanted in pairs({
		["preset~half"] = units(279, 71424, 50),
		["preset~half;mem~8G"] = units(279, 8192, 50),
		["preset~half;cores~10"] = units(279, 71424, 10),
		["preset~a100"] = units(79, 8192, 25),
		["h200;preset~a100"] = units(139, 8192, 25),
	}) do
		local rc, written = submit({ tres_per_node = "gres:vgpu:" .. asked, partition = "mixed" })
		equal(rc, 0, asked)
		equal(written.tres_per_node, wanted, asked)
	end
	refused(submit({ tres_per_node = "gres:vgpu:preset~tiny", partition = "mixed" }), "presets, which are: a100, dear, half")
	refused(submit({ tres_per_node = "gres:vgpu:2:preset~half", partition = "mixed" }), "a count of 2 and preset=half")
	refused(submit({ tres_per_node = "gres:vgpu:preset~dear", partition = "mixed" }), "policy=none is not allowed in class std")
	restore_site()
	refused(submit({ tres_per_node = "gres:vgpu:preset~half", partition = "mixed" }), "presets, which are: none")
end)

test("presets that are not understood make the site's table invalid", function()
	local text = string.gsub(SITE, "BARE", "refuse")
	for _, presets in ipairs({ '"x"', '{ x = "mem=8" }', '{ x = "preset=y" }', '{ x = "count=2" }', "{ x = {} }" }) do
		write_site((string.gsub(text, "version = 1,", "version = 1, presets = " .. presets .. ",")))
		hami.settings.forget()
		local site, reason = hami.settings.read()
		equal(site, nil, "site")
		assert(string.find(reason, "presets", 1, true), reason)
	end
	restore_site()
end)

test("sbatch passes types and presets on as they were written", function()
	with_presets()
	for asked, glued in pairs({
		["vgpu:type=h200|a100,mem=8G"] = "vgpu:type~h200|a100;mem~8G",
		["vgpu:preset=a100"] = "vgpu:preset~a100",
		["vgpu:preset=a100,cores=5"] = "vgpu:preset~a100;cores~5",
	}) do
		local rc, written = pre_submit({ type = "sbatch", gres = asked, partition = "mixed" })
		equal(rc, 0, asked)
		equal(written.gres, glued, asked)
	end
	equal(pre_submit({ type = "sbatch", gres = "vgpu:preset=tiny", partition = "mixed" }), -1, "unknown preset")
	equal(#logged, 1, "lines")
	logged = {}
	restore_site()
end)

test("srun writes the units and the choice of types, and job_submit finds the same", function()
	local rc, written = pre_submit({ type = "srun", gres = "vgpu:type=h200|a100,mem=8G,cores=50", partition = "mixed" })
	equal(rc, 0, "rc")
	equal(written.gres, "shard:279,vgpu:1,vgpu_mem:8192,vgpu_cores:50", "gres")
	equal(written.constraint, BOTH, "constraint")
	local submitted, job = submit({ tres_per_node = "gres:" .. string.gsub(written.gres, ",", ",gres:"), partition = "mixed", features = BOTH })
	equal(submitted, 0, "rc")
	equal(job.tres_per_node, units(279, 8192, 50), "units")
	equal(job.features, nil, "features")
end)

test("srun without a partition asks for no more shards in its step than the job can have in any", function()
	local rc, written = pre_submit({ type = "srun", gres = "vgpu:mem=8G" })
	equal(rc, 0, "rc")
	equal(written.gres, "shard:79,vgpu:1,vgpu_mem:8192,vgpu_cores:25", "gres")
	rc = pre_submit({ type = "srun", gres = "vgpu:mem=50%" })
	equal(rc, -1, "a percentage")
	assert(string.find(logged[1], "this request is not the same on all of them", 1, true), logged[1])
	logged = {}
	rc, written = pre_submit({ type = "srun", gres = "vgpu:mem=50%", partition = "mixed" })
	equal(rc, 0, "rc")
	equal(written.gres, "shard:279,vgpu:1,vgpu_mem:71424,vgpu_cores:25", "gres")
end)

test("a step may name a preset", function()
	with_presets()
	local job = { SLURM_JOB_ID = "7", HAMI_HPC_MEM_MIB = "16384", HAMI_HPC_CORES = "50", SLURM_JOB_PARTITION = "mixed" }
	os.getenv = function(name)
		return job[name] or (name == "SLURM_CONF" and real_getenv(name) or nil)
	end
	local rc, written = pre_submit({ type = "srun", gres = "vgpu:preset=a100" })
	local too_big = pre_submit({ type = "srun", gres = "vgpu:preset=half" })
	os.getenv = real_getenv
	equal(rc, 0, "rc")
	equal(written.gres, "shard:79,vgpu_mem:8192,vgpu_cores:25", "gres")
	equal(too_big, -1, "a preset of more than the job has")
	logged = {}
	restore_site()
end)
