-- SPDX-License-Identifier: Apache-2.0
-- Both filters at a site that offers MIG beside share: units, features, updates, steps. The names used are filters.lua's.

local PROFILES = [[{ total_mib = 143156, mig = {
	{ name = "1g.18gb", mem_mib = 16384, mem_percent = 12, cores = 14, shards = 70 },
	{ name = "2g.35gb", mem_mib = 33280, mem_percent = 25, cores = 28, shards = 140 } } }]]
local SMALL = "gres:shard:70,gres:vgpu:std:1,gres:vgpu_mem:16384,gres:vgpu_cores:14"

local function write_mig_site(modes)
	local text = string.gsub(SITE, "BARE", "translate")
	text = string.gsub(text, "{ total_mib = 143156 }", PROFILES)
	write_site((string.gsub(text, 'modes = %b{}', "modes = " .. (modes or '{ "share", "mig" }'))))
end

local function with_mig(body)
	return function()
		write_mig_site()
		body()
	end
end

test("a job with MIG gets its profile's units and the feature", with_mig(function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~16G;mode~mig" })
	equal(rc, 0)
	equal(written.tres_per_node, SMALL)
	equal(written.features, "vgpu_mig")
	rc, written = submit({ tres_per_node = "gres:vgpu:mig~1g.18gb,nic:1", features = "a|b" })
	equal(rc, 0)
	equal(written.tres_per_node, SMALL .. ",nic:1")
	equal(written.features, "(a|b)&vgpu_mig")
end))

test("every other job says that it shares", with_mig(function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50" })
	equal(rc, 0)
	equal(written.features, "vgpu_share")
	rc, written = submit({ tres_per_node = "gres:shard:70" })
	equal(rc, 0)
	equal(written.features, "vgpu_share")
end))

test("a mode in the constraint is one in the request", with_mig(function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~16G", features = "vgpu_mig&a" })
	equal(rc, 0)
	equal(written.tres_per_node, SMALL)
	equal(written.features, nil)
	rc, written = submit({ tres_per_node = "gres:shard:64", features = "vgpu_mig" })
	equal(rc, 0)
	equal(written.tres_per_node, SMALL)
end))

test("no constraint gives the units of one mode on a node of another", with_mig(function()
	for _, features in ipairs({ "vgpu_share", "a|vgpu_share", "(vgpu_share|a)", "[vgpu_share*1]", "a,vgpu_share", "!vgpu_share" }) do
		messages = {}
		refused(submit({ tres_per_node = "gres:vgpu:mig~1g.18gb", features = features }), "names the feature of another mode")
	end
	for _, features in ipairs({ "a|vgpu_mig", "(vgpu_mig|a)&b", "vgpu_mig*2|a" }) do
		messages = {}
		refused(submit({ tres_per_node = "gres:vgpu:mem~1M;cores~1", features = features }), "than the vgpu's, which is mode=share")
	end
	messages = {}
	refused(submit({ tres_per_node = "gres:vgpu:mem~1M;mode~share", features = "vgpu_mig" }), "'vgpu_mig&vgpu_share' (--constraint or --prefer)")
end))

test("other features may look like ours", with_mig(function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50", features = "vgpu_migrate|my_vgpu_mig" })
	equal(rc, 0)
	equal(written.features, "(vgpu_migrate|my_vgpu_mig)&vgpu_share")
end))

test("a refusal names the profiles of the partition with their memory, and one that works", with_mig(function()
	refused(
		submit({ tres_per_node = "gres:vgpu:mem~60G;mode~mig" }),
		"hami_hpc: no MIG profile of h200 in partition gpu has mem=60G; its profiles are: 1g.18gb (16384M, cores=14), "
			.. "2g.35gb (33280M, cores=28). Example: --gres=vgpu:mig=2g.35gb"
	)
	messages = {}
	refused(
		submit({ tres_per_node = "gres:vgpu:mig~3g.71gb" }),
		"mig=3g.71gb is not a profile of h200 in partition gpu; its profiles are: 1g.18gb (16384M, cores=14), 2g.35gb"
	)
	messages = {}
	refused(
		submit({ tres_per_node = "gres:vgpu:mig~1g.18gb;mem~17G" }),
		"mem=17G is more than an instance of 1g.18gb has. The profiles of h200 in partition gpu are: 1g.18gb (16384M, "
			.. "cores=14), 2g.35gb (33280M, cores=28). Example: --gres=vgpu:mig=2g.35gb"
	)
	messages = {}
	refused(
		submit({ tres_per_node = "gres:vgpu:isolation~hard", partition = "small" }),
		"isolation=hard needs a MIG instance, and a100 in partition small offers none; modes offered: share, mig. "
			.. "Example: --gres=vgpu:mem=8G"
	)
	messages = {}
	refused(
		submit({ tres_per_node = "gres:vgpu:mig~1g.18gb;mode~share" }),
		"mode=share and mig=1g.18gb cannot be combined, because mig=1g.18gb asks for a MIG instance; leave one of them out. "
			.. "Example: --gres=vgpu:mig=1g.18gb"
	)
end))

test("a site without MIG refuses it, and leaves constraints as they are", function()
	refused(submit({ tres_per_node = "gres:vgpu:mig~1g.18gb" }), "mig=1g.18gb needs a MIG instance, and this cluster offers none; modes offered: share, mps")
	refused(submit({ tres_per_node = "gres:vgpu:mode~mig" }), "mode=mig is not offered by this cluster; offered: share, mps")
	local rc, written = submit({ tres_per_node = "gres:vgpu:mode~auto;mem~8G;cores~50" })
	equal(rc, 0)
	equal(written.tres_per_node, UNITS)
	equal(written.features, "vgpu_share")
end)

local function update(fields, old)
	local job, written = record(fields)
	old.job_state, old.qos, old.partition = 0, "", "gpu"
	return hami.job_modify(job, old, PARTS, 1000), written
end

test("an update keeps the mode that it does not name, and replaces the one that it names", with_mig(function()
	local rc, written = update({ tres_per_node = "gres:vgpu:mem~30G" }, { tres_per_node = SMALL, features = "vgpu_mig&a" })
	equal(rc, 0)
	equal(written.tres_per_node, "gres:shard:140,gres:vgpu:std:1,gres:vgpu_mem:33280,gres:vgpu_cores:28")
	equal(written.features, "a&vgpu_mig")
	rc, written = update({ tres_per_node = "gres:vgpu:mem~8G;cores~50;mode~share" }, { tres_per_node = SMALL, features = "a&vgpu_mig" })
	equal(rc, 0)
	equal(written.tres_per_node, UNITS)
	equal(written.features, "a&vgpu_share")
	rc, written = update({ tres_per_node = "gres:vgpu:mig~1g.18gb" }, { tres_per_node = UNITS, features = "vgpu_share" })
	equal(rc, 0)
	equal(written.tres_per_node, SMALL)
	equal(written.features, "vgpu_mig")
end))

test("a new constraint cannot move a job of one mode to nodes of another", with_mig(function()
	local rc, written = update({ features = "b" }, { tres_per_node = SMALL, features = "vgpu_mig&a" })
	equal(rc, 0)
	equal(written.features, "b&vgpu_mig")
	equal(written.tres_per_node, SMALL)
	messages = {}
	refused(update({ features = "b|vgpu_share" }, { tres_per_node = SMALL, features = "vgpu_mig" }), "names the feature of another mode")
	refused(update({ features = "b|vgpu_mig" }, { tres_per_node = UNITS, features = "vgpu_share" }), "names the feature of another mode")
	rc, written = update({ features = "b" }, { tres_per_node = UNITS }) -- of a job from before the site offered MIG
	equal(rc, 0)
	equal(written.features, "b&vgpu_share")
end))

test("what a job prefers includes its mode, because Slurm uses it in place of the constraint", with_mig(function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50", prefer = "a|b" })
	equal(rc, 0)
	equal(written.prefer, "(a|b)&vgpu_share")
	rc, written = submit({ tres_per_node = "gres:vgpu:h200:mig~1g.18gb", prefer = "a", features = "b" })
	equal(rc, 0)
	equal(written.prefer, "a&vgpu_mig&vgpu_type_h200")
	equal(written.features, "b&vgpu_mig&vgpu_type_h200")
	for _, prefer in ipairs({ "vgpu_mig", "a|vgpu_mig", "vgpu_mig&a" }) do
		messages = {}
		refused(submit({ tres_per_node = "gres:vgpu:mem~1M;cores~1", prefer = prefer }), "names the feature of another mode")
	end
	messages = {}
	refused(submit({ tres_per_node = "gres:vgpu:mem~1M", prefer = string.rep("a", 5000) }), "--prefer is 5000 bytes long")
end))

test("an update cannot leave a job with preferences of another mode", with_mig(function()
	local rc, written = update({ tres_per_node = "gres:vgpu:mig~1g.18gb" }, { tres_per_node = UNITS, features = "a&vgpu_share" })
	equal(rc, 0)
	equal(written.prefer, "a&vgpu_mig")
	rc, written = update({ tres_per_node = "gres:vgpu:mem~4G" }, { tres_per_node = UNITS, features = "vgpu_share" })
	equal(rc, 0)
	equal(written.prefer, nil)
	rc, written = update({ prefer = "b" }, { tres_per_node = SMALL, features = "vgpu_mig" })
	equal(rc, 0)
	equal(written.prefer, "b&vgpu_mig")
	messages = {}
	refused(update({ prefer = "a|vgpu_mig" }, { tres_per_node = UNITS, features = "vgpu_share" }), "names the feature of another mode")
end))

test("a policy in what a job prefers is checked as one in the constraint", function()
	refused(submit({ tres_per_node = "gres:vgpu", prefer = "vgpu_policy_none" }), "policy=none is not allowed in class std")
end)

local function client(options)
	options.type = options.type or "srun"
	return hami.cli_pre_submit(options, 0), options
end

test("srun outside a job writes the profile's units and the mode, and job_submit finds the same", with_mig(function()
	local rc, options = client({ gres = "gres:vgpu:mig=2g.35gb", partition = "gpu" })
	equal(rc, 0)
	equal(options.gres, "shard:140,vgpu:1,vgpu_mem:33280,vgpu_cores:28")
	equal(options.constraint, "vgpu_mig")
	local job, written = record({ tres_per_node = "gres:shard:140,gres:vgpu:1,gres:vgpu_mem:33280,gres:vgpu_cores:28", features = "vgpu_mig" })
	equal(hami.job_submit(job, PARTS, 1000), 0)
	equal(written.tres_per_node, "gres:shard:140,gres:vgpu:std:1,gres:vgpu_mem:33280,gres:vgpu_cores:28")
	rc, options = client({ gres = "gres:vgpu:mem=16G,gres:cores=10,gres:mode=auto", partition = "gpu" })
	equal(rc, 0)
	equal(options.constraint, "vgpu_mig")
	rc, options = client({ gres = "gres:vgpu:mem=16G", partition = "gpu", constraint = "vgpu_mig" })
	equal(rc, 0)
	equal(options.gres, "shard:70,vgpu:1,vgpu_mem:16384,vgpu_cores:14")
end))

test("srun without the site's table cannot choose a profile", with_mig(function()
	os.remove(scratch .. "/hami_hpc_site.lua")
	for _, text in ipairs({ "mig=1g.18gb", "isolation=hard", "mode=auto" }) do
		equal(client({ gres = "gres:vgpu:mem=1G,gres:cores=1,gres:" .. text }), -1)
	end
	equal(client({ gres = "gres:vgpu:mem=1G,gres:cores=1" }), 0)
end))

test("sbatch checks a MIG request early and leaves it to job_submit", with_mig(function()
	local rc, options = client({ type = "sbatch", gres = "gres:vgpu:mig=1g.18gb,gres:isolation=hard", partition = "gpu" })
	equal(rc, 0)
	equal(options.gres, "vgpu:mig~1g.18gb;isolation~hard")
	rc = client({ type = "sbatch", gres = "gres:vgpu:mig=9g.18gb", partition = "gpu" })
	equal(rc, -1)
end))

test("a step takes no more shards than the instance has", with_mig(function()
	local real = os.getenv
	local job = { SLURM_JOB_ID = "7", HAMI_HPC_MEM_MIB = "16384", HAMI_HPC_CORES = "14", SLURM_JOB_PARTITION = "gpu" }
	os.getenv = function(name)
		return job[name] or real(name)
	end
	local rc, options = client({ gres = "gres:vgpu:cores=14" })
	os.getenv = real
	equal(rc, 0)
	equal(options.gres, "shard:70,vgpu_mem:16384,vgpu_cores:14")
end))

test("a site's table whose profiles are not understood is refused", function()
	for _, wrong in ipairs({ "7", "{ 7 }", "{ { name = 'a' } }", "{ { name = 'a', mem_mib = 1, mem_percent = 1, cores = 1, shards = 0 } }" }) do
		write_site((string.gsub(string.gsub(SITE, "BARE", "refuse"), "{ total_mib = 143156 }", "{ total_mib = 143156, mig = " .. wrong .. " }")))
		hami.settings.forget()
		local site, reason = hami.settings.read()
		equal(site, nil)
		equal(reason, "gpu_models.h200.mig is not understood")
	end
end)
