-- SPDX-License-Identifier: Apache-2.0
-- job_submit: which partitions a request may be in. The names used are filters.lua's.

test("the default partition is used where none is asked for", function()
	local rc = submit({ tres_per_node = "gres:vgpu" }, { cpu = { flag_default = 1 }, gpu = { flag_default = 0 } })
	refused(rc, "partition cpu has no GPU that hami_hpc manages; partitions with such GPUs: gpu, mixed, small")
	refused(submit({ tres_per_node = "gres:vgpu" }, {}), "partition (default) has no GPU")
end)

test("the largest GPU of several partitions counts", function()
	local _, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50", partition = "small,gpu" })
	equal(string.match(written.tres_per_node, "shard:(%d+)"), "279")
end)

test("a job leaves out partitions in which its vgpu cannot be", function()
	local whole = { gpu = { flag_default = 1 }, small = { max_share = 0 } }
	local function partition(request, names, parts)
		local rc, written = submit({ tres_per_node = "gres:vgpu:" .. request, partition = names }, parts)
		equal(rc, 0)
		return written.partition
	end
	equal(partition("mem~8G;cores~50", "cpu,gpu,small"), "gpu,small")
	equal(partition("mem~100G;cores~50", "small,gpu"), "gpu")
	equal(partition("mem~8G;cores~50", "small,gpu", whole), "gpu")
	equal(partition("mem~50%;cores~50", "cpu,gpu"), "gpu")
	equal(partition("mem~8G;cores~50", "gpu,small"), nil)
	equal(partition("mem~8G;cores~50", "gpu"), nil)
	equal(partition("mem~8G;cores~50", nil), nil)
	local _, written = submit({ tres_per_node = "gres:vgpu:h200:mem~8G;cores~50", partition = "small,gpu" })
	equal(written.partition, "gpu")
	refused(submit({ tres_per_node = "gres:vgpu", partition = "cpu,other" }), "partition cpu has no GPU that hami_hpc manages")
	refused(submit({ tres_per_node = "gres:vgpu:mem~200G", partition = "cpu,gpu" }), "partition cpu has no GPU")
	refused(submit({ tres_per_node = "gres:vgpu", partition = "small" }, whole), "gives each job whole nodes")
	local rc, updated = modify({ partition = "gpu,small" }, { tres_per_node = UNITS })
	equal(rc, 0)
	equal(updated.partition, nil)
end)

test("a partition that gives whole nodes is refused, and left out among others", function()
	local parts = { gpu = { flag_default = 1, max_share = 1 }, small = { flag_default = 0, max_share = 0 } }
	local wanted = "partition small gives each job whole nodes"
	refused(submit({ tres_per_node = "gres:vgpu", partition = "small" }, parts), wanted)
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G", partition = "gpu,small" }, parts)
	equal(rc, 0)
	equal(written.partition, "gpu")
	equal(submit({ tres_per_node = "gres:vgpu" }, parts), 0)
	equal(submit({ tres_per_node = "gres:gpu:1", partition = "small" }, parts), 0)
end)
