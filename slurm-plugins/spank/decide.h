// SPDX-License-Identifier: GPL-2.0-or-later
/* What a step is to get, from what it holds and what its job holds. Pure: no files, no Slurm, no clock. */
#ifndef HAMI_SPANK_DECIDE_H
#define HAMI_SPANK_DECIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "hami_contract.h"

/*
 * The step's own resources, from the variables that Slurm's gres plugins have set in its environment, or
 * removed from it, after the user's environment was loaded.
 */
struct step_units {
	bool gpus, shards, vgpu, mem, cores; /* the step holds some */
	uint64_t mem_mib;                    /* where mem */
	uint64_t cores_percent;              /* where cores */
};

/* env is a NULL-ended array of NAME=VALUE. Returns 0, or -EINVAL when a number is none. */
int step_units_parse(char **env, struct step_units *units);

/* Value of name in env, or NULL. Points into env. */
const char *env_value(char **env, const char *name);

/* What the prolog has left of the job on this node. */
enum job_kind {
	JOB_WITHOUT_RECORD, /* nothing: no vGPU, or no prolog */
	JOB_SLICE,          /* job.limits */
	JOB_WHOLE           /* `whole`: all units of the node are the job's, and so are its GPUs */
};

enum step_verdict {
	STEP_NOT_OURS,     /* no vGPU in this job: leave it alone */
	STEP_WHOLE,        /* of a job with whole GPUs: not limited, whatever units it holds */
	STEP_FENCED,       /* gets a record of its own */
	STEP_WITHOUT_GPU,  /* a step that asked for none (--gres=none) in a job that has one: nothing may be
			      allocated */
	STEP_NO_RECORD,    /* refuse: units, but no job.limits */
	STEP_NO_PLUGINS,   /* refuse: shards, but the gres plugins that would say how much are not loaded here
			    */
	STEP_BARE_SHARDS,  /* refuse: shards in a job without vGPU, which fence nothing */
	STEP_WHOLE_SLICED, /* refuse: units without a GPU, in a job that holds whole GPUs */
	STEP_SHARDS_ALONE, /* refuse: the step took shards of the job's vGPU without memory and cores */
	STEP_UNITS_ALONE   /* refuse: memory or cores without the shards that name a device */
};

/* Where the job has a record, the plugins are taken to be there. */
enum step_verdict step_decide(const struct step_units *units, enum job_kind kind, bool plugins_loaded,
			      bool bare_shards_allowed);

/*
 * The step's record: the smaller of what the step holds and what the job has. created_unix_ns is the clock's.
 */
void step_limits(const struct hami_limits *job, const struct step_units *units, enum step_verdict verdict,
		 uint32_t step_id, uint64_t created_unix_ns, struct hami_limits *step);

#endif
