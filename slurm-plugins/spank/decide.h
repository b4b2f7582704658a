// SPDX-License-Identifier: GPL-2.0-or-later
/* Decides what a step gets, from what it holds and what its job holds. Pure: no files, no Slurm, no clock. */
#ifndef HAMI_SPANK_DECIDE_H
#define HAMI_SPANK_DECIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "hami_contract.h"

/*
 * The step's own resources. They are read from variables that Slurm's gres plugins set in the environment, or
 * remove from it, after the user's environment is loaded.
 */
struct step_units {
	bool gpus, shards, vgpu, mem, cores; /* the step holds some */
	uint64_t slices;                     /* where vgpu */
	uint64_t mem_mib;                    /* where mem: of all its slices on this node */
	uint64_t cores_percent;              /* where cores: the same */
};

/* Parses env, a NULL-terminated array of NAME=VALUE. Returns 0, or -EINVAL if a value is not a number. */
int step_units_parse(char **env, struct step_units *units);

/* Returns the value of name in env, a pointer into env, or NULL. */
const char *env_value(char **env, const char *name);

/* The kind of job, by the files that the prolog wrote on this node. */
enum job_kind {
	JOB_WITHOUT_RECORD, /* no file: no vGPU, or no prolog */
	JOB_SLICE,          /* job.limits */
	JOB_WHOLE           /* `whole`: the job holds all units and all GPUs of the node */
};

enum step_verdict {
	STEP_NOT_OURS,    /* no vGPU in this job: the step is not changed */
	STEP_WHOLE,       /* of a job with whole GPUs: not limited, whatever units it holds */
	STEP_FENCED,      /* gets a record of its own */
	STEP_WITHOUT_GPU, /* asked for no GPU (--gres=none) in a job that has a slice: may allocate nothing */
	STEP_NO_RECORD,   /* refused: units, but no job.limits */
	STEP_NO_PLUGINS,  /* refused: a slice, but the gres plugins that pass the units are not loaded here */
	STEP_BARE_SHARDS, /* refused: shards in a job without vGPU, which limit nothing */
	STEP_WHOLE_SLICED, /* refused: units without a GPU, in a job that holds whole GPUs */
	STEP_SHARDS_ALONE, /* refused: shards of the job's vGPU without memory and cores */
	STEP_UNITS_ALONE   /* refused: memory or cores without the shards that name a device */
};

/* Returns what the step gets. plugins_loaded is not used for a job with whole GPUs. */
enum step_verdict step_decide(const struct step_units *units, enum job_kind kind, bool plugins_loaded,
			      bool bare_shards_allowed);

/*
 * Writes the step's record of one of its job's slices to *step: what the step holds for each of its slices, where that
 * is less than the slice of the job. Where it is not, the record says no limit (UINT64_MAX, 100 %) with mode=share, and
 * what the job has with others: the job's record holds as well. created_unix_ns is the present time. With mode=mig
 * device_percent is set for a part, and device_uuid is left to the caller.
 */
void step_limits(const struct hami_limits *job, const struct step_units *units, enum step_verdict verdict,
		 uint32_t step_id, uint64_t created_unix_ns, struct hami_limits *step);

/* Returns whether a step's record is of less memory or less time than its job has. */
bool step_is_part(const struct hami_limits *job, const struct hami_limits *step);

#endif
