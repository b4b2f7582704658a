-- SPDX-License-Identifier: Apache-2.0
-- job_modify. The names used are filters.lua's.

test("an update of a pending job's request is translated", function()
	local rc, written = modify({ tres_per_node = "gres:vgpu:mem=8G,gres:cores=50" }, { tres_per_node = "gres:nic:1", qos = "be" })
	equal(rc, 0)
	equal(written.tres_per_node, (string.gsub(UNITS, "std", "be")))
end)

test("an update is written as Slurm has the job's request", function()
	-- 22.05 shows an update with gres/ and changes nothing of what the job gets.
	local changed = string.gsub(UNITS, "8192", "4096")
	for _, prefix in ipairs({ "gres:", "gres/" }) do
		local has = string.gsub(UNITS, "gres:", prefix)
		for _, text in ipairs({ "gres/vgpu:mem=4G,cores=50", "gres:vgpu:mem=4G,cores=50" }) do
			local rc, written = modify({ tres_per_node = text }, { tres_per_node = has })
			equal(rc, 0)
			equal(written.tres_per_node, (string.gsub(changed, "gres:", prefix)))
		end
	end
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

test("an update keeps the policy that it does not name, and replaces one that it names", function()
	local units = string.gsub(UNITS, "std", "be")
	local held = { tres_per_node = units, features = "a&vgpu_policy_cap", qos = "be" }
	local rc, written = modify({ tres_per_node = "gres:vgpu:mem=1G" }, held)
	equal(rc, 0)
	equal(written.features, "a&vgpu_policy_cap")
	rc, written = modify({ tres_per_node = "gres:vgpu:mem=1G,policy=none" }, held)
	equal(rc, 0)
	equal(written.features, "a&vgpu_policy_none")
	held = { tres_per_node = UNITS, features = "a", qos = "" }
	refused(modify({ tres_per_node = "gres:vgpu:policy=none" }, held), "policy=none is not allowed in class std")
	refused(modify({ features = "vgpu_policy_none" }, held), "policy=none is not allowed in class std")
end)

test("an update keeps the slo that the job has, and replaces it", function()
	local units = string.gsub(UNITS, "std", "lc") .. ",gres:vgpu_slo:10000"
	local held = { tres_per_node = units, qos = "lc" }
	local rc, written = modify({ partition = "small" }, held)
	equal(rc, 0)
	equal(string.match(written.tres_per_node, "vgpu_slo:%d+"), "vgpu_slo:10000")
	rc, written = modify({ tres_per_node = "gres:vgpu:mem=8G,gres:slo=5ms" }, held)
	equal(rc, 0)
	equal(string.match(written.tres_per_node, "vgpu_slo:%d+"), "vgpu_slo:5000")
	refused(modify({ tres_per_node = "gres:vgpu:slo=5ms" }, { tres_per_node = UNITS }), "slo=5ms needs a latency-critical")
end)

test("an update keeps the class that the job has, also where its QoS would make no class", function()
	write_slurm_conf("")
	local held = { tres_per_node = UNITS, qos = "be" } -- typed by the user, and so of class std
	local rc, written = modify({ tres_per_node = "gres:vgpu:mem=1G,gres:cores=50" }, held)
	equal(rc, 0)
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "std")
	equal(#messages, 0)
end)

test("bare shards in an update are refused, or become a vgpu", function()
	refused(modify({ tres_per_node = "gres:shard:1" }, { tres_per_node = "gres:nic:1" }), "'shard:1' is not allowed")
	restore_site("translate")
	local rc, written = modify({ tres_per_node = "gres:shard:32" }, { tres_per_node = "gres:nic:1" })
	equal(rc, 0)
	equal(written.tres_per_node, "gres:shard:32,gres:vgpu:std:1,gres:vgpu_mem:8192,gres:vgpu_cores:5")
	messages = {}
	refused(modify({ tres_per_node = "gres:shard:32" }, { job_state = 1 }), "not pending", NOT_PENDING)
end)

test("a vgpu job is not made exclusive, nor moved to where jobs get whole nodes", function()
	refused(modify({ shared = 0 }, { tres_per_node = UNITS }), "vgpu and --exclusive")
	PARTS.small = { flag_default = 0, max_share = 0 }
	local rc = modify({ partition = "small" }, { tres_per_node = UNITS })
	PARTS.small = nil
	refused(rc, "partition small gives each job whole nodes")
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
	rc, written = modify({ tres_per_node = "gres:gpu:1", shared = 0 }, { tres_per_node = "gres:shard:1" })
	equal(rc, 0)
	untouched(written)
end)
