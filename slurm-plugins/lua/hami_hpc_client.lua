-- SPDX-License-Identifier: Apache-2.0
-- The filter in the client (sbatch, salloc, srun): rewrites requests for Slurm's parsers, and checks them early.
--
-- Slurm's clients would refuse "vgpu:mem=8G,cores=50"; slurm_cli_pre_submit runs before that check. A job gets one
-- token, "vgpu:mem~8G;cores~50", which job_submit translates. What srun asks for is translated here (hami_hpc_steps.lua).

return function(errors, grammar, units, features, settings, slurm_conf, whole, steps)
	local M = {}
	local fail = errors.fail
	-- Slurm takes these for jobs with gres/gpu alone, and refuses others without a reason.
	local PER_GPU = {
		{ "cpus-per-gpu", "ask for CPUs with --cpus-per-task=N" },
		{ "mem-per-gpu", "ask for memory of the node with --mem=16G" },
		{ "ntasks-per-gpu", "ask for tasks with --ntasks=N" },
		{ "gpu-freq", "leave it out" },
	}
	local PLACEHOLDER_NAME = "hami-hpc-drain" -- of root's jobs; from others job_submit takes no such units
	local OTHER_OPTIONS = { "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-per-task" }

	-- `others`: the clusters that the job is for, if not this one. Their job_submit alone knows whether it fits.
	local function glue_job(options, parsed, others)
		local site = not others and settings.read()
		grammar.check_length("--constraint", options.constraint or "")
		local wanted = grammar.split_list(options.partition)
		if site and #wanted > 0 then
			local request = {} -- job_submit gets what was written
			for key, value in pairs(parsed.request) do
				request[key] = value
			end
			units.apply_preset(request, site)
			features.complete(request, options.constraint)
			units.resolve(request, site, wanted)
		end
		options.gres = grammar.joined({ grammar.glued(parsed.request) }, parsed.others)
	end

	local function check_per_gpu(options)
		for _, row in ipairs(PER_GPU) do
			local value = options[row[1]]
			if value and value ~= "0" and value ~= "-2" then -- an unset number is 0 or NO_VAL
				fail("E_PER_GPU", { key = row[1], given = value, allowed = row[2] })
			end
		end
	end

	-- Returns the partitions of a command: those of the job in which srun starts a step, else those that it asks for.
	local function partitions_of(options, job_id, offset)
		local of_component = job_id and os.getenv("SLURM_JOB_PARTITION_HET_GROUP_" .. offset)
		local of_job = of_component or job_id and os.getenv("SLURM_JOB_PARTITION")
		return grammar.split_list(of_job or options.partition)
	end

	-- `offset` is the component of a heterogeneous job that the options are of. srun calls once for each component.
	function M.pre_submit(options, offset)
		if options.type == "salloc" and options["job-name"] == PLACEHOLDER_NAME then
			return
		end
		for _, name in ipairs(OTHER_OPTIONS) do
			local value = options[name]
			if value and grammar.carries(value) then
				fail("E_OPTION", { key = "--" .. name, given = value })
			end
		end
		local is_srun = options.type == "srun"
		local job_id = is_srun and steps.job_of(options)
		local others = not job_id and slurm_conf.other_clusters(options.clusters) or nil
		if is_srun and not others then
			local wanted = whole.translate_srun(options, partitions_of(options, job_id, offset))
			if not job_id then
				steps.add_constraint(options, wanted)
			end
		end
		local text = options.gres
		if not text then
			return
		end
		if not grammar.mentions(text) then
			local misspelt = grammar.misspelt(text)
			if misspelt then
				fail("E_FORM", { given = misspelt })
			end
			return is_srun and not job_id and not others and steps.translate_shards(options, text)
		end
		grammar.check_length("--gres", text)
		check_per_gpu(options)
		if job_id then
			return steps.translate_step(options, text, job_id, offset, slurm_conf.other_cluster_of_job(options.clusters))
		end
		local parsed = grammar.parse(text, settings.classes())
		local gpus = options.gpus or options["gpus-per-node"] or options["gpus-per-task"] or options["gpus-per-socket"]
		if gpus then
			fail("E_WITH_GPU", { given = "gpu:" .. gpus })
		elseif is_srun then
			steps.translate_job(options, parsed, others)
		else
			glue_job(options, parsed, others)
		end
	end

	return M
end
