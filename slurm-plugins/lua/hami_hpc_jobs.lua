-- SPDX-License-Identifier: Apache-2.0
-- job_submit and job_modify, in slurmctld: check a job's request and translate it into the units that are scheduled.

return function(contract, errors, grammar, units, features, settings, slurm_conf, whole)
	local M = {}
	local fail = errors.fail
	local GRES = contract.gres
	local PENDING = 0
	local EXCLUSIVE = 0 -- JOB_SHARED_NONE in job_desc.shared, and max_share of a partition with OverSubscribe=EXCLUSIVE
	local SPANK_ENV_MAX = 32768 -- bytes; the kernel starts no program with 131,072 in one variable
	local PLACEHOLDER_NAME = "hami-hpc-drain" -- root's jobs that hold a GPU out of service: docs/adr/028
	local TURNS = 720720 -- that all numbers of places up to 16 divide
	local turn = 0 -- of the places of the next job with several slices; a restart of slurmctld begins again
	local STATE_FLAGS = 256 -- job_state: the state is in the low byte, flags are in the higher ones

	-- The fields in which Slurm stores the values of other options.
	local OTHER_FIELDS = {
		{ "tres_per_job", "--gpus" },
		{ "tres_per_socket", "--gpus-per-socket" },
		{ "tres_per_task", "--gpus-per-task or --tres-per-task" },
	}

	-- Returns the fields of a job in which it can ask for gres. Slurm makes a string for each reading of one.
	local function gres_fields(job)
		local fields = { tres_per_node = job.tres_per_node }
		for _, row in ipairs(OTHER_FIELDS) do
			fields[row[1]] = job[row[1]]
		end
		return fields
	end

	-- Refuses vgpu in an option other than --gres, and names the option that works.
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

	-- Checks the lengths of the other options that are parsed for a vgpu request.
	local function check_lengths(at)
		grammar.check_length("--constraint", at.features or "")
		grammar.check_length("--prefer", at.prefer or "")
		grammar.check_length("--partition", table.concat(at.partitions, ","))
	end

	-- Returns the token by which a job asks for shards, or nil, and whether it is in an option other than --gres.
	local function find_shards(job, text)
		for _, row in ipairs(OTHER_FIELDS) do
			local token = grammar.find_token(job[row[1]] or "", GRES.shard)
			if token then
				return token, true
			end
		end
		return grammar.find_token(text, GRES.shard), false
	end

	-- Refuses bare shards, because they limit neither memory nor time. If the site translates them, returns the vgpu of
	-- that size, as a parsed request. Returns nil if there are none, or the site allows them.
	local function read_bare_shards(job, text, at)
		local token, is_other_option = find_shards(job, text)
		local site = token and settings.need()
		if not token or site.bare_shard == "allow" then
			return nil
		end
		local shards = site.bare_shard == "translate" and not is_other_option and grammar.parse_shards(text)
		if not shards then
			fail("E_BARE_SHARD", { given = token })
		end
		check_lengths(at)
		shards.request = units.of_shards(shards.count, features.type_of(at.features), site, at.partitions)
		return shards
	end

	-- Limits what a client sends for SPANK plugins (spank_job_env), whatever the job asks for. Slurm puts it into the
	-- environment of prolog and epilog. If it is more than execve accepts, both fail and Slurm drains the node.
	local function check_spank_env(job)
		local bytes = 0
		for _, entry in pairs(job.spank_job_env or {}) do
			bytes = bytes + #entry + 1
		end
		if bytes > SPANK_ENV_MAX then
			fail("E_SPANK_ENV", { given = bytes, allowed = SPANK_ENV_MAX })
		end
	end

	-- Refuses whole GPUs and shards that another option of the same job asks for.
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

	-- Returns the names of the partitions a job may run in: those asked for, else the default one.
	local function partitions_of(wanted, parts)
		local names = grammar.split_list(wanted)
		if #names == 0 then
			for name, part in pairs(parts or {}) do
				if part.flag_default == 1 then
					names[1] = name
				end
			end
		end
		return #names > 0 and names or { "(default)" }
	end

	-- Returns whether each job in a partition holds whole nodes.
	local function is_exclusive(parts, name)
		return parts and parts[name] and parts[name].max_share == EXCLUSIVE or false
	end

	-- Refuses a vgpu in a job with whole nodes. Such a job holds all GPUs of its nodes, so the vgpu would wait for GPUs
	-- that the job itself holds.
	local function refuse_whole_nodes(job, partitions, parts)
		if job.shared == EXCLUSIVE then
			fail("E_EXCLUSIVE")
		end
		for _, name in ipairs(partitions) do
			if is_exclusive(parts, name) then
				fail("E_EXCLUSIVE_PARTITION", { where = units.where_text({ name }) })
			end
		end
	end

	-- Returns the class that a job gets by its QoS. Classes differ in policy and price. So if Slurm lets anybody use any
	-- QoS, only the default QoS, which the administrator set, gives a class; any other QoS gives std and a message.
	local function class_of(site, qos, default_qos)
		local class = units.class_of(site, qos)
		if class == contract.classes.default or string.lower(qos) == string.lower(default_qos or "") then
			return class
		end
		local is_enforced, reason = slurm_conf.qos_is_enforced(site)
		if is_enforced then
			return class
		end
		slurm.log_user("%s", errors.new("E_CLASS_NOT_ENFORCED", { given = qos, allowed = reason }).message)
		return contract.classes.default
	end

	-- Parses a gres list as a user may write it. Reads the settings, for the names of the classes, only for a vgpu.
	local function parse_request(text)
		return grammar.mentions(text) and grammar.parse(text, settings.classes()) or nil
	end

	-- srun outside an allocation sends one gres list for the job and for its step, so the client translates it to
	-- plain units (see hami_hpc_steps.lua). Of users only srun sends that form; its shards are computed again here. In a
	-- federation root does too: slurmctld sends a job that was held, waited for another or is requeued to the other clusters
	-- with the units that it has, those of its class included.
	local function parse_job(text, from_srun, from_root)
		return (from_srun or from_root) and grammar.parse_units(text, from_root) or parse_request(text)
	end

	-- Returns `expression` (nil or a --constraint) with the features of a job whose units are `result`.
	local function with_features(expression, at, result)
		local combined = features.combine(expression, at.keep or result.features, at.replace)
		if result.mode then
			combined = features.combine(combined, units.features({}, result.mode))
			features.check_modes(combined, result.mode)
		end
		return combined
	end

	-- Returns the value for --prefer, or nil to leave it alone. Slurm tries the preferred features in place of the
	-- constraint, and signs those that it used, so they include ours. An update does not show what the job prefers. So one
	-- that changes our features makes that the constraint.
	local function preferred_features(job, at, result, constraint)
		if job.prefer and job.prefer ~= "" then
			return with_features(job.prefer, at, result)
		elseif at.replace and features.differ(at.old_features, constraint) then
			return constraint
		end
		return nil
	end

	-- Returns the number of the first place for a job with `count` slices (nil: one): each such job begins where the one
	-- before it ended. job_submit knows no job id.
	local function next_turn(count)
		local first = turn
		turn = (turn + (count or 0)) % TURNS
		return first
	end

	-- Returns the places that a job has already and keeps: those that the client gave srun's job and step, or those of a
	-- pending job. nil: it has none, or srun's are not there.
	local function places_kept(parsed, at, site)
		local request = parsed.request
		if at.places and request.count then
			units.check_places(request, site, at.partitions, at.places)
			return at.places
		elseif parsed.places and units.has_places(request, site, at.partitions, parsed.places) then
			return parsed.places
		end
		return nil
	end

	-- Leaves a job those of its partitions in which its vgpu can be.
	local function narrow(job, request, site, at)
		local all = #at.partitions
		at.partitions = units.narrowed(request, site, at.partitions, function(name)
			return is_exclusive(at.parts, name)
		end)
		if #at.partitions < all then
			job.partition = table.concat(at.partitions, ",")
		end
	end

	-- Writes the units of `parsed` into `job`. `at` has the job's partitions, all partitions (parts), the effective
	-- --constraint (features), and the class (service_class) or the QoS that decides it.
	local function place(job, parsed, at)
		local site = settings.need()
		local request = parsed.request
		check_lengths(at)
		units.apply_preset(request, site)
		features.complete(request, at.features)
		if at.is_new then
			narrow(job, request, site, at)
		end
		refuse_whole_nodes(job, at.partitions, at.parts)
		local result = units.resolve(request, site, at.partitions)
		local places = places_kept(parsed, at, site)
		if not places and request.count then
			result = units.resolve(request, site, at.partitions, nil, next_turn(request.count))
		end
		result.places = places or result.places
		local class = at.service_class or class_of(site, at.qos, job.default_qos)
		local constraint = with_features(at.features, at, result)
		local preferred = preferred_features(job, at, result, constraint)
		for _, expression in ipairs({ constraint or "", preferred or "" }) do
			for _, policy in ipairs(features.policies_of(expression)) do
				units.check_policy(site, class, policy)
			end
		end
		units.check_slo(site, class, request.slo_us)
		result.fixed = units.fixed_shards(site, class, result.shards)
		local tokens = grammar.job_tokens(result, parsed.prefix, class)
		for _, token in ipairs(parsed.others) do
			tokens[#tokens + 1] = token
		end
		local list = table.concat(tokens, ",")
		if list ~= job.tres_per_node then
			job.tres_per_node = list
		end
		if constraint and constraint ~= job.features then
			job.features = constraint
		end
		if preferred and preferred ~= job.prefer then
			job.prefer = preferred
		end
		slurm.log_debug("%s", contract.errors.prefix .. grammar.canonical(request) .. " is " .. list)
	end

	function M.submit(job, parts, submit_uid)
		if submit_uid == 0 and job.user_id == 0 and job.name == PLACEHOLDER_NAME then
			return
		end
		local asked = gres_fields(job)
		local text = asked.tres_per_node or ""
		check_spank_env(job)
		refuse_other_options(asked, text)
		local parsed = parse_job(text, job.script == nil, submit_uid == 0)
		if not parsed and not find_shards(asked, text) then
			if whole.names_type(asked) then
				whole.translate(job, partitions_of(job.partition, parts), job.features)
			end
			return -- most jobs of a cluster end here
		end
		local at = { parts = parts, partitions = partitions_of(job.partition, parts), is_new = true }
		at.features, at.prefer = job.features, job.prefer
		parsed = parsed or read_bare_shards(asked, text, at)
		if not parsed then
			return
		end
		refuse_conflicts(job)
		at.qos = job.qos
		if not at.qos or at.qos == "" then
			at.qos = job.default_qos
		end
		place(job, parsed, at)
	end

	-- Returns the QoS that a job has after the update: a new one, the default ("" asks for it), or the old one.
	local function qos_after(job, record)
		if job.qos == "" then
			return job.default_qos
		end
		return job.qos or record.qos
	end

	-- Refuses an update that would leave a job shards of other types than those of its new slices.
	local function refuse_other_count(old, count)
		local types = grammar.shard_types(old)
		local has_one = #types == 1 and types[1] == ""
		if #types > 0 and (#types ~= count or has_one ~= (count == 1)) then
			fail("E_COUNT_CHANGE", { key = tostring(#types), given = tostring(count) })
		end
	end

	-- Refuses updates that would leave parts of a vgpu. Slurm merges an update into a pending job's request: a gres or
	-- type that the update does not name stays (tried on 22.05). So a class cannot be changed, and gres=shard:1 would
	-- leave a job its vgpu_mem with a single shard.
	local function refuse_merges(job, record, text, parsed, current)
		refuse_conflicts(job)
		if job.shared == EXCLUSIVE then
			fail("E_EXCLUSIVE")
		end
		if text and not parsed then
			fail("E_UPDATE_KEEPS", { given = text })
		end
		if parsed then
			refuse_other_count(record.tres_per_node, parsed.request.count or 1)
		end
		local qos = qos_after(job, record)
		if current and job.qos and class_of(settings.need(), qos, job.default_qos) ~= current.service_class then
			fail("E_CLASS_CHANGE", { given = qos })
		end
	end

	-- Returns the request of an update: a parsed vgpu, or the vgpu that bare shards are translated to, or nil.
	local function read_update(job, text, at)
		if not text then
			return nil
		end
		return parse_request(text) or read_bare_shards(job, text, at)
	end

	function M.modify(job, record, parts)
		local text, old = job.tres_per_node, record.tres_per_node or ""
		local is_pending = record.job_state % STATE_FLAGS == PENDING
		local current = grammar.parse_units(old, true)
		local at = {
			partitions = partitions_of(job.partition or record.partition, parts),
			parts = parts,
			features = job.features or record.features,
			prefer = job.prefer,
			qos = qos_after(job, record),
			service_class = current and current.service_class,
			places = current and current.places,
			old_features = record.features,
			replace = true,
		}
		refuse_other_options(job, text or "")
		local parsed = read_update(job, text, at)
		if parsed and not is_pending then
			fail("E_UPDATE")
		elseif grammar.mentions(old) then
			refuse_merges(job, record, text, parsed, current)
		elseif parsed then
			refuse_other_count(old, parsed.request.count or 1)
		end
		if parsed then
			refuse_conflicts(job)
			-- Slurm writes one prefix, and changes nothing of a job by an update with another (gres/ on 22.05).
			parsed.prefix = current and current.prefix or parsed.prefix
			place(job, parsed, at)
		elseif current and is_pending and (job.partition or job.features or job.prefer) then
			features.complete(current.request, record.features)
			at.keep = features.ours(record.features)
			place(job, current, at)
		elseif whole.names_type(gres_fields(job)) then
			whole.translate(job, at.partitions, at.features, true)
		end
	end

	-- Returns whether this job mentions vgpu. Used only after an internal error.
	function M.concerns(job, record)
		local all = (job.tres_per_node or "") .. (job.tres_per_job or "") .. (job.tres_per_task or "")
		all = all .. (job.tres_per_socket or "") .. (record and record.tres_per_node or "")
		return string.find(all, contract.request.name, 1, true) ~= nil
	end

	return M
end
