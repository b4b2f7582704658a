-- SPDX-License-Identifier: Apache-2.0
-- job_submit: slo= and its gres. The names used are filters.lua's.

test("an slo becomes a count of gres in a latency-critical class", function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50;slo~10ms", qos = "lc" })
	equal(rc, 0)
	equal(written.tres_per_node, string.gsub(UNITS, "std", "lc") .. ",gres:vgpu_slo:10000")
	equal(written.features, nil)
	local from_srun = { tres_per_node = "gres:shard:1,gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,gres:vgpu_slo:500" }
	from_srun.qos = "lc"
	local job, again = record(from_srun)
	equal(hami.job_submit(job, PARTS, 1000), 0)
	equal(again.tres_per_node, string.gsub(UNITS, "std", "lc") .. ",gres:vgpu_slo:500")
end)

test("an slo in a class that is not latency-critical is refused with the QoS to ask for", function()
	refused(submit({ tres_per_node = "gres:vgpu:slo~10ms" }), "slo=10ms needs a latency-critical class, and class std is "
		.. "none. Latency-critical classes: lc (QoS lc). Example: --qos=lc --gres=vgpu:mem=8G,cores=50,slo=10ms")
	for _, slo in ipairs({ "1", "99", "60000001" }) do
		messages = {}
		local units = "gres:shard:1,gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,gres:vgpu_slo:" .. slo
		refused(hami.job_submit(record({ tres_per_node = units, qos = "lc" }), PARTS, 1000), "cannot be asked for")
	end
	messages = {}
	local units = "gres:shard:1,gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,gres:vgpu_slo:10000"
	refused(hami.job_submit(record({ tres_per_node = units }), PARTS, 1000), "slo=10ms needs a latency-critical class")
end)

test("an slo is refused where the site's table is of an older render", function()
	write_site((string.gsub(string.gsub(SITE, "BARE", "refuse"), "latency = %b{},", "")))
	refused(submit({ tres_per_node = "gres:vgpu:slo~10ms", qos = "lc" }), "the latency-critical classes are missing")
	equal(submit({ tres_per_node = "gres:vgpu:mem~8G", qos = "lc" }), 0)
end)
