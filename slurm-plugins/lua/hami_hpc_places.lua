-- SPDX-License-Identifier: Apache-2.0
-- Places: the gres types of a node's GPUs where a job may have several slices (docs/adr/055). The rules for requests are
-- the same in Python, hami_hpc/core/places.py; tests/vectors check that both agree.

return function(contract, errors)
	local M = {}
	local SHARE = "share"
	local EXAMPLE, ONE_EXAMPLE = "--gres=vgpu:2:mem=8G,cores=50", contract.request.example
	local fail = errors.fail

	-- Returns the name of place `number`, from 0.
	local function name_of(number)
		return string.sub(contract.places.names, number + 1, number + 1)
	end

	-- Returns the number of the place with this name, or nil.
	local function number_of(name)
		local at = #name == 1 and string.find(contract.places.names, name, 1, true)
		return at and at - 1 or nil
	end

	-- Returns from how many places the request may choose. `gpus` is a list of { where, count }: a text that names a
	-- partition, and the GPUs of its largest node, 0 if that is not known. Refuses a count that no node has.
	function M.check_count(request, slices_max, gpus)
		local count, places = request.count, slices_max
		if not count then
			return 1
		elseif count > slices_max then
			local several = slices_max > 1 and string.format("at most %d vgpus", slices_max) or "one vgpu"
			fail("E_COUNT", {
				given = string.format("%d", count),
				allowed = string.format("slices_max is %d here, so a job has %s per node", slices_max, several),
				example = slices_max > 1 and EXAMPLE or ONE_EXAMPLE,
			})
		end
		for _, entry in ipairs(gpus) do
			local most = entry[2]
			if most > 0 and most < count then
				local plural = most > 1 and "s" or ""
				fail("E_COUNT", {
					given = string.format("%d", count),
					allowed = string.format("no node of %s has more than %d GPU%s", entry[1], most, plural),
					example = most > 1 and EXAMPLE or ONE_EXAMPLE,
				})
			elseif most > 0 then
				places = math.min(places, most)
			end
		end
		return places
	end

	-- Refuses a count together with something else than mode=share.
	function M.check_mode(request, modes)
		local key, allowed
		if not request.count then
			return
		elseif request.mig then
			key = "mig=" .. request.mig
		elseif request.isolation then
			key = "isolation=" .. request.isolation
		elseif request.mode and request.mode ~= SHARE and request.mode ~= contract.request.mode_auto then
			key = "mode=" .. request.mode
		else
			for _, mode in ipairs(modes) do
				if mode == SHARE then
					return
				end
			end
			local offered = #modes > 0 and table.concat(modes, ", ") or "none"
			key, allowed = "the modes of this cluster (" .. offered .. ")", "ask for one vgpu"
		end
		fail("E_COUNT_MODE", {
			given = string.format("%d", request.count),
			key = key,
			allowed = allowed or "leave " .. key .. " out",
			example = EXAMPLE,
		})
	end

	-- Returns the types of `count` slices, from number `turn` on of the first `places` ones; {} for one slice.
	function M.chosen(count, places, turn)
		local numbers, names = {}, {}
		for step = 1, count or 0 do
			numbers[step] = (turn + step - 1) % places
		end
		table.sort(numbers)
		for i, number in ipairs(numbers) do
			names[i] = name_of(number)
		end
		return names
	end

	-- Returns whether all of `names` are among the first `places` ones.
	function M.are_among(names, places)
		for _, name in ipairs(names) do
			local number = number_of(name)
			if not number or number >= places then
				return false
			end
		end
		return true
	end

	-- Refuses the types `names` of a job that may have the first `places` ones alone. `where` is text.
	function M.check_kept(names, places, where)
		if not M.are_among(names, places) then
			local allowed = places > 1 and "only those from a to " .. name_of(places - 1) or "none"
			fail("E_PLACES", { given = table.concat(names, ", "), where = where, allowed = allowed })
		end
	end

	return M
end
