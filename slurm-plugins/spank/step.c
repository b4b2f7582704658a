// SPDX-License-Identifier: GPL-2.0-or-later
#include "step.h"

#include <errno.h>
#include <limits.h>
#include <link.h>
#include <slurm/slurm.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend.h"
#include "context.h"
#include "decide.h"
#include "job.h"
#include "record.h"
#include "refusal.h"
#include "requeue.h"
#include "resize.h"
#include "standing_task.h"
#include "suspension.h"
#include "torch.h"

static struct step_context step;

static const struct backend *backend; /* of the step's slice; NULL if it has none */
static enum bind_mode bind_mode;      /* --vgpu-bind */
static bool sets_torch;               /* --vgpu-torch */
static const char *new_size;          /* --vgpu-resize; NULL without */
static char resized[1024];            /* what root's program says of it, for the user */

static int note_plugin(struct dl_phdr_info *info, size_t size, void *is_loaded)
{
	(void)size;
	if (info->dlpi_name && strstr(info->dlpi_name, "/gres_" HAMI_GRES_MEM ".so"))
		*(bool *)is_loaded = true;
	return 0;
}

/*
 * Returns whether hami_hpc's gres plugins are loaded. slurmd and slurmstepd load a plugin for each of
 * GresTypes, also on nodes without that gres.
 */
static bool gres_plugins_loaded(void)
{
	bool is_loaded = false;

	dl_iterate_phdr(note_plugin, &is_loaded);
	return is_loaded;
}

static void refuse_verdict(enum step_verdict verdict)
{
	if (verdict == STEP_NO_RECORD && requeue_instead(&step))
		return;
	refusal_write(verdict, step.options.run_dir, step.job_id, step.refusal, sizeof(step.refusal));
}

/* Removes the units' variables. Slurm sets them for a job with whole GPUs, where they mean nothing. */
static void drop_units(spank_t spank)
{
	static const char *const names[] = {HAMI_ENV_VGPU, HAMI_ENV_CLASS, HAMI_ENV_MEM_MIB, HAMI_ENV_CORES,
					    HAMI_ENV_SLO_US};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		spank_unsetenv(spank, names[i]);
}

/* Resizes the step's job. Refuses the step if that fails. */
static void resize(enum job_kind kind, uint32_t uid)
{
	if (kind != JOB_SLICE)
		context_refuse(&step, "its job has no vGPU on this node that could be resized");
	else if (resize_run(&step.options, step.job_id, uid, new_size, resized, sizeof(resized)) < 0)
		context_refuse(&step, "%s", resized);
}

static void begin(spank_t spank, char **env, uint32_t uid)
{
	static struct hami_limits own[RECORD_SLICES_MAX];
	char line[1024];
	struct hami_limits job;
	struct step_units units;
	int dir, kind;

	if (step_units_parse(env, &units) < 0) {
		context_refuse(
			&step,
			"one of " HAMI_ENV_VGPU ", " HAMI_ENV_MEM_MIB " and " HAMI_ENV_CORES
			" in its environment is not a number, so Slurm's gres plugins did not set it. Unset "
			"it; if you did not set it, tell the administrator");
		return;
	}
	dir = record_open_dir(step.options.run_dir, step.job_id);
	if (dir < 0 && dir != -ENOENT) {
		context_refuse(&step, "%s/jobs/%u cannot be opened (%s). Administrator: check that directory",
			       step.options.run_dir, step.job_id, strerror(-dir));
		return;
	}
	kind = job_read_kind(&step, dir, uid, &job);
	if (kind >= 0 && !job_is_refused(&step, dir)) {
		step.verdict = step_decide(&units, (enum job_kind)kind, gres_plugins_loaded(),
					   step.options.bare_shard == BARE_SHARD_ALLOW);
		refuse_verdict(step.verdict);
	}
	/* A batch step has it only of a variable that its user made: sbatch does not know the option. */
	if (kind >= 0 && new_size && !*step.refusal && step.step_id != SLURM_BATCH_SCRIPT)
		resize((enum job_kind)kind, uid);
	if ((step.verdict == STEP_FENCED || step.verdict == STEP_WITHOUT_GPU) && !*step.refusal) {
		backend = job_begin_slices(&step, spank, dir, &job, &units, own);
		if (!*step.refusal &&
		    suspension_begin(&step.options, step.job_id, &job, line, sizeof(line)) < 0)
			slurm_error("hami_hpc: job %u keeps its device memory when it is suspended: %s",
				    step.job_id, line);
	} else if ((step.verdict == STEP_NOT_OURS || step.verdict == STEP_WHOLE) && !*step.refusal) {
		backend_drop_inherited(&step, spank, NULL);
		if (step.verdict == STEP_WHOLE)
			drop_units(spank);
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
		context_refuse(&step,
			       "Slurm did not pass its job, step, user and environment. Administrator: "
			       "rebuild hami_hpc's plugins for this Slurm");
		return;
	}
	if (step.step_id == SLURM_EXTERN_CONT)
		return; /* runs no program of the user */
	if (sets_torch && bind_mode == BIND_SINGLE) {
		context_refuse(
			&step,
			"--vgpu-torch and --vgpu-bind=single exclude each other: programs take the GPU with the "
			"number LOCAL_RANK, and each task would see one GPU only. Leave --vgpu-bind out");
		return;
	}
	if (options_parse(argc, argv, "plugstack.conf", &step.options, error, sizeof(error)) == 0) {
		begin(spank, env, uid);
		return;
	}
	slurm_error("hami_hpc: %s. Correct plugstack.conf; until then no step with a vGPU starts", error);
	/* The directory of the records is not known, so every step that may have a vGPU is refused. */
	if (step_units_parse(env, &units) < 0 || units.shards || units.vgpu || units.mem || units.cores)
		context_refuse(&step,
			       "hami_hpc's settings are wrong: %s. Administrator: correct plugstack.conf",
			       error);
}

void step_enter_task(void)
{
	if (!*step.refusal && backend)
		backend->enter_task(&step);
}

/* What is to be said for a step is the same for all its tasks, of which the node's first one says it. */
static bool is_first_task(spank_t spank)
{
	int local_id = 0;

	spank_get_item(spank, S_TASK_ID, &local_id);
	return local_id == 0;
}

/* Ends this task's process, with the reason. */
__attribute__((noreturn)) static void end_task(spank_t spank)
{
	if (is_first_task(spank) && new_size)
		slurm_error("hami_hpc: job %u is not resized: %s.", step.job_id, step.refusal);
	else if (is_first_task(spank))
		slurm_error("hami_hpc: job %u step %u is not started: %s.", step.job_id, step.step_id,
			    step.refusal);
	/*
	 * The callback's result would not do: Slurm ignores it if plugstack.conf has the plugin as optional.
	 * This is the task's own process, which Slurm would end in the same way.
	 */
	_exit(1);
}

void step_set_bind(enum bind_mode mode)
{
	bind_mode = mode;
}

void step_set_torch(void)
{
	sets_torch = true;
}

void step_set_size(const char *text)
{
	new_size = text;
}

/* Leaves the task one GPU of its step, for --vgpu-bind=single. Which GPUs it can open stays Slurm's matter. */
static void start_bound(spank_t spank)
{
	char devices[2048], one[256];
	int local_id = 0;

	if (spank_get_item(spank, S_TASK_ID, &local_id) == ESPANK_SUCCESS && local_id >= 0 &&
	    spank_getenv(spank, "CUDA_VISIBLE_DEVICES", devices, sizeof(devices)) == ESPANK_SUCCESS &&
	    bind_choose(devices, (unsigned int)local_id, one, sizeof(one)) == 0)
		context_set_env(&step, spank, "CUDA_VISIBLE_DEVICES", one);
}

void step_start_task(spank_t spank)
{
	/*
	 * For a step without GPU Slurm removes CUDA_VISIBLE_DEVICES, which for CUDA means all devices. The
	 * step's record already forbids any allocation. With an empty list programs see no device, instead of
	 * a device without memory.
	 */
	if (!*step.refusal && step.verdict == STEP_WITHOUT_GPU)
		context_set_env(&step, spank, "CUDA_VISIBLE_DEVICES", "");
	else if (!*step.refusal && backend && backend->start_task)
		backend->start_task(&step, spank);
	else if (!*step.refusal && step.verdict == STEP_NOT_OURS)
		standing_start_task(&step, spank);
	else if (!*step.refusal && step.verdict == STEP_FENCED && bind_mode == BIND_SINGLE)
		start_bound(spank);
	if (!*step.refusal && sets_torch && step.step_id != SLURM_BATCH_SCRIPT)
		torch_start_task(&step, spank);
	if (*step.refusal)
		end_task(spank);
	if (*resized && is_first_task(spank))
		resize_tell(resized);
}

/* Slurm calls it in a process of its own, with this memory, if LaunchParameters has ContainSpank. */
void step_task_forked(spank_t spank)
{
	pid_t pid = 0;

	if (is_first_task(spank) && spank_get_item(spank, S_TASK_PID, &pid) == ESPANK_SUCCESS)
		suspension_task(pid);
}

void step_task_ended(spank_t spank)
{
	static uint32_t ended;
	uint32_t count = 0;

	ended++;
	if (spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &count) == ESPANK_SUCCESS && ended >= count)
		suspension_end();
}

void step_end(void)
{
	suspension_end();
	/* Must be before slurmstepd reports the step's end, which is the job's end for a batch job. */
	requeue_at_end(&step);
	if (backend)
		backend->end(&step);
}
