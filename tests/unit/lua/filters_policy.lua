-- SPDX-License-Identifier: Apache-2.0
-- job_submit: policy= and its node feature. The names used are filters.lua's.

test("a policy becomes a node feature where the class allows it", function()
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;policy~cap", qos = "be", features = "a" })
	equal(rc, 0)
	equal(written.features, "a&vgpu_policy_cap")
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "be")
	rc, written = submit({ tres_per_node = "gres:vgpu:policy~cap" })
	equal(rc, 0)
	equal(written.features, "vgpu_policy_cap")
end)

test("a policy that the class does not allow is refused, with what it allows and who allows it", function()
	refused(submit({ tres_per_node = "gres:vgpu:policy~none" }), "policy=none is not allowed in class std, whose policies "
		.. "are: cap. Classes that allow it: be (QoS be). Example: --gres=vgpu:mem=8G,cores=50,policy=cap")
	messages = {}
	refused(submit({ tres_per_node = "gres:vgpu:policy~cap", qos = "lc" }), "Classes that allow it: be (QoS be); std (QoS none)")
end)

test("a policy in the constraint is checked as one in the request", function()
	refused(submit({ tres_per_node = "gres:vgpu", features = "a&vgpu_policy_none" }), "policy=none is not allowed in class std")
	local from_srun = { tres_per_node = "gres:shard:1,gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50" }
	from_srun.features = "vgpu_policy_burst"
	refused(hami.job_submit(record(from_srun), PARTS, 1000), "policy=burst is not allowed in class std")
	local rc = submit({ tres_per_node = "gres:vgpu", features = "vgpu_policy_none", qos = "be" })
	equal(rc, 0)
end)

test("a policy is refused where the site's table is of an older render", function()
	write_site((string.gsub(string.gsub(SITE, "BARE", "refuse"), "policies = %b{},", "")))
	refused(submit({ tres_per_node = "gres:vgpu:policy~cap" }), "policies of class std are missing")
	equal(submit({ tres_per_node = "gres:vgpu" }), 0)
end)
