-- SPDX-License-Identifier: Apache-2.0
-- job_submit: the shards of jobs that are never moved, where memory is oversold. The names used are filters.lua's.

local MOVED = string.gsub(UNITS, "std", "be")

local function oversold()
	local site = string.gsub(string.gsub(SITE, "BARE", "refuse"), "latency = %b{},", '%0 fixed = { "std", "lc" },')
	write_site(site)
end

test("a job of a class that is never moved holds as many shards of those that do not move", function()
	oversold()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50" })
	equal(rc, 0)
	local shards = string.match(written.tres_per_node, "gres:shard:(%d+)")
	equal(written.tres_per_node, UNITS .. ",gres:vgpu_fixed:" .. shards)
end)

test("a job of a class that can be moved holds none of them", function()
	oversold()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50", qos = "be" })
	equal(rc, 0)
	equal(written.tres_per_node, MOVED)
end)

test("where memory is not oversold nobody does", function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50" })
	equal(rc, 0)
	equal(written.tres_per_node, UNITS)
end)

test("who names them is refused, and what a client says of their number does not count", function()
	oversold()
	refused(submit({ tres_per_node = "gres:vgpu:mem~8G,gres:vgpu_fixed:1" }), "vgpu_fixed:1")
	messages = {}
	refused(submit({ tres_per_node = "gres:vgpu_fixed:1" }), "vgpu_fixed:1")
	local units = "gres:shard:1,gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,gres:vgpu_fixed:1"
	local job, written = record({ tres_per_node = units })
	equal(hami.job_submit(job, PARTS, 1000), 0)
	equal(string.match(written.tres_per_node, "vgpu_fixed:%d+"), string.gsub(string.match(UNITS, "shard:%d+"), "shard", "vgpu_fixed"))
end)

test("an update of the size of a pending job changes them too", function()
	oversold()
	local held = string.gsub(UNITS, "$", ",gres:vgpu_fixed:279")
	local before = { tres_per_node = held, job_state = 0, qos = "normal", partition = "gpu" }
	local job, written = record({ tres_per_node = "gres:vgpu:mem~4G;cores~10" })
	equal(hami.job_modify(job, before, PARTS, 1000), 0)
	local shards = string.match(written.tres_per_node, "gres:shard:(%d+)")
	equal(string.match(written.tres_per_node, "vgpu_fixed:(%d+)"), shards)
end)

test("the jobs of root that hold them for a GPU out of service pass, and nobody else's", function()
	oversold()
	local held = { gres = "vgpu_fixed:503", type = "salloc", ["job-name"] = "hami-hpc-drain" }
	equal(pre_submit(held), 0)
	client_refused(pre_submit({ gres = "vgpu_fixed:503", type = "salloc" }), "vgpu_fixed:503")
	client_refused(pre_submit({ gres = "vgpu_fixed:503", ["job-name"] = "hami-hpc-drain" }), "vgpu_fixed:503")
	local fields = { tres_per_node = "gres:vgpu_fixed:503", name = "hami-hpc-drain", user_id = 0 }
	local job, written = record(fields)
	equal(hami.job_submit(job, PARTS, 0), 0)
	equal(next(written), nil)
	fields.user_id = 1000
	messages = {}
	refused(hami.job_submit(record(fields), PARTS, 1000), "vgpu_fixed:503")
end)
