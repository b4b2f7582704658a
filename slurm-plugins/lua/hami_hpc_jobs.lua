-- SPDX-License-Identifier: Apache-2.0
-- job_submit and job_modify: the authority that turns a job's request into what slurmctld schedules.

return function(contract, errors, grammar, units, features, settings)
	local M = {}
	local fail = errors.fail
	local GRES = contract.gres
	local PENDING = 0
	local EXCLUSIVE = 0 -- JOB_SHARED_NONE in job_desc.shared
	local STATE_FLAGS = 256 -- job_state: the state is in the low byte, flags are above

	-- Where Slurm keeps what its other options ask for.
	local OTHER_FIELDS = {
		{ "tres_per_job", "--gpus" },
		{ "tres_per_socket", "--gpus-per-socket" },
		{ "tres_per_task", "--gpus-per-task or --tres-per-task" },
	}

	local function split_list(text)
		local out = {}
		for item in string.gmatch(text or "", "[^,]+") do
			out[#out + 1] = item
		end
		return out
	end

	-- vgpu in an option other than --gres is refused with the spelling that works.
	local function refuse_other_options(job, text)
		for _, row in ipairs(OTHER_FIELDS) do
			local value = job[row[1]]
			if value and grammar.carries(value) then
				fail("E_OPTION", { key = row[2], given = value })
			end
		end
		if grammar.carries_in_gpu(text) then
			fail("E_OPTION", { key = "--gpus-per-node", given = text })
		end
	end

	local function refuse_bare_shard(job, text)
		for _, value in ipairs({ text, job.tres_per_job or "", job.tres_per_socket or "", job.tres_per_task or "" }) do
			local found = grammar.find_token(value, GRES.shard)
			if found and settings.need().bare_shard == "refuse" then
				fail("E_BARE_SHARD", { given = found })
			end
		end
	end

	-- Whole GPUs or shards asked for by another option of the same job.
	local function refuse_conflicts(job)
		for _, row in ipairs(OTHER_FIELDS) do
			local value = job[row[1]] or ""
			local gpu = grammar.find_token(value, "gpu")
			local shard = grammar.find_token(value, GRES.shard)
			if gpu then
				fail("E_WITH_GPU", { given = gpu })
			elseif shard then
				fail("E_WITH_SHARD", { given = shard })
			end
		end
	end

	-- Names of the partitions a job may go to: those asked for, else the default one.
	local function partitions_of(wanted, parts)
		local out = split_list(wanted)
		if #out == 0 then
			for name, part in pairs(parts or {}) do
				if part.flag_default == 1 then
					out[1] = name
				end
			end
		end
		return #out > 0 and out or { "(default)" }
	end

	-- srun outside an allocation sends one gres list for the job and for its step, so the client translates it to
	-- plain units (see hami_hpc_steps.lua). Their shards are counted again here; nothing else sends that form.
	local function parse_job(text, from_srun)
		return from_srun and grammar.parse_units(text) or grammar.parse(text)
	end

	-- Writes the units of `parsed` into `job`. `at` holds partitions, qos and the --constraint in force.
	local function place(job, parsed, at)
		local site = settings.need()
		local request = parsed.request
		request.gpu_type = request.gpu_type or features.type_of(at.features)
		local result = units.resolve(request, site, at.partitions, at.qos)
		local tokens = grammar.job_tokens(result, parsed.prefix, result.service_class)
		for _, token in ipairs(parsed.others) do
			tokens[#tokens + 1] = token
		end
		local list = table.concat(tokens, ",")
		if list ~= job.tres_per_node then
			job.tres_per_node = list
		end
		local constraint = features.combine(at.features, at.keep or result.features, at.replace)
		if constraint and constraint ~= job.features then
			job.features = constraint
		end
		slurm.log_debug("%s", contract.errors.prefix .. grammar.canonical(request) .. " is " .. list)
	end

	function M.submit(job, parts)
		local text = job.tres_per_node or ""
		refuse_other_options(job, text)
		local parsed = parse_job(text, job.script == nil)
		if not parsed then
			return refuse_bare_shard(job, text)
		end
		refuse_conflicts(job)
		if job.shared == EXCLUSIVE then
			fail("E_EXCLUSIVE")
		end
		local qos = job.qos
		if not qos or qos == "" then
			qos = job.default_qos
		end
		place(job, parsed, { partitions = partitions_of(job.partition, parts), qos = qos, features = job.features })
	end

	-- The QoS that a job has after the update: a new one, the default ("" asks for it), or the old one.
	local function qos_after(job, record)
		if job.qos == "" then
			return job.default_qos
		end
		return job.qos or record.qos
	end

	-- Slurm merges an update into what a pending job asks for: a gres or type that is not named stays (tried, 22.05). So
	-- a class cannot be exchanged, and gres=shard:1 would leave a job its vgpu_mem on a single shard.
	local function refuse_merges(job, record, text, parsed, held)
		refuse_conflicts(job)
		if text and not parsed then
			fail("E_UPDATE_KEEPS", { given = text })
		end
		local qos = qos_after(job, record)
		if held and (job.qos or parsed) and units.class_of(settings.need(), qos) ~= held.service_class then
			fail("E_CLASS_CHANGE", { given = qos })
		end
	end

	-- Another partition or constraint for a pending job whose request stays: its shards and our features follow.
	local function follow_change(job, record, parts, held)
		held.request.gpu_type = features.type_of(record.features)
		place(job, held, {
			partitions = partitions_of(job.partition or record.partition, parts),
			qos = qos_after(job, record),
			features = job.features or record.features,
			keep = features.ours(record.features),
			replace = true,
		})
	end

	function M.modify(job, record, parts)
		local text, old = job.tres_per_node, record.tres_per_node or ""
		local is_pending = record.job_state % STATE_FLAGS == PENDING
		refuse_other_options(job, text or "")
		local parsed = text and grammar.parse(text)
		local held = grammar.parse_units(old, true)
		if parsed and not is_pending then
			fail("E_UPDATE")
		elseif grammar.mentions(old) then
			refuse_merges(job, record, text, parsed, held)
		end
		if parsed then
			refuse_conflicts(job)
			place(job, parsed, {
				partitions = partitions_of(job.partition or record.partition, parts),
				qos = qos_after(job, record),
				features = job.features or record.features,
				replace = true,
			})
		elseif text then
			refuse_bare_shard(job, text)
		elseif held and is_pending and (job.partition or job.features) then
			follow_change(job, record, parts, held)
		end
	end

	-- Does this job concern us at all? Only asked when something went wrong.
	function M.concerns(job, record)
		local all = (job.tres_per_node or "") .. (job.tres_per_job or "") .. (job.tres_per_task or "")
		all = all .. (job.tres_per_socket or "") .. (record and record.tres_per_node or "")
		return string.find(all, contract.request.name, 1, true) ~= nil
	end

	return M
end
