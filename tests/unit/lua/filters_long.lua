-- SPDX-License-Identifier: Apache-2.0
-- Hostile lengths: 256 KiB in every field, in time that grows no faster than the text. The names used are filters.lua's.

local KIB = 1024
local SHAPES = {
	"vgpu,", "vgpu:", "vgpu;", "gres:", "gres", "gres:vgpux ", "gres:vgpu_memx,", "shard:1,", "xshard,", "gresshardx", "gpu,", ",",
	"vgpu=", "(vgpu&", "|", "1", "vgpu_mem:1,", "a=", "gres:gpu:vgpux,", "\255", "%", " TresPerNode=", "[", "nic:1,",
}

local function seconds_for(act, shape, size)
	messages, logged = {}, {}
	local text = string.rep(shape, math.floor(size / #shape))
	local before = os.clock()
	act(text)
	return os.clock() - before
end

-- Calls `act` with 256 KiB of each shape; fails if that takes much more than 4 times as long as 64 KiB five times in a row (a
-- busy machine can hold up any one of them), or hangs.
local function grows_linearly(what, act)
	for _, shape in ipairs(SHAPES) do
		local linear, spent
		for _ = 1, 5 do
			spent = seconds_for(act, shape, 256 * KIB)
			linear = spent <= 0.1 / 16 or spent <= 20 and spent <= 12 * seconds_for(act, shape, 64 * KIB)
			if linear or spent > 20 then
				break
			end
		end
		if not linear then
			error(string.format("256 KiB of '%s' in %s took %.2f s", shape, what, spent), 2)
		end
	end
end

test("job_submit reads long fields in linear time", function()
	for _, field in ipairs({ "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }) do
		grows_linearly(field, function(text)
			submit({ [field] = text })
		end)
	end
end)

test("job_submit reads the long fields of a vgpu job in linear time", function()
	restore_site("translate")
	for _, field in ipairs({ "features", "partition", "qos", "tres_per_task" }) do
		for _, gres in ipairs({ "gres:vgpu:mem~8G", "gres:shard:3" }) do
			grows_linearly(field, function(text)
				submit({ tres_per_node = gres, [field] = text })
			end)
		end
	end
end)

test("job_modify reads long fields in linear time", function()
	for _, field in ipairs({ "tres_per_node", "tres_per_job", "features", "partition", "qos" }) do
		grows_linearly(field, function(text)
			hami.job_modify(record({ [field] = text }), { job_state = 0, partition = "gpu", tres_per_node = UNITS }, PARTS, 0)
			hami.job_modify(record({ tres_per_node = "gres:vgpu" }), { job_state = 0, [field] = text }, PARTS, 0)
		end)
	end
end)

test("the client's filter reads long options in linear time", function()
	for _, option in ipairs({ "gres", "constraint", "partition", "gpus", "tres-per-task" }) do
		for _, kind in ipairs({ "sbatch", "srun" }) do
			grows_linearly(option, function(text)
				local fields = { type = kind, gres = "vgpu:mem=8G", jobid = "unset" }
				fields[option] = text
				hami.cli_pre_submit(record(fields), 0)
			end)
		end
	end
end)

test("what is too long is refused at once if it holds our name, and left alone if it does not", function()
	local long = string.rep("nic:1,", 2000)
	for _, text in ipairs({ long .. "vgpu", "gres:xvgpux," .. long, "vgpu:" .. long }) do
		messages = {}
		refused(submit({ tres_per_node = text }), "--gres is 120")
		logged = {}
		equal(hami.cli_pre_submit(record({ type = "srun", gres = text, jobid = "7" }), 0), -1)
		assert(string.find(logged[1], "bytes long; at most 4096 are read", 1, true), logged[1])
	end
	messages, logged = {}, {}
	local rc, written = submit({ tres_per_node = long, features = long, partition = long, qos = long })
	equal(rc, 0)
	untouched(written)
	refused(submit({ tres_per_node = "gres:vgpu", features = string.rep("a&", 3000) }), "--constraint is 6000 bytes long")
	refused(submit({ tres_per_node = "gres:vgpu", partition = string.rep("gpu,", 3000) }), "--partition is 11999 bytes long")
end)
