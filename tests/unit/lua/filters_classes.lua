-- SPDX-License-Identifier: Apache-2.0
-- Classes of service of a site's own. The names used are filters.lua's.

local SITE_CLASS = [[lc = { "lc" }, interactive_2 = { "Desk" },]]

-- Runs `body` where the site has the class interactive_2, by the QoS Desk.
local function with_class(body)
	local text = string.gsub(string.gsub(SITE, "BARE", "refuse"), "lc = { \"lc\" },", SITE_CLASS)
	write_site((string.gsub(text, "policies = {", "policies = { interactive_2 = { \"cap\" },")))
	body()
end

local OF_THE_CLASS = string.gsub(UNITS, "std", "interactive_2")

test("a class of the site's own follows its QoS", function()
	with_class(function()
		local rc, written = submit({ tres_per_node = "gres:vgpu:mem=8G,gres:cores=50", qos = "desk" })
		equal(rc, 0)
		equal(written.tres_per_node, OF_THE_CLASS)
		rc, written = submit({ tres_per_node = "gres:vgpu:mem=8G,gres:cores=50", default_qos = "DESK" })
		equal(rc, 0)
		equal(written.tres_per_node, OF_THE_CLASS)
	end)
end)

test("a class of the site's own says which policies it allows", function()
	with_class(function()
		refused(
			submit({ tres_per_node = "gres:vgpu:policy~burst", qos = "desk" }),
			"policy=burst is not allowed in class interactive_2, whose policies are: cap"
		)
	end)
end)

test("nobody asks for a class by its name", function()
	with_class(function()
		for _, text in ipairs({ "gres:vgpu:interactive_2:1", "gres:vgpu:interactive_2", "gres:vgpu:interactive_2;mem~8G" }) do
			messages = {}
			refused(submit({ tres_per_node = text }), "is set by hami_hpc itself and cannot be asked for")
		end
		messages = {}
		refused(submit({ tres_per_node = "gres:vgpu:interactive_3" }), "GPU type 'interactive_3' is not in partition gpu")
	end)
end)

test("a pending job of the class is translated again in another partition, also when the site has lost the class", function()
	local function moves()
		local job, written = record({ partition = "small" })
		local held = { tres_per_node = OF_THE_CLASS, job_state = 0, partition = "gpu", qos = "desk" }
		equal(hami.job_modify(job, held, PARTS, 1000), 0)
		equal(string.match(written.tres_per_node, "vgpu:([a-z0-9_]+):1"), "interactive_2")
		equal(string.match(written.tres_per_node, "shard:(%d+)"), "159")
	end
	with_class(moves)
	restore_site()
	moves()
end)

test("another QoS of the class is let through, one of another class is refused", function()
	with_class(function()
		local held = { tres_per_node = OF_THE_CLASS, job_state = 0, partition = "gpu", qos = "desk" }
		equal(hami.job_modify(record({ qos = "Desk" }), held, PARTS, 1000), 0)
		refused(hami.job_modify(record({ qos = "lc" }), held, PARTS, 1000), "is of another class", NOT_PENDING)
	end)
end)

test("the names of the classes are known while the table is broken, if it was not before", function()
	with_class(function()
		equal(hami.settings.classes().interactive_2, true)
		write_site("return {")
		hami.settings.forget()
		equal(hami.settings.classes().interactive_2, true)
		equal(hami.settings.classes().std, true)
	end)
end)

test("a step names the units of a class that the site has", function()
	with_class(function()
		equal(hami.grammar.has_raw_units("vgpu:interactive_2:1", hami.settings.classes()), true)
		equal(hami.grammar.has_raw_units("vgpu:h200", hami.settings.classes()), false)
	end)
end)
