-- SPDX-License-Identifier: Apache-2.0
-- Requests for whole GPUs of a model, where the types of a node's GPUs are places and not models (docs/adr/055):
-- gpu:h200:2 becomes gpu:2, and the node feature of the model. A site without several slices (slices_max = 1) has the
-- models as types, and nothing is changed there; nor in partitions that hami_hpc does not manage.

return function(contract, errors, grammar, features, settings)
	local M = {}
	-- The fields of a job, and the options of a client, that can ask for GPUs. An option other than gres and tres-per-task
	-- has the type first: --gpus=h200:2.
	local FIELDS = { "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }
	local LISTS = { "gres", "tres-per-task" }
	local GPUS = { "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket" }

	-- Returns the site's table if its types are places, else nil. A table that cannot be read refuses no whole GPU.
	local function site_with_places()
		local site = settings.read()
		return site and site.slices_max > 1 and site or nil
	end

	-- Returns whether a job whose fields are `asked` wants GPUs of a type. Cheap, because it runs for every job of the
	-- cluster.
	function M.names_type(asked)
		for _, field in ipairs(FIELDS) do
			if asked[field] and string.find(asked[field], "gpu:%a") then
				return true
			end
		end
		return false
	end

	-- Returns whether hami_hpc manages all of `partitions`.
	local function is_managed(site, partitions)
		for _, name in ipairs(partitions) do
			if not site.partitions[name] or #site.partitions[name].gpu_models == 0 then
				return false
			end
		end
		return true
	end

	-- Returns the type and what follows it in the value of an option such as --gpus=h200:2; the type may be nil.
	local function split_type(value)
		local name, count = string.match(value, "^(%a[%w_%-]*)(.*)$")
		if not name then
			return nil, value
		elseif count == "" then
			return name, "1"
		end
		return name, string.match(count, "^[:=]([0-9]+)$")
	end

	-- Returns a list without the models of its GPUs, and the model, or nil if it names none. `is_bare`: the list is of
	-- GPUs alone, without "gpu:".
	local function without_models(site, list, is_bare)
		local tokens, model, gpus = {}, nil, 0
		for token in string.gmatch(list, "[^,]+") do
			local prefix, body = grammar.split_prefix(token)
			local value = is_bare and body or string.match(body, "^gpu:(.*)$")
			if is_bare or grammar.name_of(body) == "gpu" then
				gpus = gpus + 1
			end
			local name, count = split_type(value or "")
			if name and count and site.gpu_models[name] then
				model = name
				token = is_bare and count or prefix .. "gpu:" .. count
			end
			tokens[#tokens + 1] = token
		end
		if model and gpus > 1 then
			errors.fail("E_GPU_TYPES", { given = list, allowed = model })
		end
		return table.concat(tokens, ","), model
	end

	-- Rewrites the values of `keys` in `target`; returns the list of the features that it then needs.
	local function rewrite(site, target, keys, is_bare, wanted)
		for _, key in ipairs(keys) do
			local value = target[key]
			if value and value ~= "" then
				grammar.check_length(key, value)
				local list, model = without_models(site, value, is_bare)
				if model then
					target[key] = list
					local feature = string.gsub(contract.features.type, "{type}", model)
					wanted[#wanted + 1] = wanted[#wanted] ~= feature and feature or nil
				end
			end
		end
	end

	-- Translates the request of a job that asks for GPUs of a type. `expression` is its --constraint; `replace` is for an
	-- update, whose model comes in place of the old one.
	function M.translate(job, partitions, expression, replace)
		local site = site_with_places()
		if not site or not is_managed(site, partitions) then
			return
		end
		local wanted = {}
		rewrite(site, job, FIELDS, false, wanted)
		if #wanted == 0 then
			return
		end
		grammar.check_length("--constraint", expression or "")
		grammar.check_length("--prefer", job.prefer or "")
		local constraint = features.combine(expression, wanted, replace)
		if constraint ~= job.features then
			job.features = constraint
		end
		if job.prefer and job.prefer ~= "" then
			job.prefer = features.combine(job.prefer, wanted, replace)
		end
	end

	local function asks_for_type(options)
		local all = (options.gres or "") .. "," .. (options["tres-per-task"] or "")
		if string.find(all, "gpu:%a") then
			return true
		end
		for _, name in ipairs(GPUS) do
			if options[name] and string.find(options[name], "^%a") then
				return true
			end
		end
		return false
	end

	-- Translates the options of srun, whose step asks for the same as its job. `partitions` are those of the job, {} if
	-- they are not known. Returns the features that a new job needs.
	function M.translate_srun(options, partitions)
		local site = asks_for_type(options) and site_with_places()
		local wanted = {}
		if site and is_managed(site, partitions) then
			rewrite(site, options, LISTS, false, wanted)
			rewrite(site, options, GPUS, true, wanted)
		end
		return wanted
	end

	return M
end
