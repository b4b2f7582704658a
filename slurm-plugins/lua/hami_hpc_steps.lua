-- SPDX-License-Identifier: Apache-2.0
-- What srun asks for, translated to units in the client: steps do not pass through job_submit, and srun's own job has one
-- list with its step. slurmctld limits steps to the job's units, whatever the client sends.

return function(contract, errors, grammar, units, features, settings, step_places)
	local M = {}
	local fail = errors.fail
	local GRES = contract.gres

	-- Returns the id of the job in which srun starts a step, as text; nil if srun submits a job of its own.
	function M.job_of(options)
		local id = string.match(options.jobid or "", "^[0-9][0-9_+]*$") or os.getenv("SLURM_JOB_ID")
		return id and string.match(id, "^[0-9]+")
	end

	-- Returns a number from 0 to `below` - 1 that differs from one command to the next.
	local function any_number(below)
		local seed = os.time()
		for digits in string.gmatch(tostring({}) .. os.clock(), "%d+") do
			seed = (seed * 31 + tonumber(digits)) % 2147483647
		end
		return seed % below
	end

	-- Returns the units of the job as the environment in a step of it has them, or nil: count, and mem_mib, cores and shards
	-- of each slice. The shards may be missing.
	local function units_here(job_id)
		local mem_mib = tonumber(os.getenv("HAMI_HPC_MEM_MIB") or "")
		local cores = tonumber(os.getenv("HAMI_HPC_CORES") or "")
		local count = tonumber(os.getenv("HAMI_HPC_VGPU") or "1") or 1
		local shards = tonumber(os.getenv("SLURM_SHARDS_ON_NODE") or "")
		if not mem_mib or not cores or os.getenv("SLURM_JOB_ID") ~= job_id then
			return nil
		elseif count < 1 or mem_mib % count ~= 0 or cores % count ~= 0 then
			return nil
		end
		return {
			count = count,
			mem_mib = mem_mib / count,
			cores = cores / count,
			shards = shards and shards % count == 0 and shards / count or nil,
			partition = os.getenv("SLURM_JOB_PARTITION"),
		}
	end

	-- Returns the command that asks slurmctld; `other`: the cluster of the job, if not this one.
	local function scontrol_of(other)
		return "scontrol" .. (other and " -M " .. other or "") .. " -o"
	end

	-- Returns what scontrol shows of the job, in one line; of a heterogeneous job, of its component `offset`. "" if slurmctld
	-- knows none.
	local function shown_job(job_id, offset, other)
		local pipe = io.popen(scontrol_of(other) .. " show job " .. job_id .. " 2>/dev/null", "r")
		local text = pipe and pipe:read("*a") or ""
		if pipe then
			pipe:close()
		end
		for line in string.gmatch(text, "[^\n]+") do
			local id, component = string.match(line, "^JobId=(%d+)"), string.match(line, "^JobId=%d+ .-HetJobOffset=(%d+) ")
			if component and tonumber(component) == offset or not component and id == job_id then
				return line
			end
		end
		return ""
	end

	-- Returns id, count, mem_mib, cores, shards (nil: not known) and partition of the job, or nil if it has no vgpu. Reads
	-- them from the environment in a step of the job, else (in the shell of salloc, or for srun --jobid) from slurmctld.
	-- That alone knows the types of several slices (places). In a heterogeneous job, where the environment may be that of
	-- another component, the job is its component `offset`. The environment is that of a job of this cluster; `other`: the
	-- job is of that one.
	local function job_units(job_id, offset, other, with_places)
		local here = not other and not with_places and not os.getenv("SLURM_HET_SIZE") and units_here(job_id)
		if here then
			return here
		end
		local line = shown_job(job_id, offset, other)
		local list = string.match(line, " TresPerNode=(%S+)") or ""
		local units_of_job = grammar.parse_units(list, true)
		if not units_of_job then
			return nil
		end
		local request = units_of_job.request
		return {
			id = string.match(line, "^JobId=(%d+)"),
			count = request.count or 1,
			mem_mib = request.mem_mib,
			cores = request.cores,
			shards = tonumber(string.match(list, GRES.shard .. ":%a[:=]([0-9]+)") or ""),
			places = units_of_job.places,
			partition = string.match(line, " Partition=(%S+)"),
		}
	end

	-- Gives a step of a job with several slices whole ones, so that each slice is of one step at a time. slurmctld finds a
	-- GPU for one slice itself; several need their types, and a GPU has only one.
	local function place_step(step, job, job_id, offset, other, count)
		step.count = count
		step.mem_mib, step.cores = step.mem_mib * count, step.cores * count
		if count == 1 then
			return
		end
		local known = job.places and job or job_units(job_id, offset, other, true) or {}
		local names = known.places or {}
		if count < job.count and known.id then
			step.places = step_places.choose(known.id, job_id, names, count, settings.classes(), scontrol_of(other))
		else
			step.places = names
		end
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

	-- Returns the site's table, or nil and the error of a request that needs it. `given`: what is of other clusters, whose
	-- settings are not here, in words; nil if nothing is.
	local function read_site(given)
		if given then
			return nil, errors.new("E_CLUSTER", { given = given })
		end
		local site, reason = settings.read()
		return site, not site and errors.new("E_SITE", { given = reason }) or nil
	end

	-- Translates the request of an srun inside an allocation to units. `offset` is the component of a heterogeneous job,
	-- `other` the cluster of the job, if not this one.
	function M.translate_step(options, text, job_id, offset, other)
		local classes = settings.classes()
		if grammar.has_raw_units(text, classes) then
			return
		end
		local parsed = grammar.parse(text, classes)
		local job = job_units(job_id, offset, other)
		if not job then
			fail("E_STEP_OUTSIDE")
		end
		local request = parsed.request
		local count = request.count or 1
		if count > job.count then
			fail("E_STEP_TOO_BIG", { key = "count", given = count, allowed = string.format("%d", job.count) })
		end
		local site, no_site = read_site(other and "a job of cluster " .. other)
		local partitions = grammar.split_list(job.partition)
		if no_site and (request.preset or request.mem_percent) then
			error(no_site, 0)
		elseif request.preset then
			units.apply_preset(request, site)
		end
		if site and (request.gpu_type or request.type) then
			units.candidates(site, request, partitions) -- refuses a type that the job's partition does not have
		end
		local mem_mib = request.mem_mib or job.mem_mib
		if request.mem_percent then
			local of_gpu = { gpu_type = request.gpu_type, type = request.type, mem_percent = request.mem_percent, cores = 1 }
			units.check_percentages(of_gpu, site, partitions)
			mem_mib = units.resolve(of_gpu, site, partitions).mem_mib
		end
		local cores = request.cores or job.cores
		if mem_mib > job.mem_mib then
			local given = string.match(grammar.canonical(request), "mem=([^;]*)")
			fail("E_STEP_TOO_BIG", { key = "mem", given = given, allowed = string.format("%dM", job.mem_mib) })
		elseif cores > job.cores then
			fail("E_STEP_TOO_BIG", { key = "cores", given = cores, allowed = string.format("%d", job.cores) })
		end
		local step = { gpu_type = request.gpu_type, mem_mib = mem_mib, cores = cores }
		if job.count > 1 then
			step.shards = job.shards or step_shards(job, site, partitions, job)
			place_step(step, job, job_id, offset, other, count)
		else
			step.shards = step_shards(step, site, partitions, job)
		end
		options.gres = grammar.joined(grammar.step_tokens(step), parsed.others)
	end

	function M.add_constraint(options, wanted)
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

	-- Returns the units of a request of srun that may be in any partition of the site, as it names none. The step asks for as
	-- few shards as the job can have in any of them: with more than the job has it would not start.
	local function resolve_anywhere(request, site)
		local partitions, turn = all_partitions(site), any_number(site.slices_max)
		units.check_percentages(request, site, partitions)
		local result = units.resolve(request, site, partitions, nil, turn)
		for _, name in ipairs(partitions) do
			result.shards = math.min(result.shards, units.resolve(request, site, { name }, nil, turn).shards)
		end
		return result
	end

	-- Translates the request of an srun outside an allocation to units, because Slurm uses one list for the job and its
	-- step. job_submit reads them back and computes the shards again; the constraint carries mode, policy and
	-- type. `others`: the clusters that the job is for, if not this one, whose settings are not here.
	function M.translate_job(options, parsed, others)
		local request = parsed.request
		grammar.check_length("--constraint", options.constraint or "")
		local site, no_site = read_site(others and "--clusters=" .. others)
		local wanted = grammar.split_list(options.partition)
		if site then
			units.apply_preset(request, site)
		end
		features.complete(request, options.constraint)
		local succeeded, result
		if site then
			-- The client does not know the default partition, so without --partition all partitions must allow it.
			if #wanted > 0 then
				wanted = units.narrowed(request, site, wanted)
				succeeded, result = pcall(units.resolve, request, site, wanted, nil, any_number(site.slices_max))
			else
				succeeded, result = pcall(resolve_anywhere, request, site)
			end
		else
			result = no_site
		end
		local needs_site = request.count or request.mig or request.isolation or request.mode == contract.request.mode_auto
		needs_site = needs_site or request.preset or request.type
		if not succeeded and (#wanted > 0 and site or needs_site or not request.mem_mib or not request.cores) then
			error(result, 0)
		elseif not succeeded then
			result = { shards = 1, mem_mib = request.mem_mib, cores = request.cores, slo_us = request.slo_us }
		end
		options.gres = grammar.joined(grammar.job_tokens(result, ""), parsed.others)
		M.add_constraint(options, result.features or units.features(request, request.mode))
	end

	-- Translates bare shards of an srun outside an allocation if the site translates them to a vgpu, because job and step
	-- need its units. Leaves all other cases to job_submit and to Slurm.
	function M.translate_shards(options, text)
		local shards = grammar.find_token(text, GRES.shard) and grammar.parse_shards(text)
		local site = shards and settings.read()
		if not site or site.bare_shard ~= "translate" then
			return
		end
		local wanted = grammar.split_list(options.partition)
		local partitions = #wanted > 0 and wanted or all_partitions(site)
		shards.request = units.of_shards(shards.count, features.type_of(options.constraint), site, partitions)
		M.translate_job(options, shards)
	end

	return M
end
