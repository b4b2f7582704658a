-- SPDX-License-Identifier: Apache-2.0
-- The filter in the client (sbatch, salloc, srun): rewrites requests for Slurm's parsers, checks them early, and
-- translates the requests of steps.
--
-- Slurm's clients would refuse "vgpu:mem=8G,cores=50"; slurm_cli_pre_submit runs before that check. A job gets one
-- token, "vgpu:mem~8G;cores~50", which job_submit translates. Steps do not pass through job_submit, so they are
-- translated here; slurmctld limits them to the job's units, whatever the client sends.

return function(contract, errors, grammar, units, features, settings)
	local M = {}
	local fail = errors.fail
	local GRES = contract.gres
	local OTHER_OPTIONS = { "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-per-task" }

	local function split_list(text)
		local items = {}
		for item in string.gmatch(text or "", "[^,]+") do
			items[#items + 1] = item
		end
		return items
	end

	local function set_gres(options, first, others)
		local tokens = grammar.without_prefixes(others)
		for i, token in ipairs(first) do
			table.insert(tokens, i, token)
		end
		options.gres = table.concat(tokens, ",")
	end

	-- Returns the id of the job in which srun starts a step, as text; nil if srun submits a job of its own.
	local function job_of(options)
		local id = string.match(options.jobid or "", "^[0-9][0-9_+]*$") or os.getenv("SLURM_JOB_ID")
		return id and string.match(id, "^[0-9]+")
	end

	-- Returns mem_mib, cores and partition of the job, or nil if it has no vgpu. Reads them from the environment in a step
	-- of the job, else (in the shell of salloc, or for srun --jobid) from slurmctld.
	local function job_units(job_id)
		local mem_mib = tonumber(os.getenv("HAMI_HPC_MEM_MIB") or "")
		local cores = tonumber(os.getenv("HAMI_HPC_CORES") or "")
		if mem_mib and cores and os.getenv("SLURM_JOB_ID") == job_id then
			return { mem_mib = mem_mib, cores = cores, partition = os.getenv("SLURM_JOB_PARTITION") }
		end
		local pipe = io.popen("scontrol -o show job " .. job_id .. " 2>/dev/null", "r")
		local line = pipe and pipe:read("*l") or ""
		if pipe then
			pipe:close()
		end
		local units_of_job = grammar.parse_units(string.match(line, " TresPerNode=(%S+)") or "", true)
		if not units_of_job then
			return nil
		end
		local partition = string.match(line, " Partition=(%S+)")
		return { mem_mib = units_of_job.request.mem_mib, cores = units_of_job.request.cores, partition = partition }
	end

	-- Returns the shards for a request with mem_mib and cores. If several GPU models are possible, returns the fewest: a
	-- step with fewer shards still gets exactly its memory and cores, while too many shards could keep it from starting.
	-- So there are no more than those of the MIG instance that the job may be.
	local function step_shards(request, site, partitions, job)
		local fewest, instance
		for _, name in ipairs(site and partitions or {}) do
			for _, model in ipairs((site.partitions[name] or { gpu_models = {} }).gpu_models) do
				local succeeded, _, shards = pcall(units.capacity, site, model)
				if succeeded and (not request.gpu_type or request.gpu_type == model) then
					fewest = math.min(fewest or shards, shards)
				end
				for _, profile in ipairs(succeeded and site.gpu_models[model].mig or {}) do
					if profile.mem_mib == job.mem_mib and profile.cores == job.cores then
						instance = math.min(instance or profile.shards, profile.shards)
					end
				end
			end
		end
		if not fewest or fewest < 1 then
			return 1
		end
		local for_mem = math.min(fewest, math.ceil(request.mem_mib / site.shard_mib))
		local shards = math.max(1, for_mem, math.floor(fewest * request.cores / 100))
		return math.min(shards, instance or shards)
	end

	-- Translates the request of an srun inside an allocation to units.
	local function translate_step(options, text, job_id)
		local classes = settings.classes()
		if grammar.has_raw_units(text, classes) then
			return
		end
		local parsed = grammar.parse(text, classes)
		local job = job_units(job_id)
		if not job then
			fail("E_STEP_OUTSIDE")
		end
		local request = parsed.request
		local site, reason = settings.read()
		local partitions = split_list(job.partition)
		local mem_mib = request.mem_mib or job.mem_mib
		if request.mem_percent then
			if not site then
				fail("E_SITE", { given = reason })
			end
			mem_mib = units.resolve({ gpu_type = request.gpu_type, mem_percent = request.mem_percent, cores = 1 }, site, partitions).mem_mib
		end
		local cores = request.cores or job.cores
		if mem_mib > job.mem_mib then
			local given = string.match(grammar.canonical(request), "mem=([^;]*)")
			fail("E_STEP_TOO_BIG", { key = "mem", given = given, allowed = string.format("%dM", job.mem_mib) })
		elseif cores > job.cores then
			fail("E_STEP_TOO_BIG", { key = "cores", given = cores, allowed = string.format("%d", job.cores) })
		end
		local step = { gpu_type = request.gpu_type, mem_mib = mem_mib, cores = cores }
		step.shards = step_shards(step, site, partitions, job)
		set_gres(options, grammar.step_tokens(step), parsed.others)
	end

	local function add_constraint(options, wanted)
		local constraint = features.combine(options.constraint, wanted)
		if constraint and constraint ~= options.constraint then
			options.constraint = constraint
		end
	end

	local function all_partitions(site)
		local names = {}
		for name in pairs(site.partitions) do
			names[#names + 1] = name
		end
		table.sort(names)
		return names
	end

	-- Translates the request of an srun outside an allocation to units, because Slurm uses one list for the job and its
	-- step. job_submit reads them back and computes the shards again; the constraint carries mode, policy and
	-- type.
	local function translate_srun_job(options, parsed)
		local request = parsed.request
		grammar.check_length("--constraint", options.constraint or "")
		local site, reason = settings.read()
		local wanted = split_list(options.partition)
		features.complete(request, options.constraint)
		local succeeded, result
		if site then
			-- The client does not know the default partition, so without --partition all partitions must agree.
			succeeded, result = pcall(units.resolve, request, site, #wanted > 0 and wanted or all_partitions(site))
		else
			result = errors.new("E_SITE", { given = reason })
		end
		local needs_site = request.mig or request.isolation or request.mode == contract.request.mode_auto
		if not succeeded and (#wanted > 0 and site or needs_site or not request.mem_mib or not request.cores) then
			error(result, 0)
		elseif not succeeded then
			result = { shards = 1, mem_mib = request.mem_mib, cores = request.cores, slo_us = request.slo_us }
		end
		set_gres(options, grammar.job_tokens(result, ""), parsed.others)
		add_constraint(options, result.features or units.features(request, request.mode))
	end

	-- Translates bare shards of an srun outside an allocation if the site translates them to a vgpu, because job and step
	-- need its units. Leaves all other cases to job_submit and to Slurm.
	local function translate_srun_shards(options, text)
		local shards = grammar.find_token(text, GRES.shard) and grammar.parse_shards(text)
		local site = shards and settings.read()
		if not site or site.bare_shard ~= "translate" then
			return
		end
		local wanted = split_list(options.partition)
		local partitions = #wanted > 0 and wanted or all_partitions(site)
		shards.request = units.of_shards(shards.count, features.type_of(options.constraint), site, partitions)
		translate_srun_job(options, shards)
	end

	local function glue_job(options, parsed)
		local site = settings.read()
		grammar.check_length("--constraint", options.constraint or "")
		local wanted = split_list(options.partition)
		if site and #wanted > 0 then
			local request = parsed.request
			local gpu_type, mode = request.gpu_type, request.mode
			features.complete(request, options.constraint)
			units.resolve(request, site, wanted)
			request.gpu_type, request.mode = gpu_type, mode
		end
		set_gres(options, { grammar.glued(parsed.request) }, parsed.others)
	end

	function M.pre_submit(options)
		for _, name in ipairs(OTHER_OPTIONS) do
			local value = options[name]
			if value and grammar.carries(value) then
				fail("E_OPTION", { key = "--" .. name, given = value })
			end
		end
		local text = options.gres
		if not text then
			return
		end
		local is_srun = options.type == "srun"
		local job_id = is_srun and job_of(options)
		if not grammar.mentions(text) then
			return is_srun and not job_id and translate_srun_shards(options, text)
		end
		grammar.check_length("--gres", text)
		if job_id then
			return translate_step(options, text, job_id)
		end
		local parsed = grammar.parse(text, settings.classes())
		local gpus = options.gpus or options["gpus-per-node"] or options["gpus-per-task"] or options["gpus-per-socket"]
		if gpus then
			fail("E_WITH_GPU", { given = "gpu:" .. gpus })
		elseif is_srun then
			translate_srun_job(options, parsed)
		else
			glue_job(options, parsed)
		end
	end

	-- Returns whether this command mentions vgpu. Used only after an internal error.
	function M.concerns(options)
		local all = options.gres or ""
		for _, name in ipairs(OTHER_OPTIONS) do
			all = all .. (options[name] or "")
		end
		return string.find(all, contract.request.name, 1, true) ~= nil
	end

	return M
end
