-- SPDX-License-Identifier: Apache-2.0
-- job_submit. The names used are filters.lua's.

test("a request becomes units in the prefix form it came in", function()
	for _, prefix in ipairs({ "gres:", "gres/", "" }) do
		local rc, written = submit({ tres_per_node = prefix .. "vgpu:mem~8G;cores~50" })
		equal(rc, 0)
		equal(written.tres_per_node, (string.gsub(UNITS, "gres:", prefix)))
		equal(written.features, nil)
	end
end)

test("a request that no client filter has glued is understood as well", function()
	local _, written = submit({ tres_per_node = "gres:nic:1,gres:vgpu:mem=8G,gres:cores=50" })
	equal(written.tres_per_node, UNITS .. ",gres:nic:1")
end)

test("jobs without vgpu are not touched", function()
	for _, text in ipairs({ "gres:gpu:1", "gres:xshard:4", "gres:xvgpux:1", "license:a", "", string.rep("y", 10000), "\255\254" }) do
		local rc, written = submit({ tres_per_node = text, tres_per_task = text, qos = "lc", features = "a|b" })
		equal(rc, 0)
		untouched(written)
	end
	local rc, written = submit({})
	equal(rc, 0)
	untouched(written)
end)

test("no job brings more environment for SPANK plugins than a prolog can be started with", function()
	for _, text in ipairs({ "", "gres:gpu:1", "gres:vgpu:mem~8G" }) do
		local one = { [0] = "SPANK_X=" .. string.rep("a", 140000) }
		local many = {}
		for i = 0, 32767 do
			many[i] = "SPANK_X" .. i .. "="
		end
		for _, environment in ipairs({ one, many }) do
			refused(submit({ tres_per_node = text, spank_job_env = environment }), "environment for SPANK plugins")
		end
		local rc = submit({ tres_per_node = text, spank_job_env = { [0] = "SPANK_X=1" } })
		equal(rc, 0)
	end
end)

test("the class follows the QoS, or the default QoS", function()
	local _, written = submit({ tres_per_node = "gres:vgpu", qos = "LC", default_qos = "be" })
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "lc")
	_, written = submit({ tres_per_node = "gres:vgpu", default_qos = "be" })
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "be")
	_, written = submit({ tres_per_node = "gres:vgpu", qos = "", default_qos = "be" })
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "be")
	_, written = submit({ tres_per_node = "gres:vgpu", qos = "normal" })
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "std")
end)

test("mode and type become node features beside the job's own", function()
	local function features(given)
		local rc, written = submit({ tres_per_node = "gres:vgpu:h200;mode~mps", features = given })
		return rc == 0 and written.features
	end
	equal(features(nil), "vgpu_mps&vgpu_type_h200")
	equal(features("a"), "a&vgpu_mps&vgpu_type_h200")
	equal(features("a&b"), "a&b&vgpu_mps&vgpu_type_h200")
	equal(features("a|b"), "(a|b)&vgpu_mps&vgpu_type_h200")
	equal(features("(a|b)&c"), "(a|b)&c&vgpu_mps&vgpu_type_h200")
	equal(features("[a|b]"), "[a|b]&vgpu_mps&vgpu_type_h200")
	equal(features("vgpu_type_h200&a"), "vgpu_type_h200&a&vgpu_mps")
	equal(features("vgpu_type_h200,vgpu_mps"), nil, "features that are all there")
end)

test("a constraint that needs two levels of parentheses is refused", function()
	refused(submit({ tres_per_node = "gres:vgpu:h200", features = "(a&b)|c" }), "--constraint=(a&b)|c cannot be combined")
end)

test("a type in the constraint names the GPU of a mixed partition", function()
	local _, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50", partition = "mixed", features = "vgpu_type_a100" })
	equal(string.match(written.tres_per_node, "shard:(%d+)"), "159")
	_, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50", partition = "mixed", features = "vgpu_type_a100|x" })
	equal(string.match(written.tres_per_node, "shard:(%d+)"), "279")
end)

test("memory above the largest GPU names it", function()
	refused(submit({ tres_per_node = "gres:vgpu:mem~200G" }), "the largest, h200, has 143156M")
end)

test("vgpu in other options is refused with the spelling that works", function()
	for field, option in pairs({
		tres_per_job = "--gpus",
		tres_per_socket = "--gpus-per-socket",
		tres_per_task = "--gpus-per-task or --tres-per-task",
		tres_per_node = "--gpus-per-node",
	}) do
		for _, value in ipairs({ "gres:gpu:vgpu:mem=8G", "gres/gpu:vgpu", "gres:gpu:1,gres:gpu:vgpu=3" }) do
			messages = {}
			refused(submit({ [field] = value }), option .. "=" .. value)
		end
	end
	messages = {}
	refused(submit({ tres_per_task = "gres/vgpu:mem=8G" }), "use --gres=vgpu:mem=8G,cores=50")
end)

test("whole GPUs and shards in other options do not go with vgpu", function()
	refused(submit({ tres_per_node = "gres:vgpu", tres_per_job = "gres:gpu:2" }), "'gpu:2' cannot be combined")
	refused(submit({ tres_per_node = "gres:vgpu", tres_per_task = "gres/shard:2" }), "Leave 'shard:2' out")
end)

test("an exclusive job, which would wait forever for its vgpu, is refused", function()
	refused(submit({ tres_per_node = "gres:vgpu", shared = 0 }), "vgpu and --exclusive")
	equal(submit({ tres_per_node = "gres:vgpu", shared = 65534 }), 0)
	equal(submit({ tres_per_node = "gres:gpu:1", shared = 0 }), 0)
end)

test("units are refused in a batch job and counted again from srun", function()
	local units = "gres:shard:1,gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,gres:nic:1"
	refused(submit({ tres_per_node = units }), "'vgpu_mem:8192' is set by hami_hpc itself")
	local job, written = record({ tres_per_node = units })
	equal(hami.job_submit(job, PARTS, 1000), 0)
	equal(written.tres_per_node, UNITS .. ",gres:nic:1")
end)

test("units from srun with a class, a count or a part missing are refused", function()
	for _, units in ipairs({
		"gres:shard:1,gres:vgpu:lc:1,gres:vgpu_mem:8192,gres:vgpu_cores:50",
		"gres:vgpu:1,gres:vgpu_mem:8192",
		"gres:vgpu:1,gres:vgpu_mem:0,gres:vgpu_cores:50",
		"gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:101",
		"gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_mem:1,gres:vgpu_cores:50",
		"gres:gpu:1,gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50",
		"gres:vgpu_mem:8192,gres:vgpu_cores:50",
		"gres:vgpu:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,x gres:shard:1",
	}) do
		messages = {}
		local job = record({ tres_per_node = units })
		refused(hami.job_submit(job, PARTS, 1000), "cannot be asked for")
	end
end)

test("bare shards are refused unless the site says otherwise", function()
	refused(submit({ tres_per_node = "gres:shard:3" }), "'shard:3' is not allowed on this cluster")
	refused(submit({ tres_per_task = "gres/shard:3" }), "'shard:3' is not allowed")
	local rc, written = submit({ tres_per_node = "gres:gpu:1" })
	equal(rc, 0)
	untouched(written)
	restore_site("allow")
	rc, written = submit({ tres_per_node = "gres:shard:3", tres_per_task = "gres/shard:3" })
	equal(rc, 0)
	untouched(written)
end)

test("root's placeholder jobs of a GPU out of service hold bare shards, and nobody else's do", function()
	local fields = { tres_per_node = "gres:shard:559", name = "hami-hpc-drain", user_id = 0 }
	local job, written = batch(fields)
	equal(hami.job_submit(job, PARTS, 0), 0)
	untouched(written)
	refused(hami.job_submit(job, PARTS, 1000), "'shard:559' is not allowed")
	fields.user_id = 1000
	refused(hami.job_submit(batch(fields), PARTS, 0), "'shard:559' is not allowed")
	fields.user_id, fields.name = 0, "other"
	refused(hami.job_submit(batch(fields), PARTS, 0), "'shard:559' is not allowed")
end)

test("bare shards become the vgpu of that size where the site says so", function()
	restore_site("translate")
	for text, wanted in pairs({
		["gres:shard:32"] = "gres:shard:32,gres:vgpu:std:1,gres:vgpu_mem:8192,gres:vgpu_cores:5",
		["gres/shard:1"] = "gres/shard:5,gres/vgpu:std:1,gres/vgpu_mem:256,gres/vgpu_cores:1",
		["gres:nic:1,gres:shard"] = "gres:shard:5,gres:vgpu:std:1,gres:vgpu_mem:256,gres:vgpu_cores:1,gres:nic:1",
		["gres:shard=559"] = "gres:shard:559,gres:vgpu:std:1,gres:vgpu_mem:143104,gres:vgpu_cores:100",
	}) do
		local rc, written = submit({ tres_per_node = text })
		equal(rc, 0)
		equal(written.tres_per_node, wanted)
	end
	local _, written = submit({ tres_per_node = "gres:shard:32", partition = "mixed", features = "vgpu_type_a100", qos = "be" })
	equal(written.tres_per_node, "gres:shard:32,gres:vgpu:be:1,gres:vgpu_mem:8192,gres:vgpu_cores:10")
	equal(#messages, 0)
end)

test("bare shards that cannot become one vgpu are refused", function()
	restore_site("translate")
	for _, fields in ipairs({
		{ tres_per_task = "gres/shard:3" },
		{ tres_per_job = "gres:shard:3" },
		{ tres_per_socket = "gres:shard:3" },
		{ tres_per_node = "gres:shard:3", tres_per_task = "gres/shard:3" },
		{ tres_per_node = "gres:shard:3,gres:gpu:1" },
		{ tres_per_node = "gres:shard:3,gres:shard:4" },
		{ tres_per_node = "gres:shard:h200:3" },
		{ tres_per_node = "gres:shard:0" },
		{ tres_per_node = "gres:shard:1K" },
		{ tres_per_node = "gres:shard:9999999" },
		{ tres_per_node = "x gres:shard:3" },
		{ tres_per_node = "gres:nic:1,gresshard:3" },
	}) do
		messages = {}
		refused(submit(fields), "is not allowed on this cluster")
	end
	messages = {}
	refused(submit({ tres_per_node = "gres:shard:560" }), "the largest, h200, has 143156M")
	refused(submit({ tres_per_node = "gres:shard:3", shared = 0 }), "vgpu and --exclusive")
	refused(submit({ tres_per_node = "gres:shard:3", tres_per_job = "gres:gpu:1" }), "whole GPUs")
end)

local function class_under(conf, fields)
	write_slurm_conf(conf)
	local fresh = dofile(modules .. "/hami_hpc.lua") -- it remembers what slurm.conf said
	fields.tres_per_node = "gres:vgpu"
	local job, written = batch(fields)
	equal(fresh.job_submit(job, PARTS, 1000), 0)
	return string.match(written.tres_per_node, "vgpu:(%l+):1")
end

local DBD = "AccountingStorageType=accounting_storage/slurmdbd\n"

test("a QoS makes a class only where Slurm checks who may use it", function()
	for _, line in ipairs({
		"AccountingStorageEnforce=associations,qos",
		"  accountingstorageenforce = LIMITS,QOS # and a remark",
		"AccountingStorageEnforce=all",
		"ClusterName=x AccountingStorageEnforce=qos,safe",
		"AccountingStorageEnforce=limits\nAccountingStorageEnforce=qos",
	}) do
		equal(class_under(DBD .. line, { qos = "lc" }), "lc", line)
	end
	equal(#messages, 0)
	for _, text in ipairs({
		DBD,
		DBD .. "AccountingStorageEnforce=associations,limits,safe",
		DBD .. "#AccountingStorageEnforce=qos",
		DBD .. "AccountingStorageEnforce=qos\nAccountingStorageEnforce=limits",
		DBD .. "AccountingStorageEnforcement=qos",
		DBD .. "AccountingStorageEnforce=noqos",
		"AccountingStorageEnforce=qos",
		"AccountingStorageType=accounting_storage/none\nAccountingStorageEnforce=qos",
		DBD .. "include nowhere",
		DBD .. "include slurm.conf", -- itself, for ever
	}) do
		messages = {}
		equal(class_under(text, { qos = "lc" }), "std", text)
		equal(#messages, 1, text)
		assert(string.find(messages[1], "gets class std and not the class of QoS 'lc', because Slurm does not check", 1, true), messages[1])
	end
end)

test("an included file counts as if it stood in slurm.conf", function()
	local file = assert(io.open(scratch .. "/part.conf", "w"))
	file:write("AccountingStorageEnforce=associations,qos\n")
	file:close()
	equal(class_under(DBD .. "Include part.conf", { qos = "be" }), "be")
	equal(class_under(DBD .. "include " .. scratch .. "/part.conf\n", { qos = "be" }), "be")
end)

test("without checks the class of the default QoS stands, and nothing of what the user writes", function()
	equal(class_under(DBD, { default_qos = "be" }), "be")
	equal(class_under(DBD, { qos = "BE", default_qos = "be" }), "be")
	equal(class_under(DBD, { qos = "other", default_qos = "be" }), "std")
	equal(#messages, 0)
	equal(class_under(DBD, { qos = "lc", default_qos = "be" }), "std")
	equal(#messages, 1)
end)

test("the site's word counts where no slurm.conf can be read", function()
	os.remove(scratch .. "/slurm.conf")
	local fresh = dofile(modules .. "/hami_hpc.lua")
	fresh.settings.slurm_conf_paths = function()
		return { scratch .. "/slurm.conf", scratch }
	end
	local job, written = batch({ tres_per_node = "gres:vgpu", qos = "lc" })
	equal(fresh.job_submit(job, PARTS, 1000), 0)
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "std")
	assert(string.find(messages[1], 'qos_enforced = "yes" in hami-hpc.toml', 1, true), messages[1])
	write_site((string.gsub(SITE, 'bare_shard = "BARE"', 'qos_enforced = "yes"')))
	equal(fresh.job_submit(job, PARTS, 1000), INVALID_GRES, "the units that were written")
	job, written = batch({ tres_per_node = "gres:vgpu", qos = "lc" })
	equal(fresh.job_submit(job, PARTS, 1000), 0)
	equal(string.match(written.tres_per_node, "vgpu:(%l+):1"), "lc")
end)

test("slurm.conf is read only for a class, and not again for each job", function()
	local opened = {}
	local open = io.open
	io.open = function(path, mode)
		opened[#opened + 1] = string.find(path, "slurm.conf", 1, true) and path or nil
		return open(path, mode)
	end
	local fresh = dofile(modules .. "/hami_hpc.lua")
	for _ = 1, 3 do
		fresh.job_submit(batch({ tres_per_node = "gres:vgpu" }), PARTS, 0)
		fresh.job_submit(batch({ tres_per_node = "gres:gpu:1", qos = "lc" }), PARTS, 0)
	end
	local before = #opened
	for _ = 1, 3 do
		fresh.job_submit(batch({ tres_per_node = "gres:vgpu", qos = "lc" }), PARTS, 0)
	end
	io.open = open
	equal(before, 0)
	equal(#opened, 1)
end)

test("what Slurm's loose search for gres would find is not let through", function()
	for _, text in ipairs({ "x gres:vgpu_mem:99999", "xgres:vgpu:std:1", "gresvgpu_cores:1", "gres:vgpu,x gres:shard:1" }) do
		messages = {}
		refused(submit({ tres_per_node = text }), "is not understood")
	end
	messages = {}
	refused(submit({ tres_per_task = "x gres:vgpu_mem:99999" }), "cannot carry a vgpu request")
	refused(submit({ tres_per_node = "gres:vgpu", tres_per_task = "x gres:shard:1" }), "Leave 'x gres:shard:1' out")
	refused(submit({ tres_per_node = "x gres:shard:3" }), "is not allowed on this cluster")
end)

test("10 kB of noise after vgpu is refused in one short line", function()
	refused(submit({ tres_per_node = "gres:vgpu:" .. string.rep("x", 10000) }), "10010 bytes long")
	local message = refused(submit({ tres_per_node = "gres:vgpu:" .. string.rep("\200%s", 100) }), "plain printable ASCII")
	assert(#message < 300)
end)

test("a broken site table keeps the last good one, and says so", function()
	submit({ tres_per_node = "gres:vgpu" })
	write_site("return { version = 1,")
	local rc, written = submit({ tres_per_node = "gres:vgpu:mem~8G;cores~50" })
	equal(rc, 0)
	equal(written.tres_per_node, UNITS)
	equal(#logged, 1)
	assert(string.find(logged[1], "using the last valid site table", 1, true), logged[1])
end)

test("without any good site table vgpu is refused and nothing else", function()
	local fresh = dofile(modules .. "/hami_hpc.lua")
	for _, text in ipairs({ "return 3", "return { version = 2 }", "return { version = 1 }", "error('x')", "%",
		"return { version = 1, gpu_models = { a = {} }, partitions = {} }",
		"return { version = 1, gpu_models = {}, partitions = { p = {} } }",
		"return { version = 1, gpu_models = {}, partitions = {}, default_mem = 'lots' }" }) do
		messages = {}
		write_site(text)
		refused(fresh.job_submit(batch({ tres_per_node = "gres:vgpu" }), PARTS, 0), "settings cannot be read")
		equal(fresh.job_submit(batch({ tres_per_node = "gres:gpu:1" }), PARTS, 0), 0)
	end
	os.remove(scratch .. "/hami_hpc_site.lua")
	messages = {}
	refused(fresh.job_submit(batch({ tres_per_node = "gres:vgpu" }), PARTS, 0), "hami_hpc_site.lua not found")
end)

test("a bug refuses vgpu with a clear line and lets other jobs through", function()
	local broken = function(fields)
		return setmetatable({}, {
			__index = function(_, key)
				return fields[key]
			end,
			__newindex = function()
				error("cannot write")
			end,
		})
	end
	refused(hami.job_submit(broken({ tres_per_node = "gres:vgpu", script = "x" }), PARTS, 0), "could not be handled")
	equal(#logged, 1)
	messages = {}
	-- A field of an unexpected kind, in a job that is none of ours.
	equal(hami.job_submit(broken({ tres_per_node = {}, tres_per_job = {} }), PARTS, 0), INVALID_GRES, "unreadable job")
	messages = {}
	equal(hami.job_submit(broken({ tres_per_node = "gres:gpu:1", tres_per_job = 7 }), PARTS, 0), 0)
end)

test("slurmctld sends a job of a federation to the other clusters with its units, as root, and the shards are theirs", function()
	local function sent(gres, uid)
		local job, written = batch({ tres_per_node = gres, partition = "small", qos = "be", default_qos = "std" })
		return hami.job_submit(job, PARTS, uid), written
	end
	local units = "gres:shard:279,gres:vgpu:be:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,gres:nic:1"
	local rc, written = sent(units, 0)
	equal(rc, 0)
	equal(written.tres_per_node, "gres:shard:159,gres:vgpu:be:1,gres:vgpu_mem:8192,gres:vgpu_cores:50,gres:nic:1")
	-- A job that was just submitted comes as its user wrote it.
	rc, written = sent("vgpu:mem~50%;cores~50", 0)
	equal(rc, 0)
	equal(written.tres_per_node, "shard:159,vgpu:be:1,vgpu_mem:40704,vgpu_cores:50")
	refused(sent(units, 1000), "is set by hami_hpc itself")
end)
