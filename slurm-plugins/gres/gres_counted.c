// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * gres/vgpu, gres/vgpu_mem and gres/vgpu_cores: counted resources whose counts reach every environment.
 *
 * Slurm schedules these three as bare numbers and carries them in its signed credential. A plugin is the only
 * code that Slurm shows the numbers to on the node, so this one does a single thing: it writes its count into
 * the environment of the prolog, the epilog and the steps, and takes the variable out where the count is
 * zero, so that what a user exports under that name never arrives. Built three times:
 *
 *   HAMI_GRES         resource, as in gres/HAMI_GRES
 *   HAMI_ENV          variable that gets the count
 *   HAMI_WITH_CLASS   1: also HAMI_HPC_CLASS, from the resource's type (vgpu:be:1)
 *
 * Slurm calls all of it under its gres lock; there is no state here.
 */
#include "gres_api.h"

#include "hami_contract.h"

/*
 * What build_env fills in is packed by Slurm as it is and shown to this plugin's set_env only, so the class
 * travels in the count's top byte: index of the class plus one, 0 for none. A count that reaches that byte is
 * no count of ours.
 */
enum { CLASS_SHIFT = 56 };
static const uint64_t COUNT_MASK = (UINT64_C(1) << CLASS_SHIFT) - 1;

const char plugin_name[] = "hami_hpc counts for gres/" HAMI_GRES;
const char plugin_type[] = "gres/" HAMI_GRES;
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

int init(void)
{
	return SLURM_SUCCESS;
}

int fini(void)
{
	return SLURM_SUCCESS;
}

/* The count comes from slurm.conf and gres.conf; there is no hardware to look for. */
int gres_p_node_config_load(hami_list *gres_conf_list, node_config_load_t *node_conf)
{
	(void)gres_conf_list;
	(void)node_conf;
	return SLURM_SUCCESS;
}

/*
 * Slurm's own gres/shard takes SLURM_SHARDS_ON_NODE out of the environment of what holds no shards, but not
 * where it holds a GPU: what a job inherits from the job that has submitted it stays then, and SPANK would
 * take it for held. Slurm says so by this flag, from the first plugin behind gres/shard on; it gives nobody
 * both.
 */
static void drop_inherited_shards(char **env, gres_internal_flags_t flags)
{
	if (flags & GRES_INTERNAL_FLAG_PROTECT_ENV)
		unsetenvp(env, "SLURM_SHARDS_ON_NODE");
}

static void set_count(char ***env, uint64_t count)
{
	if (count > 0)
		env_array_overwrite_fmt(env, HAMI_ENV, "%" PRIu64, count);
	else
		unsetenvp(*env, HAMI_ENV);
}

/*
 * Job (batch script, interactive step) and step: called after the user's environment was loaded, with 0 when
 * the step holds none. Slurm tells these two no type, so the class is only taken out; SPANK sets it from the
 * job's record.
 */
void gres_p_job_set_env(char ***env, bitstr_t *bits, uint64_t count, gres_internal_flags_t flags)
{
	(void)bits;
	set_count(env, count);
	drop_inherited_shards(*env, flags);
	if (HAMI_WITH_CLASS)
		unsetenvp(*env, HAMI_ENV_CLASS);
}

void gres_p_step_set_env(char ***env, bitstr_t *bits, uint64_t count, gres_internal_flags_t flags)
{
	gres_p_job_set_env(env, bits, count, flags);
}

/*
 * Tasks share their step's limits and inherit its environment. Slurm calls this only for steps bound to
 * devices
 * (--gpu-bind, --tres-per-task), and then skips or accumulates counts of resources without devices: nothing
 * to use.
 */
void gres_p_task_set_env(char ***env, bitstr_t *bits, uint64_t count, bitstr_t *usable,
			 gres_internal_flags_t flags)
{
	(void)env;
	(void)bits;
	(void)count;
	(void)usable;
	(void)flags;
}

void gres_p_send_stepd(buf_t *buffer)
{
	(void)buffer;
}

void gres_p_recv_stepd(buf_t *buffer)
{
	(void)buffer;
}

hami_list *gres_p_get_devices(void)
{
	return NULL;
}

void gres_p_step_hardware_init(bitstr_t *usable, char *settings)
{
	(void)usable;
	(void)settings;
}

void gres_p_step_hardware_fini(void)
{
}

static uint64_t class_byte(const char *type_name)
{
	static const char *const classes[] = HAMI_CLASS_NAMES;

	for (uint64_t i = 0; type_name && i < sizeof(classes) / sizeof(classes[0]); i++) {
		if (strcmp(type_name, classes[i]) == 0)
			return (i + 1) << CLASS_SHIFT;
	}
	return 0;
}

/*
 * In slurmctld (and in slurmd, from the credential, where PrologFlags lacks Alloc): one count a node of the
 * job. The caller frees it. NULL means nothing to say, for a job whose resource is not consumed.
 */
hami_prep_info *hami_build_env(gres_job_state_t *job)
{
	hami_prep_info *info;
	uint64_t class = HAMI_WITH_CLASS ? class_byte(job->type_name) : 0;

	if (job->node_cnt == 0 || !job->gres_cnt_node_alloc)
		return NULL;
	info = xmalloc(sizeof(*info));
	info->node_cnt = job->node_cnt;
	info->gres_cnt_node_alloc = xcalloc(job->node_cnt, sizeof(uint64_t));
	for (uint32_t i = 0; i < job->node_cnt; i++)
		info->gres_cnt_node_alloc[i] = (job->gres_cnt_node_alloc[i] & COUNT_MASK) | class;
	return info;
}

/* The count that an earlier call left in env; 0 where there is none. */
static uint64_t count_so_far(char **env)
{
	for (; env && *env; env++) {
		if (strncmp(*env, HAMI_ENV "=", sizeof(HAMI_ENV)) == 0)
			return strtoull(*env + sizeof(HAMI_ENV), NULL, 10);
	}
	return 0;
}

/*
 * In slurmd, before the prolog and the epilog, whose environment starts empty: nothing of the user's is in
 * it. Called once for each type that the job holds: more than one only where it holds all of a node
 * (--exclusive), which the prolog sees by the sum.
 */
void hami_set_env(char ***env, hami_prep_info *info, int node_index)
{
	static const char *const classes[] = HAMI_CLASS_NAMES;
	uint64_t value, class, before;

	if (!info || !info->gres_cnt_node_alloc || node_index < 0 || (uint32_t)node_index >= info->node_cnt)
		return;
	value = info->gres_cnt_node_alloc[node_index];
	before = count_so_far(*env);
	set_count(env, before + (value & COUNT_MASK));
	class = value >> CLASS_SHIFT;
	if (HAMI_WITH_CLASS && class > 0 && class <= sizeof(classes) / sizeof(classes[0]))
		env_array_overwrite(env, HAMI_ENV_CLASS, classes[class - 1]);
}

#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(23, 2, 0)
int gres_p_get_job_info(gres_job_state_t *job, uint32_t node, enum gres_job_data_type type, void *data)
{
	(void)job;
	(void)node;
	(void)type;
	(void)data;
	return EINVAL;
}

int gres_p_get_step_info(gres_step_state_t *step, uint32_t node, enum gres_step_data_type type, void *data)
{
	(void)step;
	(void)node;
	(void)type;
	(void)data;
	return EINVAL;
}
#endif
