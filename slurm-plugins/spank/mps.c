// SPDX-License-Identifier: GPL-2.0-or-later
#include "mps.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "record.h"
#include "share.h"

static const char PIPE[] = "CUDA_MPS_PIPE_DIRECTORY";
static const char PERCENT[] = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
static const char MEMORY[] = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
static const char PRIORITY[] = "CUDA_MPS_CLIENT_PRIORITY";
static const char PARTITION[] = "CUDA_MPS_SM_PARTITION";
/* A job's own settings of these would replace what the step is given, or make each context count apart. */
static const char LOG[] = "CUDA_MPS_LOG_DIRECTORY";
static const char PER_CONTEXT[] = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING";
static const char *const variables[] = {PIPE, PERCENT, MEMORY, PRIORITY, PARTITION, LOG, PER_CONTEXT};

/* The step's GPU, as its daemon has it alone; "" if begin() gave the step none. */
static char gpu_uuid[sizeof(((struct hami_limits *)0)->gpu_uuid) + 1];

/* Returns whether a pipe directory is one of hami_hpc's. */
static bool is_ours(const struct step_context *step, const char *pipe)
{
	char folder[PATH_MAX];
	int n = snprintf(folder, sizeof(folder), "%s/mps/", step->options.run_dir);

	return pipe && n > 0 && (size_t)n < sizeof(folder) && strncmp(pipe, folder, (size_t)n) == 0;
}

/* Reads the name of the job's static SM partition. The step's own record does not say when the job's was written. */
static bool read_partition(int dir, const char *pipe, const struct hami_limits *limits, char *text,
			   size_t size)
{
	struct hami_limits job;

	return record_read_job(dir, 0, limits->job_id, limits->uid, &job) == 0 &&
	       record_read_partition(pipe, 0, &job, text, size);
}

/* Sets the step's variables from "PRIORITY PIPE" of the job's directory and from the step's limits. */
static void set_client(struct step_context *step, spank_t spank, int dir, const char *line,
		       const struct hami_limits *limits)
{
	char percent[16], memory[48], priority[2] = {line[0], '\0'}, partition[RECORD_PARTITION_SIZE];
	const char *pipe = line[0] && line[1] == ' ' ? line + 2 : "";
	bool has_partition;

	if ((line[0] != '0' && line[0] != '1') || !is_ours(step, pipe)) {
		context_refuse(
			step,
			"%s/jobs/%u/" HAMI_FILE_MPS
			" does not name its MPS daemon. Administrator: install one version of hami_hpc on this "
			"node, with one run_dir for its prolog and in plugstack.conf",
			step->options.run_dir, step->job_id);
		return;
	}
	snprintf(percent, sizeof(percent), "%u", limits->cores_percent);
	/* 0: the daemon has this GPU alone, so it is the first of its clients. */
	snprintf(memory, sizeof(memory), "0=%lluM", (unsigned long long)(limits->mem_limit_bytes >> 20));
	/* In its own partition a percentage would be of no use, or of the partition: NVIDIA says the former. */
	has_partition = read_partition(dir, pipe, limits, partition, sizeof(partition));
	spank_unsetenv(spank, LOG);
	spank_unsetenv(spank, PER_CONTEXT);
	spank_unsetenv(spank, has_partition ? PERCENT : PARTITION);
	if (context_set_env(step, spank, PIPE, pipe) == 0 &&
	    context_set_env(step, spank, has_partition ? PARTITION : PERCENT,
			    has_partition ? partition : percent) == 0 &&
	    context_set_env(step, spank, MEMORY, memory) == 0)
		context_set_env(step, spank, PRIORITY, priority);
	snprintf(gpu_uuid, sizeof(gpu_uuid), "%.*s", (int)sizeof(limits->gpu_uuid), limits->gpu_uuid);
}

static void begin(struct step_context *step, spank_t spank, char **env, int dir,
		  const struct hami_limits *limits)
{
	char line[PATH_MAX];

	share_backend.begin(step, spank, env, dir, limits);
	if (*step->refusal || step->verdict != STEP_FENCED)
		return;
	if (record_read_mps(dir, 0, line, sizeof(line)))
		set_client(step, spank, dir, line, limits);
	else
		context_refuse(
			step,
			"%s/jobs/%u/" HAMI_FILE_MPS
			" is not there, so it has no MPS daemon. Administrator: run hami-hpc reconcile; "
			"then submit it again",
			step->options.run_dir, step->job_id);
}

static void enter_task(struct step_context *step)
{
	share_backend.enter_task(step);
}

static void start_task(struct step_context *step, spank_t spank)
{
	/* Slurm's index may be of all GPUs of the node; the daemon has this one alone. */
	if (*gpu_uuid)
		context_set_env(step, spank, "CUDA_VISIBLE_DEVICES", gpu_uuid);
}

static void end(const struct step_context *step)
{
	share_backend.end(step);
}

static void drop_inherited(const struct step_context *step, spank_t spank, char **env)
{
	if (!is_ours(step, env_value(env, PIPE)))
		return;
	for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
		spank_unsetenv(spank, variables[i]);
}

const struct backend mps_backend = {
	.begin = begin,
	.enter_task = enter_task,
	.start_task = start_task,
	.end = end,
	.drop_inherited = drop_inherited,
};
