-- SPDX-License-Identifier: Apache-2.0
-- cli_pre_submit. The names used are filters.lua's.

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
	client_refused(pre_submit({ gres = "vgpu", gpus = "2" }), "'gpu:2' cannot be combined")
	client_refused(pre_submit({ ["gpus-per-node"] = "vgpu:mem=8G" }), "--gpus-per-node=vgpu:mem=8G cannot carry")
	client_refused(pre_submit({ ["tres-per-task"] = "gres/vgpu:mem=8G" }), "--tres-per-task=gres/vgpu:mem=8G cannot carry")
end)

test("a vgpu in other letters or behind a blank is refused with what to write", function()
	for _, kind in ipairs({ "sbatch", "salloc", "srun" }) do
		for _, prefix in ipairs({ "", "gres:", "gres/" }) do
			for _, text in ipairs({ "VGPU", "vGpu:mem=8G", " vgpu:mem=8G", "\tVGPU:2", "gres=vgpu:mem=8G", "gres=VGPU" }) do
				local gres = prefix .. "nic:1," .. prefix .. text
				client_refused(pre_submit({ type = kind, gres = gres }), "is not understood; a request is vgpu[:TYPE]")
			end
		end
		client_refused(pre_submit({ type = kind, gres = " vgpu:mem=8G" }), "' vgpu:mem=8G' is not understood")
		for _, text in ipairs({ "VGPUS:1", "my_VGPU:1", "nic:VGPU:1", "VGPU_x" }) do
			local rc, written = pre_submit({ type = kind, gres = text })
			equal(rc, 0, "another gres")
			untouched(written)
		end
	end
end)

test("options that count whole GPUs are refused with what to use instead", function()
	local advice = {
		["cpus-per-gpu"] = "--cpus-per-gpu=4 is for whole GPUs and cannot be combined with a vgpu; ask for CPUs with --cpus-per-task=N",
		["mem-per-gpu"] = "ask for memory of the node with --mem=16G",
		["ntasks-per-gpu"] = "--ntasks-per-gpu=4 is for whole GPUs and cannot be combined with a vgpu; ask for tasks with --ntasks=N",
		["gpu-freq"] = "a vgpu; leave it out",
	}
	for name, words in pairs(advice) do
		for _, kind in ipairs({ "sbatch", "salloc", "srun" }) do
			client_refused(pre_submit({ type = kind, gres = "vgpu:mem=8G", partition = "gpu", [name] = "4" }), words)
			for _, unset in ipairs({ "0", "-2" }) do
				local rc = pre_submit({ type = kind, gres = "vgpu:mem=8G", partition = "gpu", [name] = unset })
				equal(rc, 0, "Slurm's value of an option that is not given")
			end
			local rc = pre_submit({ type = kind, gres = "gpu:1", [name] = "4" })
			equal(rc, 0, "without a vgpu")
		end
	end
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

test("srun outside an allocation with bare shards gets a vgpu's units where the site says so", function()
	local rc, written = pre_submit({ type = "srun", gres = "gres:shard:32", partition = "gpu" })
	equal(rc, 0)
	untouched(written)
	restore_site("translate")
	rc, written = pre_submit({ type = "srun", gres = "gres:shard:32,gres:nic:1", partition = "gpu" })
	equal(rc, 0)
	equal(written.gres, "shard:32,vgpu:1,vgpu_mem:8192,vgpu_cores:5,nic:1")
	rc, written = pre_submit({ type = "sbatch", gres = "gres:shard:32", partition = "gpu" })
	untouched(written)
	client_refused(pre_submit({ type = "srun", gres = "shard:560", partition = "gpu" }), "the largest, h200")
end)

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
			client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=4G" }), "a step with a vgpu needs a job that has one")
		end)
	end
end)

test("a step of a heterogeneous job has the units of its component", function()
	local second = string.gsub(string.gsub(UNITS, "8192", "16384"), "shard:279", "shard:300")
	local shown = "JobId=7 HetJobId=7 HetJobOffset=0 JobName=a Partition=gpu TresPerNode=" .. UNITS .. " Comment=\n"
	shown = shown .. "JobId=8 HetJobId=7 HetJobOffset=1 JobName=a Partition=mixed TresPerNode=" .. second .. " Comment=\n"
	shown = shown .. "JobId=9 HetJobId=7 HetJobOffset=2 JobName=HetJobOffset=1 Partition=cpu TresPerNode=gres:gpu:1 \n"
	-- A step of the second component has its units beside the id of the first.
	local here = { SLURM_JOB_ID = "7", SLURM_HET_SIZE = "3", HAMI_HPC_MEM_MIB = "16384", HAMI_HPC_CORES = "50" }
	in_job(here, shown, function()
		local _, written = pre_submit({ type = "srun", gres = "vgpu" })
		equal(written.gres, "shard:279,vgpu_mem:8192,vgpu_cores:50")
		_, written = pre_submit({ type = "srun", gres = "vgpu:mem=16G" }, 1)
		equal(written.gres, "shard:159,vgpu_mem:16384,vgpu_cores:50")
		client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=16G" }), "more than the job has (8192M)")
		client_refused(pre_submit({ type = "srun", gres = "vgpu" }, 2), "needs a job that has one")
		client_refused(pre_submit({ type = "srun", gres = "vgpu" }, 3), "needs a job that has one")
	end)
end)

test("what a job for another cluster may have is for that one to say", function()
	for _, kind in ipairs({ "sbatch", "salloc" }) do
		local rc, written = pre_submit({ type = kind, gres = "vgpu:mem=50%,cores=5", partition = "far", clusters = "two" })
		equal(rc, 0)
		equal(written.gres, "vgpu:mem~50%;cores~5")
	end
	local rc, written = pre_submit({ type = "srun", gres = "vgpu:a100:mem=900G,cores=5", partition = "far", clusters = "two" })
	equal(rc, 0)
	equal(written.gres, "shard:1,vgpu:1,vgpu_mem:921600,vgpu_cores:5")
	equal(written.constraint, "vgpu_type_a100")
	for _, gres in ipairs({ "vgpu:mem=50%,cores=5", "vgpu:mem=8G", "vgpu:2:mem=8G,cores=5", "vgpu:mem=8G,cores=5,type=!x" }) do
		client_refused(pre_submit({ type = "srun", gres = gres, partition = "gpu", clusters = "two,three" }),
			"srun for --clusters=two,three cannot carry this request")
	end
	write_slurm_conf("ClusterName=Two # this one\n")
	client_refused(pre_submit({ type = "salloc", gres = "vgpu:mem=8G", partition = "far", clusters = "two" }), "partition far has no GPU")
	_, written = pre_submit({ type = "srun", gres = "vgpu:mem=50%,cores=5", partition = "gpu", clusters = "two" })
	equal(written.gres, "shard:279,vgpu:1,vgpu_mem:71424,vgpu_cores:5")
end)

test("a step of another cluster's job has what that cluster says of the job, and one shard", function()
	local asked = { ["scontrol -M two -o show job 7 2>/dev/null"] = "JobId=7 JobName=x Partition=gpu "
		.. "TresPerNode=gres:shard:40,gres:vgpu:std:1,gres:vgpu_mem:8192,gres:vgpu_cores:50\n" }
	local function same(written)
		equal(written.gres, "shard:1,vgpu_mem:2048,vgpu_cores:50")
	end
	-- In the shell of salloc -M.
	in_job({ SLURM_JOB_ID = "7", SLURM_WORKING_CLUSTER = "two:10.0.0.1:6817:9728:109" }, asked, function()
		local _, written = pre_submit({ type = "srun", gres = "vgpu:mem=2G" })
		same(written)
		client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=1%" }), "srun for a job of cluster two cannot carry this request")
		client_refused(pre_submit({ type = "srun", gres = "vgpu:mem=9G" }), "more than the job has (8192M)")
	end)
	-- With srun -M, also from a job of this cluster with the same number.
	in_job(IN_STEP, asked, function()
		local _, written = pre_submit({ type = "srun", gres = "vgpu:mem=2G", jobid = "7", clusters = "two" })
		same(written)
	end)
	-- Of several, the job's environment says which.
	for _, clusters in ipairs({ "two,one", "all", "" }) do
		in_job(IN_STEP, nil, function()
			local _, written = pre_submit({ type = "srun", gres = "vgpu:mem=1%", clusters = clusters })
			equal(written.gres, "shard:279,vgpu_mem:1280,vgpu_cores:50")
		end)
	end
	-- Slurm names the job's cluster in every job.
	write_slurm_conf("ClusterName=Two\n")
	local here = { SLURM_WORKING_CLUSTER = "Two:10.0.0.1:6817:9728:109" }
	in_job(setmetatable(here, { __index = IN_STEP }), nil, function()
		local _, written = pre_submit({ type = "srun", gres = "vgpu:mem=1%" })
		equal(written.gres, "shard:279,vgpu_mem:1280,vgpu_cores:50")
	end)
end)

test("a step with a GPU type that its job's partition does not have is refused", function()
	in_job(IN_STEP, nil, function()
		client_refused(pre_submit({ type = "srun", gres = "vgpu:a100:mem=1G" }), "GPU type 'a100' is not in partition gpu")
		client_refused(pre_submit({ type = "srun", gres = "vgpu:type=!h200,mem=1G" }), "type=!h200")
		local rc, written = pre_submit({ type = "srun", gres = "vgpu:h200:mem=1G" })
		equal(rc, 0)
		equal(written.gres, "shard:279,vgpu_mem:1024,vgpu_cores:50")
	end)
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
