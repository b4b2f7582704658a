-- SPDX-License-Identifier: Apache-2.0
-- The filters in a site's own scripts and in the ready-made ones. The names used are filters.lua's.

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
	assert(reads <= 9, reads .. " field reads")
end)

-- Runs `act` with a module that was loaded as the script `name`; returns the parts that are loaded then.
local function parts_loaded(name, act)
	local script = scratch .. "/" .. name
	local file = assert(io.open(script, "w"))
	file:write(string.format("local hami = dofile(%q)\nreturn hami\n", modules .. "/hami_hpc.lua"))
	file:close()
	local plain, loaded = dofile, {}
	dofile = function(path)
		loaded[#loaded + 1] = string.match(path, "/hami_hpc_([a-z_]+)%.lua$")
		return plain(path)
	end
	local succeeded, problem = pcall(function()
		act(plain(script))
	end)
	dofile = plain
	os.remove(script)
	assert(succeeded, problem)
	return loaded
end

test("sbatch without vgpu loads no part of the module, and one with vgpu only what it needs", function()
	local plain = parts_loaded("cli_filter.lua", function(fresh)
		equal(fresh.cli_pre_submit({ type = "sbatch", gres = "gpu:1", gpus = "2" }, 0), 0)
		equal(fresh.cli_pre_submit({ type = "salloc" }, 0), 0)
		equal(fresh.cli_pre_submit({ type = "srun", constraint = "ib" }, 0), 0)
	end)
	equal(#plain, 0)
	local loaded = {}
	local options = { type = "sbatch", gres = "vgpu:mem=8G,cores=50" }
	for _, name in ipairs(parts_loaded("cli_filter.lua", function(fresh)
		equal(fresh.cli_pre_submit(options, 0), 0)
	end)) do
		assert(not loaded[name], name .. " is loaded twice")
		loaded[name] = true
	end
	equal(options.gres, "vgpu:mem~8G;cores~50")
	assert(loaded.request and not loaded.jobs and not loaded.units and not loaded.mig and not loaded.steps)
end)

test("the site's table is read once for a request, and again for the next one", function()
	local plain, reads = loadfile, 0
	loadfile = function(path)
		reads = reads + 1
		return plain(path)
	end
	for requests = 1, 3 do
		equal(hami.job_submit(batch({ tres_per_node = "gres:vgpu:mem~8G;cores~50" }), PARTS, 1000), 0)
		equal(hami.cli_pre_submit({ type = "sbatch", gres = "vgpu:mem=8G", partition = "small" }, 0), 0)
		equal(reads, 2 * requests)
	end
	loadfile = plain
end)

test("slurmctld has all parts from the start, and an upgrade under it changes nothing", function()
	local loaded = parts_loaded("job_submit.lua", function(fresh)
		dofile = function(path)
			error("after the start " .. path .. " was loaded")
		end
		equal(fresh.job_submit(batch({ tres_per_node = "gres:vgpu:mem~8G" }), PARTS, 1000), 0)
	end)
	local there = io.popen("ls " .. modules .. "/hami_hpc_*.lua | wc -l")
	equal(#loaded, tonumber(there:read("*a")))
	there:close()
end)

test("the word by which a command is passed over is the contract's", function()
	local contract = dofile(modules .. "/hami_hpc_contract.lua")
	equal(contract.request.name, "vgpu")
	for _, name in ipairs({ contract.gres.mem, contract.gres.cores, contract.gres.slo }) do
		assert(string.find(name, "vgpu", 1, true))
	end
end)
