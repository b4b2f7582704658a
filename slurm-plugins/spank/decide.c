// SPDX-License-Identifier: GPL-2.0-or-later
#include "decide.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

/* Slurm's own gres/shard sets it for steps that hold shards and removes it from all others. */
static const char ENV_SHARDS[] = "SLURM_SHARDS_ON_NODE";
/* gres/gpu and gres/shard set it for steps with a device. */
static const char ENV_GPUS[] = "SLURM_GPUS_ON_NODE";

const char *env_value(char **env, const char *name)
{
	size_t length = strlen(name);

	for (; env && *env; env++) {
		if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
			return *env + length + 1;
	}
	return NULL;
}

/* Parses decimal digits only. Returns 0 or -EINVAL. */
static int parse_count(const char *text, uint64_t *count)
{
	uint64_t value = 0;

	if (*text == '\0')
		return -EINVAL;
	for (; *text; text++) {
		uint64_t digit = (uint64_t)(unsigned char)*text - '0';

		if (digit > 9 || value > (UINT64_MAX - digit) / 10)
			return -EINVAL;
		value = value * 10 + digit;
	}
	*count = value;
	return 0;
}

static int parse_optional(char **env, const char *name, bool *has, uint64_t *count)
{
	const char *text = env_value(env, name);
	int rc;

	*has = false;
	*count = 0;
	if (!text)
		return 0;
	rc = parse_count(text, count);
	*has = rc == 0 && *count > 0;
	return rc;
}

int step_units_parse(char **env, struct step_units *units)
{
	uint64_t ignored;
	const char *gpus = env_value(env, ENV_GPUS);
	int rc = parse_optional(env, ENV_SHARDS, &units->shards, &ignored);

	units->gpus = gpus && *gpus && strcmp(gpus, "0") != 0;
	if (rc == 0)
		rc = parse_optional(env, HAMI_ENV_VGPU, &units->vgpu, &units->slices);
	if (rc == 0)
		rc = parse_optional(env, HAMI_ENV_MEM_MIB, &units->mem, &units->mem_mib);
	if (rc == 0)
		rc = parse_optional(env, HAMI_ENV_CORES, &units->cores, &units->cores_percent);
	return rc;
}

static bool has_units(const struct step_units *units)
{
	return units->vgpu || units->mem || units->cores;
}

static enum step_verdict decide_slice(const struct step_units *units)
{
	if (has_units(units))
		return units->shards ? STEP_FENCED : STEP_UNITS_ALONE;
	return units->shards ? STEP_SHARDS_ALONE : STEP_WITHOUT_GPU;
}

/* Decides for a job with whole GPUs. Slurm gives such a job no shards, so a step with shards is refused. */
static enum step_verdict decide_whole(const struct step_units *units, bool bare_shards_allowed)
{
	if (units->shards && !bare_shards_allowed)
		return STEP_BARE_SHARDS;
	return has_units(units) && !units->gpus ? STEP_WHOLE_SLICED : STEP_WHOLE;
}

enum step_verdict step_decide(const struct step_units *units, enum job_kind kind, bool plugins_loaded,
			      bool bare_shards_allowed)
{
	/* Without the plugins nobody has removed what the user exported of units. */
	if (kind == JOB_SLICE && !plugins_loaded && (units->shards || has_units(units)))
		return STEP_NO_PLUGINS;
	if (kind == JOB_SLICE)
		return decide_slice(units);
	if (kind == JOB_WHOLE)
		return decide_whole(units, bare_shards_allowed);
	if (has_units(units))
		return STEP_NO_RECORD;
	/* Without the plugins a vGPU job looks like a job with bare shards, here and in the prolog. */
	if (units->shards && !plugins_loaded)
		return STEP_NO_PLUGINS;
	return units->shards && !bare_shards_allowed ? STEP_BARE_SHARDS : STEP_NOT_OURS;
}

/* Returns a share of the GPU as one of the MIG instance that is the job's: whole percent, at least 1. */
static uint32_t device_percent(uint32_t step_percent, uint32_t job_percent)
{
	uint32_t percent = job_percent ? (uint32_t)(100ull * step_percent / job_percent) : 100;

	return percent < 1 ? 1 : percent;
}

/* Returns the job's record as it was before it was resized: a step's units are parts of its job's, which stay. */
static struct hami_limits job_as_asked(const struct hami_limits *job)
{
	struct hami_limits asked = *job;

	if (job->asked_mem_bytes) {
		asked.mem_limit_bytes = job->asked_mem_bytes;
		asked.cores_percent = job->asked_cores_percent;
	}
	asked.asked_mem_bytes = asked.most_mem_bytes = asked.asked_cores_percent = 0;
	return asked;
}

void step_limits(const struct hami_limits *job, const struct step_units *units, enum step_verdict verdict,
		 uint32_t step_id, uint64_t created_unix_ns, struct hami_limits *step)
{
	/* A larger count of MiB does not fit 64 bits of bytes, so it is not below the job's limit. */
	const uint64_t max_mib = UINT64_MAX >> 20;
	const uint64_t slices = units->vgpu && units->slices > 1 ? units->slices : 1;
	const uint64_t mem_mib = units->mem_mib / slices;
	/* A step that holds fewer cores than slices has the least of each. */
	const uint64_t cores = units->cores_percent < slices ? 1 : units->cores_percent / slices;

	const struct hami_limits asked = job_as_asked(job);

	*step = asked;
	step->step_id = step_id;
	step->sequence = 0;
	step->created_unix_ns = created_unix_ns;
	/* Root keeps these up to date in the job's record alone. */
	step->latency_others = 0;
	step->latency_above = 0;
	step->others_least_cores = 0;
	step->others_capped = 0;
	step->turn_begin_permille = 0;
	step->turn_length_permille = 0;
	if (verdict == STEP_WITHOUT_GPU) {
		step->mem_limit_bytes = 0;
		return;
	}
	/* What its job has is then said by the job's record alone, which a resize changes while the step runs. */
	if (job->mode == HAMI_MODE_SHARE) {
		step->mem_limit_bytes = UINT64_MAX;
		step->cores_percent = 100;
	}
	if (units->mem && mem_mib <= max_mib && mem_mib << 20 < asked.mem_limit_bytes)
		step->mem_limit_bytes = mem_mib << 20;
	if (units->cores && cores < asked.cores_percent)
		step->cores_percent = (uint32_t)cores;
	if (job->mode == HAMI_MODE_MIG && step_is_part(job, step))
		step->device_percent = device_percent(step->cores_percent, job->cores_percent);
}

bool step_is_part(const struct hami_limits *job, const struct hami_limits *step)
{
	return step->mem_limit_bytes < job->mem_limit_bytes || step->cores_percent < job->cores_percent;
}
