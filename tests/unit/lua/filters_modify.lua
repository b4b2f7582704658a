-- SPDX-License-Identifier: Apache-2.0
-- job_modify. The names used are filters.lua's.

local function modify(fields, held)
	held.job_state = held.job_state or 0
	held.partition = held.partition or "gpu"
	local job, written = record(fields)
	return hami.job_modify(job, held, PARTS, 1000), written
end

test("an update of a pending job's request is translated", function()
	local rc, written = modify({ tres_per_node = "gres:vgpu:mem=8G,gres:cores=50" }, { tres_per_node = "gres:nic:1", qos = "be" })
	equal(rc, 0)
	equal(written.tres_per_node, (string.gsub(UNITS, "std", "be")))
end)

test("an update of a running job's request is refused as not pending", function()
	for _, state in ipairs({ 1, 2, 1 + 0x8000 }) do
		messages = {}
		refused(modify({ tres_per_node = "gres:vgpu" }, { job_state = state }), "not pending", NOT_PENDING)
	end
	-- Flags above the state's byte do not make a pending job a running one.
	messages = {}
	equal(modify({ tres_per_node = "gres:vgpu" }, { job_state = 0x20000 }), 0)
end)

test("units in an update are refused", function()
	refused(modify({ tres_per_node = UNITS }, { tres_per_node = UNITS }), "cannot be asked for")
end)

test("another QoS of the same class is let through, one of another class is refused", function()
	for _, state in ipairs({ 0, 1 }) do
		for _, qos in ipairs({ "lc", "" }) do
			messages = {}
			local held = { tres_per_node = UNITS, qos = "normal", job_state = state }
			refused(modify({ qos = qos, default_qos = "be" }, held), "is of another class", NOT_PENDING)
		end
		messages = {}
		local rc, written = modify({ qos = "other" }, { tres_per_node = UNITS, qos = "normal", job_state = state })
		equal(rc, 0)
		untouched(written)
	end
	messages = {}
	local held = { tres_per_node = UNITS, qos = "normal" }
	refused(modify({ qos = "be", tres_per_node = "gres:vgpu" }, held), "is of another class", NOT_PENDING)
end)

test("an update cannot leave a vgpu job part of its units", function()
	for _, fields in ipairs({
		{ tres_per_node = "gres:shard:1" },
		{ tres_per_node = "gres:gpu:1" },
		{ tres_per_node = "gres:nic:1" },
		{ tres_per_job = "gres:shard:1" },
		{ tres_per_task = "gres:gpu:1" },
		{ tres_per_node = "gres:" }, -- scontrol update gres=
		{ tres_per_node = "" },
	}) do
		messages = {}
		refused(modify(fields, { tres_per_node = UNITS }), "hami_hpc: ")
	end
end)

test("another partition counts a pending job's shards again", function()
	local rc, written = modify({ partition = "small" }, { tres_per_node = UNITS })
	equal(rc, 0)
	equal(string.match(written.tres_per_node, "shard:(%d+)"), "159")
	refused(modify({ partition = "cpu" }, { tres_per_node = UNITS }), "partition cpu has no GPU")
end)

test("another constraint keeps the features that the request needs", function()
	local held = { tres_per_node = UNITS, features = "a&vgpu_mps&vgpu_type_h200" }
	local _, written = modify({ features = "b" }, held)
	equal(written.features, "b&vgpu_mps&vgpu_type_h200")
	_, written = modify({ features = "" }, held)
	equal(written.features, "vgpu_mps&vgpu_type_h200")
end)

test("a new type or mode replaces the old one in the constraint", function()
	local held = { tres_per_node = UNITS, partition = "mixed", features = "a&vgpu_mps&vgpu_type_h200" }
	local _, written = modify({ tres_per_node = "gres:vgpu:a100:mode=share" }, held)
	equal(written.features, "a&vgpu_share&vgpu_type_a100")
end)

test("updates that do not concern the request are not touched", function()
	for _, fields in ipairs({ { time_limit = 5 }, { comment = "x" } }) do
		local rc, written = modify(fields, { tres_per_node = UNITS })
		equal(rc, 0)
		untouched(written)
	end
	local rc, written = modify({ qos = "lc", partition = "cpu", features = "x" }, { tres_per_node = "gres:gpu:1" })
	equal(rc, 0)
	untouched(written)
	rc, written = modify({ tres_per_node = "gres:gpu:1" }, { tres_per_node = "gres:shard:1" })
	equal(rc, 0)
	untouched(written)
end)
