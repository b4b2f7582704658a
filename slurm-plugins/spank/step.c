// SPDX-License-Identifier: GPL-2.0-or-later
#include "step.h"

#include <errno.h>
#include <limits.h>
#include <link.h>
#include <slurm/slurm.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "decide.h"
#include "ldso.h"
#include "preload.h"
#include "record.h"

/* Filled by step_begin in slurmstepd; the tasks' processes inherit it by fork. */
static struct {
	struct options options;
	uint32_t job_id, step_id;
	enum step_verdict verdict;
	bool record_written;
	char refusal[PATH_MAX + 1024]; /* "": not refused */
} step;

__attribute__((format(printf, 1, 2))) static void refuse(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(step.refusal, sizeof(step.refusal), format, arguments);
	va_end(arguments);
}

static int note_plugin(struct dl_phdr_info *info, size_t size, void *found)
{
	(void)size;
	if (info->dlpi_name && strstr(info->dlpi_name, "/gres_" HAMI_GRES_MEM ".so"))
		*(bool *)found = true;
	return 0;
}

/* slurmd loads, and tells slurmstepd to load, a plugin for each of GresTypes, on nodes without that gres too.
 */
static bool gres_plugins_loaded(void)
{
	bool found = false;

	dl_iterate_phdr(note_plugin, &found);
	return found;
}

static uint64_t unix_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#define HOW_TO_ASK                                                                                           \
	"Ask with srun --gres=vgpu:mem=4G,cores=25, with no --gres for all that the job has, "               \
	"or with --gres=none for a step without GPU"

static void refuse_verdict(enum step_verdict verdict)
{
	switch (verdict) {
	case STEP_NO_RECORD:
		refuse("it holds a vGPU, but the node has no %s/jobs/%u/" HAMI_FILE_JOB_LIMITS
		       " that would fence it. The prolog writes it. Administrator: check Prolog= "
		       "in slurm.conf, the gres_vgpu*.so in slurmctld's PluginDir, and slurmd's log; then "
		       "submit the job "
		       "again",
		       step.options.run_dir, step.job_id);
		break;
	case STEP_NO_PLUGINS:
		refuse("it holds gres/shard, and slurmd on this node has not loaded hami_hpc's gres plugins, "
		       "which say how much. Administrator: install the gres_vgpu*.so that were built for "
		       "exactly this Slurm into PluginDir and restart slurmd");
		break;
	case STEP_SHARDS_ALONE:
		refuse("it takes gres/shard of the job's vGPU without saying how much memory. " HOW_TO_ASK);
		break;
	case STEP_UNITS_ALONE:
		refuse("it takes memory or cores of the job's vGPU without gres/shard. " HOW_TO_ASK);
		break;
	case STEP_NOT_OURS:
	case STEP_FENCED:
	case STEP_WITHOUT_GPU:
		break;
	}
}

/* ld.so only warns about a library that it cannot preload: that would be a step without a fence. */
static int check_interposer(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0) {
		refuse("the library that fences it, %s, is not there (%s). Administrator: install "
		       "hami_hpc on this node, or correct interposer= in plugstack.conf",
		       path, strerror(errno));
		return -1;
	}
	if (!S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)) ||
	    !(st.st_mode & S_IROTH)) {
		refuse("the library that fences it, %s, must be a file of root, readable by all and writable "
		       "by root only. Administrator: install hami_hpc on this node again",
		       path);
		return -1;
	}
	return 0;
}

/* Returns 1 and the record, 0 where the job has none here, -1 when it cannot be trusted (refused). */
static int read_job(int dir, uint32_t uid, struct hami_limits *job)
{
	int rc = record_read_job(dir, 0, step.job_id, uid, job);

	if (rc == 0)
		return 1;
	if (rc == -ENOENT)
		return 0;
	refuse("its job's limits record %s/jobs/%u/" HAMI_FILE_JOB_LIMITS
	       " %s. Administrator: look for the prolog in slurmd's log, then cancel the job and submit it "
	       "again",
	       step.options.run_dir, step.job_id,
	       rc > 0 ? record_fault((enum record_fault)rc) : strerror(-rc));
	return -1;
}

/* A job submitted from a vGPU job inherits that one's settings, which would fence it by a record long gone.
 */
static void drop_inherited(spank_t spank, char **env)
{
	const char *old = env_value(env, "LD_PRELOAD");
	char *rest;

	if (!env_value(env, HAMI_ENV_LIMITS) && !preload_has(old, step.options.interposer))
		return;
	rest = preload_without(old, step.options.interposer);
	if (rest && *rest)
		spank_setenv(spank, "LD_PRELOAD", rest, 1);
	else
		spank_unsetenv(spank, "LD_PRELOAD");
	free(rest);
	spank_unsetenv(spank, HAMI_ENV_LIMITS);
	spank_unsetenv(spank, HAMI_ENV_CLASS);
}

static int set_env(spank_t spank, const char *name, const char *value)
{
	spank_err_t rc = value ? spank_setenv(spank, name, value, 1) : ESPANK_ERROR;

	if (rc == ESPANK_SUCCESS)
		return 0;
	refuse("%s could not be set in its environment (%s). Submit the job again; if that does not help, "
	       "tell the administrator",
	       name, spank_strerror(rc));
	return -1;
}

static int set_step_env(spank_t spank, char **env, const struct hami_limits *limits)
{
	static const char *const classes[] = HAMI_CLASS_NAMES;
	char path[PATH_MAX];
	char *preload;
	int rc;

	snprintf(path, sizeof(path), "%s/jobs/%u/" HAMI_FILE_STEP_LIMITS_FORMAT, step.options.run_dir,
		 step.job_id, step.step_id);
	/* First what reads env: setting a variable may move it. */
	preload = preload_with(env_value(env, "LD_PRELOAD"), step.options.interposer);
	rc = step.options.preload == PRELOAD_ENV ? set_env(spank, "LD_PRELOAD", preload) : 0;
	free(preload);
	if (rc == 0)
		rc = set_env(spank, HAMI_ENV_LIMITS, path);
	if (rc == 0)
		rc = set_env(spank, HAMI_ENV_CLASS, classes[limits->service_class]);
	return rc;
}

static void fence(spank_t spank, char **env, int dir, const struct hami_limits *limits)
{
	int rc;

	if (check_interposer(step.options.interposer) < 0)
		return;
	rc = record_write_step(dir, limits);
	if (rc < 0) {
		refuse("its limits record could not be written to %s/jobs/%u (%s). Administrator: make room",
		       step.options.run_dir, step.job_id, strerror(-rc));
		return;
	}
	step.record_written = true;
	if (step.options.preload == PRELOAD_LDSO &&
	    ldso_prepare(dir, &step.options, step.refusal, sizeof(step.refusal)) < 0)
		return;
	set_step_env(spank, env, limits);
}

/* Slurm has no way for a prolog to fail the job and spare the node: it leaves word here instead. */
static bool refused_by_prolog(int dir)
{
	char reason[1024];

	if (dir < 0 || !record_read_refusal(dir, 0, reason, sizeof(reason)))
		return false;
	refuse("%s", reason);
	return true;
}

static void begin(spank_t spank, char **env, uint32_t uid)
{
	struct hami_limits job, own;
	struct step_units units;
	int dir, has_record;

	if (step_units_parse(env, &units) < 0) {
		refuse("one of " HAMI_ENV_VGPU ", " HAMI_ENV_MEM_MIB " and " HAMI_ENV_CORES
		       " in its environment is no number, so Slurm's gres plugins have not set it. Take "
		       "it out of the environment; if it is not yours, tell the administrator");
		return;
	}
	dir = record_open_dir(step.options.run_dir, step.job_id);
	if (dir < 0 && dir != -ENOENT) {
		refuse("%s/jobs/%u cannot be opened (%s). Administrator: check that directory",
		       step.options.run_dir, step.job_id, strerror(-dir));
		return;
	}
	has_record = dir < 0 ? 0 : read_job(dir, uid, &job);
	if (has_record >= 0 && !refused_by_prolog(dir)) {
		step.verdict = step_decide(&units, has_record, has_record || gres_plugins_loaded());
		refuse_verdict(step.verdict);
	}
	if (step.verdict == STEP_FENCED || step.verdict == STEP_WITHOUT_GPU) {
		step_limits(&job, &units, step.verdict, step.step_id, unix_ns(), &own);
		fence(spank, env, dir, &own);
	} else if (step.verdict == STEP_NOT_OURS && !*step.refusal) {
		drop_inherited(spank, env);
	}
	if (dir >= 0)
		close(dir);
}

void step_begin(spank_t spank, int argc, char **argv)
{
	char error[PATH_MAX + 256];
	struct step_units units;
	char **env = NULL;
	uid_t uid;

	if (spank_get_item(spank, S_JOB_ID, &step.job_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &step.step_id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_ENV, &env) != ESPANK_SUCCESS) {
		refuse("Slurm did not tell its job, step, user and environment. Administrator: build "
		       "hami_hpc's plugins again, for this Slurm");
		return;
	}
	if (step.step_id == SLURM_EXTERN_CONT)
		return; /* runs nothing of the user's */
	if (options_parse(argc, argv, &step.options, error, sizeof(error)) == 0) {
		begin(spank, env, uid);
		return;
	}
	slurm_error("hami_hpc: %s. Correct plugstack.conf; until then no step with a vGPU starts", error);
	/* Where the records lie is not known, so whatever may hold a vGPU is refused, and nothing else. */
	if (step_units_parse(env, &units) < 0 || units.shards || units.vgpu || units.mem || units.cores)
		refuse("hami_hpc's settings are wrong: %s. Administrator: correct plugstack.conf", error);
}

void step_enter_namespace(void)
{
	if (*step.refusal || !step.record_written || step.options.preload != PRELOAD_LDSO)
		return;
	ldso_enter(&step.options, step.job_id, step.step_id, step.refusal, sizeof(step.refusal));
}

/* Once a node: every task of the step ends for the same reason. */
__attribute__((noreturn)) static void end_task(spank_t spank)
{
	int local_id = 0;

	spank_get_item(spank, S_TASK_ID, &local_id);
	if (local_id == 0)
		slurm_error("hami_hpc: job %u step %u is not started: %s.", step.job_id, step.step_id,
			    step.refusal);
	/*
	 * Not by the callback's result: Slurm ignores that of a plugin which plugstack.conf calls optional,
	 * and the step must not run even so. This is the task's own process, which Slurm would end the same
	 * way.
	 */
	_exit(1);
}

void step_start_task(spank_t spank)
{
	/*
	 * A step without GPU: Slurm takes CUDA_VISIBLE_DEVICES away, which for CUDA means all. Its record
	 * already forbids any allocation; the empty list makes programs see what is true, no device, instead
	 * of one without memory.
	 */
	if (!*step.refusal && step.verdict == STEP_WITHOUT_GPU)
		set_env(spank, "CUDA_VISIBLE_DEVICES", "");
	if (*step.refusal)
		end_task(spank);
}

void step_end(void)
{
	int dir, rc;

	if (!step.record_written)
		return;
	dir = record_open_dir(step.options.run_dir, step.job_id);
	if (dir < 0)
		return; /* the epilog was quicker */
	rc = record_remove_step(dir, step.step_id);
	if (rc < 0)
		slurm_error("hami_hpc: job %u step %u: its limits record could not be removed (%s); the "
			    "epilog will.",
			    step.job_id, step.step_id, strerror(-rc));
	close(dir);
}
