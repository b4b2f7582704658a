// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * gres/vgpu, gres/vgpu_mem, gres/vgpu_cores and gres/vgpu_slo: writes the counts of these gres into environments.
 *
 * Slurm schedules these as plain numbers and sends them in its signed credential. On the node Slurm
 * passes the numbers only to a gres plugin. So this plugin writes its count into the environment of the
 * prolog, the epilog and the steps. Where the count is zero it removes the variable, so that a value which a
 * user exports never gets there. Built once for each:
 *
 *   HAMI_GRES         resource, as in gres/HAMI_GRES
 *   HAMI_ENV          variable that gets the count
 *   HAMI_WITH_CLASS   1: also sets HAMI_HPC_CLASS, from the resource's type (vgpu:be:1)
 *
 * Slurm calls all functions under its gres lock. The plugin has no state.
 */
#include "gres_api.h"

#include "hami_class_name.h"
#include "hami_contract.h"

/*
 * build_env puts the name of the class behind the counts: as two more nodes, whose counts are its bytes. Slurm
 * (22.05 to 26.05, gres_job_alloc_pack and gres_prep_pack) packs node_cnt and that many counts as they are, and
 * passes them only to this plugin's set_env, with the job's own index of the node. So the name travels with
 * the job, and controller and node need no common list of classes.
 */
#define NAME_COUNTS (HAMI_WITH_CLASS ? HAMI_CLASS_NAME_SIZE / (uint32_t)sizeof(uint64_t) : 0)

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

/* Does nothing: the count is in slurm.conf and gres.conf, and there is no hardware to detect. */
int gres_p_node_config_load(hami_list *gres_conf_list, node_config_load_t *node_conf)
{
	(void)gres_conf_list;
	(void)node_conf;
	return SLURM_SUCCESS;
}

/*
 * Removes a SLURM_SHARDS_ON_NODE that a job inherited from the job that submitted it, and that SPANK would
 * read as shards held. Slurm's own gres/shard removes it from a job or step without shards, but not if that
 * holds a GPU. In that case Slurm sets this flag for the plugins after gres/shard. Slurm gives nobody both
 * shards and whole GPUs.
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
 * For a job (batch script, interactive step) and for a step: called after the user's environment is loaded,
 * with count 0 if the step holds none. Slurm does not pass the type, so the class is only removed; SPANK sets
 * it from the job's record.
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
 * Does nothing: tasks share their step's limits and inherit its environment. Slurm calls this only for steps
 * bound to devices (--gpu-bind, --tres-per-task), and then skips or accumulates the counts of resources
 * without devices, so that they cannot be used.
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

/* Writes a type's name into counts, which are 0, as 8 bytes each, whatever the machine's byte order is. */
static void pack_name(uint64_t *counts, const char *type_name)
{
	size_t length = type_name ? strlen(type_name) : 0;

	for (size_t i = 0; i < length && length <= HAMI_CLASS_NAME_MAX; i++)
		counts[i / 8] |= (uint64_t)(unsigned char)type_name[i] << 8 * (i % 8);
}

/* Reads what pack_name wrote. Returns whether it is the name of a class. */
static bool unpack_name(const uint64_t *counts, char name[HAMI_CLASS_NAME_SIZE])
{
	for (size_t i = 0; i < HAMI_CLASS_NAME_SIZE; i++)
		name[i] = (char)(counts[i / 8] >> 8 * (i % 8));
	return hami_is_class_name(name);
}

/*
 * Returns one count per node of the job, and the class behind them, which the caller frees; NULL for a job that
 * consumes none of the resource. Called in slurmctld, and without PrologFlags=Alloc in slurmd, from the
 * credential. A type that is no class's name, which no gres.conf of render's has, does not reach the prolog.
 */
hami_prep_info *hami_build_env(gres_job_state_t *job)
{
	hami_prep_info *info;

	if (job->node_cnt == 0 || !job->gres_cnt_node_alloc)
		return NULL;
	info = xmalloc(sizeof(*info));
	info->node_cnt = job->node_cnt + NAME_COUNTS;
	info->gres_cnt_node_alloc = xcalloc(info->node_cnt, sizeof(uint64_t));
	for (uint32_t i = 0; i < job->node_cnt; i++)
		info->gres_cnt_node_alloc[i] = job->gres_cnt_node_alloc[i];
	if (HAMI_WITH_CLASS)
		pack_name(info->gres_cnt_node_alloc + job->node_cnt, job->type_name);
	return info;
}

/* Returns the count that an earlier call put into env, 0 if there is none. */
static uint64_t count_so_far(char **env)
{
	for (; env && *env; env++) {
		if (strncmp(*env, HAMI_ENV "=", sizeof(HAMI_ENV)) == 0)
			return strtoull(*env + sizeof(HAMI_ENV), NULL, 10);
	}
	return 0;
}

/*
 * Sets the variables of prolog and epilog. Called in slurmd, with an environment that has nothing of the
 * user's. Called once for each type that the job holds. Only a job that holds a whole node (--exclusive) has
 * more than one type; the prolog recognises it by the sum.
 */
void hami_set_env(char ***env, hami_prep_info *info, int node_index)
{
	char name[HAMI_CLASS_NAME_SIZE];

	if (!info || !info->gres_cnt_node_alloc || node_index < 0 ||
	    (uint64_t)node_index + NAME_COUNTS >= info->node_cnt)
		return;
	set_count(env, count_so_far(*env) + info->gres_cnt_node_alloc[node_index]);
	if (HAMI_WITH_CLASS && unpack_name(info->gres_cnt_node_alloc + info->node_cnt - NAME_COUNTS, name))
		env_array_overwrite(env, HAMI_ENV_CLASS, name);
}

#if SLURM_VERSION_NUMBER < SLURM_VERSION_NUM(24, 11, 0)
/* Slurm's daemons end where a gres plugin lacks one of these; nothing in Slurm asks them. */
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
