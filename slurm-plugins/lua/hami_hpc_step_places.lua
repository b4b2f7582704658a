-- SPDX-License-Identifier: Apache-2.0
-- The types of GPUs (places, docs/adr/055) of a step with several of its job's slices, but not all. A step waits for the
-- types that it asks for while others are free, so steps at the same time should ask for different ones: each takes
-- those that no running step has, and leaves theirs to the sruns that began before it and have no step yet.

return function(contract, grammar)
	local M = {}
	local SHARD = contract.gres.shard
	local PARENT, START = 2, 20 -- of the words after the program's name in /proc/PID/stat: fields 4 and 22 of proc(5)

	local function output_of(command)
		local pipe = io.popen(command .. " 2>/dev/null", "r")
		local text = pipe and pipe:read("*a") or ""
		if pipe then
			pipe:close()
		end
		return text
	end

	local function text_of(path)
		local file = io.open(path, "r")
		local text = file and file:read("*a") or ""
		if file then
			file:close()
		end
		return text
	end

	-- Returns the process's parent as text, and when it started, in clock ticks; nil for one that has ended.
	local function ancestry(pid)
		local words = {}
		for word in string.gmatch(string.match(text_of("/proc/" .. pid .. "/stat"), "^.*%)(.*)$") or "", "%S+") do
			words[#words + 1] = word
		end
		return words[PARENT], tonumber(words[START] or "")
	end

	-- Returns how many slices the process of srun asks for, for a step of the job; 0 for one or none, whose GPU has no type.
	local function wanted_by(pid, job_id, classes)
		local environment = "\0" .. text_of("/proc/" .. pid .. "/environ")
		if not string.find(environment, "%zSLURM_JOB_ID=" .. job_id .. "%z") then
			return 0
		end
		for word in string.gmatch(text_of("/proc/" .. pid .. "/cmdline"), "[^%z]+") do
			local text = string.match(word, contract.request.name .. ".*")
			local succeeded, parsed = pcall(grammar.parse, text or "", classes)
			local count = text and succeeded and parsed.request.count or 1
			if count > 1 then
				return count
			end
		end
		return 0
	end

	-- Returns how many slices of the job are asked for by other sruns on this machine that began before this one and have no
	-- running step. `running` has the processes of those that have. Each srun has a child of the same name.
	local function wanted_before(job_id, classes, running)
		local own = string.match(text_of("/proc/self/stat"), "^(%d+) ")
		local _, own_start = ancestry(own or "self")
		local pids, slices = {}, 0
		for pid in string.gmatch(output_of("pgrep -x srun"), "%d+") do
			pids[pid] = true
		end
		for pid in pairs(own_start and pids or {}) do
			local parent, start = ancestry(pid)
			local is_older = start and (start < own_start or start == own_start and tonumber(pid) < tonumber(own))
			if pid ~= own and is_older and not pids[parent] and not running[pid] then
				slices = slices + wanted_by(pid, job_id, classes)
			end
		end
		return slices
	end

	-- Returns `count` of the types `names` of job `id`. `job_id` is the one that its sruns have in their environment: in a
	-- heterogeneous job that of the first component. `scontrol` asks the job's cluster. A step of one slice has no type, and
	-- slurmctld gives it the first GPU with room: so those of several slices take the last ones.
	function M.choose(id, job_id, names, count, classes, scontrol)
		local taken, running, all, free = {}, {}, {}, {}
		for line in string.gmatch(output_of(scontrol .. " show step " .. id), "[^\n]+") do
			if string.find(line, " State=RUNNING ", 1, true) then
				for name in string.gmatch(string.match(line, " TresPerNode=(%S+)") or "", SHARD .. ":(%a)[:=]") do
					taken[name] = true
				end
				running[string.match(line, " SrunHost:Pid=%S*:(%d+)") or ""] = true
			end
		end
		for i = #names, 1, -1 do
			all[#all + 1] = names[i]
			free[#free + 1] = not taken[names[i]] and names[i] or nil
		end
		if #free < count then
			free = all
		end
		local first = wanted_before(job_id, classes, running)
		local chosen = {}
		for i = 1, math.min(count, #free) do
			chosen[i] = free[(first + i - 1) % #free + 1]
		end
		table.sort(chosen)
		return chosen
	end

	return M
end
