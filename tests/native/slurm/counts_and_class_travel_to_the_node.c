// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The three gres plugins as Slurm loads them, with Slurm's own environment functions (libslurmfull): what
 * build_env makes in slurmctld is what set_env shows in the prolog, and a step's count replaces whatever the
 * user exported.
 */
#include <dlfcn.h>

#include "check.h"
#include "gres_api.h"
#include "hami_contract.h"

struct plugin {
	hami_prep_info *(*build)(gres_job_state_t *job);
	void (*set)(char ***env, hami_prep_info *info, int node_index);
	void (*job)(char ***env, bitstr_t *bits, uint64_t count, gres_internal_flags_t flags);
	void (*step)(char ***env, bitstr_t *bits, uint64_t count, gres_internal_flags_t flags);
	void (*task)(char ***env, bitstr_t *bits, uint64_t count, bitstr_t *usable,
		     gres_internal_flags_t flags);
};

#define STRING_(x) #x
#define STRING(x) STRING_(x)

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		fprintf(stderr, "%s: %s\n", name, dlerror());
	CHECK(found);
	return found;
}

static struct plugin load(const char *directory, const char *gres)
{
	char path[4096], type[64];
	void *library;
	struct plugin plugin;

	snprintf(path, sizeof(path), "%s/gres_%s.so", directory, gres);
	library = dlopen(path, RTLD_NOW);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	snprintf(type, sizeof(type), "gres/%s", gres);
	CHECK_TEXT((const char *)symbol(library, "plugin_type"), type);
	CHECK(*(const uint32_t *)symbol(library, "plugin_version") == SLURM_VERSION_NUMBER);
	*(void **)&plugin.build = symbol(library, STRING(hami_build_env));
	*(void **)&plugin.set = symbol(library, STRING(hami_set_env));
	*(void **)&plugin.job = symbol(library, "gres_p_job_set_env");
	*(void **)&plugin.step = symbol(library, "gres_p_step_set_env");
	*(void **)&plugin.task = symbol(library, "gres_p_task_set_env");
	return plugin;
}

static void free_info(hami_prep_info *info)
{
	xfree(info->gres_cnt_node_alloc);
	xfree(info);
}

/* The environment that the prolog on node_index gets for a job of three nodes with 1, 0 and 4096. */
static char **prolog_env(const struct plugin *plugin, const char *type, int node_index)
{
	uint64_t counts[] = {1, 0, 4096};
	gres_job_state_t job = {.type_name = (char *)type, .node_cnt = 3, .gres_cnt_node_alloc = counts};
	hami_prep_info *info = plugin->build(&job);
	char **env = NULL;

	CHECK(info);
	plugin->set(&env, info, node_index);
	free_info(info);
	return env;
}

static void check_prolog(const struct plugin *plugin, const char *type, int node, const char *name,
			 const char *wanted)
{
	char **env = prolog_env(plugin, type, node);
	const char *value = env ? getenvp(env, name) : NULL;

	if (wanted)
		CHECK_TEXT(value, wanted);
	else
		CHECK(!value);
	if (env)
		env_array_free(env);
}

static void the_prolog_sees_its_nodes_count_and_the_jobs_class(const char *directory)
{
	struct plugin vgpu = load(directory, HAMI_GRES_CLASS), mem = load(directory, HAMI_GRES_MEM);
	gres_job_state_t none = {.node_cnt = 0};

	check_prolog(&vgpu, "be", 0, HAMI_ENV_VGPU, "1");
	check_prolog(&vgpu, "std", 0, HAMI_ENV_CLASS, "std");
	check_prolog(&vgpu, "lc", 0, HAMI_ENV_CLASS, "lc");
	check_prolog(&vgpu, "be", 0, HAMI_ENV_CLASS, "be");
	check_prolog(&vgpu, "bee", 0, HAMI_ENV_CLASS, "bee");
	check_prolog(&vgpu, "interactive_2", 2, HAMI_ENV_CLASS, "interactive_2");
	check_prolog(&vgpu, "x", 0, HAMI_ENV_CLASS, "x");
	check_prolog(&vgpu, "a_class_of_15_b", 0, HAMI_ENV_CLASS, "a_class_of_15_b");
	check_prolog(&vgpu, "a_class_of_16_by", 0, HAMI_ENV_CLASS, NULL);
	check_prolog(&vgpu, "a_class_of_16_by", 0, HAMI_ENV_VGPU, "1");
	check_prolog(&vgpu, "Interactive", 0, HAMI_ENV_CLASS, NULL);
	check_prolog(&vgpu, "9", 0, HAMI_ENV_CLASS, NULL);
	check_prolog(&vgpu, "", 0, HAMI_ENV_CLASS, NULL);
	check_prolog(&vgpu, NULL, 0, HAMI_ENV_CLASS, NULL);
	check_prolog(&vgpu, "be", 2, HAMI_ENV_VGPU, "4096");
	check_prolog(&vgpu, "be", 1, HAMI_ENV_VGPU, NULL);
	check_prolog(&mem, "be", 2, HAMI_ENV_MEM_MIB, "4096");
	check_prolog(&mem, "be", 2, HAMI_ENV_CLASS, NULL);
	check_prolog(&mem, NULL, 3, HAMI_ENV_MEM_MIB, NULL);
	check_prolog(&vgpu, "be", 3, HAMI_ENV_VGPU, NULL); /* the name is there, and no node */
	check_prolog(&vgpu, "be", 4, HAMI_ENV_VGPU, NULL);
	check_prolog(&vgpu, "be", 5, HAMI_ENV_VGPU, NULL);
	check_prolog(&mem, NULL, -1, HAMI_ENV_MEM_MIB, NULL);
	CHECK(!mem.build(&none));
}

/* Slurm gives such a job every unit of the node, and calls once for each type. */
static void a_job_with_all_of_a_node_shows_the_sum(const char *directory)
{
	struct plugin vgpu = load(directory, HAMI_GRES_CLASS);
	static const char *const types[] = {"std", "lc", "be"};
	uint64_t counts[] = {559};
	char **env = NULL;

	for (size_t i = 0; i < 3; i++) {
		gres_job_state_t job = {
			.type_name = (char *)types[i], .node_cnt = 1, .gres_cnt_node_alloc = counts};
		hami_prep_info *info = vgpu.build(&job);

		CHECK(info);
		vgpu.set(&env, info, 0);
		free_info(info);
	}
	CHECK_TEXT(getenvp(env, HAMI_ENV_VGPU), "1677");
	env_array_free(env);
}

static void a_steps_count_replaces_what_the_user_exported(const char *directory)
{
	static const char *const gres[] = {HAMI_GRES_CLASS, HAMI_GRES_MEM, HAMI_GRES_CORES, HAMI_GRES_SLO};
	static const char *const names[] = {HAMI_ENV_VGPU, HAMI_ENV_MEM_MIB, HAMI_ENV_CORES, HAMI_ENV_SLO_US};

	for (size_t i = 0; i < 4; i++) {
		struct plugin plugin = load(directory, gres[i]);
		char **env = env_array_create();

		env_array_overwrite(&env, names[i], "999999");
		env_array_overwrite(&env, HAMI_ENV_CLASS, "lc");
		env_array_overwrite(&env, "PATH", "/bin");
		env_array_overwrite(&env, "SLURM_SHARDS_ON_NODE", "5");
		plugin.job(&env, NULL, 0, 0);
		CHECK_TEXT(getenvp(env, "SLURM_SHARDS_ON_NODE"), "5"); /* Slurm's own word */
		plugin.job(&env, NULL, 0, GRES_INTERNAL_FLAG_PROTECT_ENV);
		CHECK(!getenvp(env, "SLURM_SHARDS_ON_NODE")); /* inherited: what holds a GPU has no shards */
		plugin.step(&env, NULL, 25, 0);
		CHECK_TEXT(getenvp(env, names[i]), "25");
		plugin.task(&env, NULL, 7, NULL, 0); /* tasks have their step's */
		CHECK_TEXT(getenvp(env, names[i]), "25");
		plugin.job(&env, NULL, 50, 0);
		CHECK_TEXT(getenvp(env, names[i]), "50");
		plugin.step(&env, NULL, 0, 0);
		CHECK(!getenvp(env, names[i]));
		/* The class is gres/vgpu's to take out. */
		CHECK(!getenvp(env, HAMI_ENV_CLASS) == (i == 0));
		CHECK_TEXT(getenvp(env, "PATH"), "/bin");
		env_array_free(env);
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	the_prolog_sees_its_nodes_count_and_the_jobs_class(argv[1]);
	a_job_with_all_of_a_node_shows_the_sum(argv[1]);
	a_steps_count_replaces_what_the_user_exported(argv[1]);
	return 0;
}
