// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Limits records on disk: <run_dir>/jobs/<job id>/{job.limits,step-N.limits}, and of slice I, from 1 on, of a job with
 * several {job.I.limits,step-N.I.limits}. Does not use Slurm.
 */
#ifndef HAMI_SPANK_RECORD_H
#define HAMI_SPANK_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "hami_contract.h"

/* Why a record cannot be trusted; record_fault() returns the text. */
enum record_fault {
	RECORD_OK,
	RECORD_NOT_A_FILE,
	RECORD_OWNER,
	RECORD_WRITABLE,
	RECORD_SIZE,
	RECORD_MAGIC,
	RECORD_ABI,
	RECORD_IDENTITY,
	RECORD_VALUES,
	RECORD_UNSTABLE
};

const char *record_fault(enum record_fault fault);

/* Opens <run_dir>/jobs/<job id>. Returns a descriptor or -errno: -ENOENT if the job has no vGPU here. */
int record_open_dir(const char *run_dir, uint32_t job_id);

/*
 * Finds the job with this SLUID (Slurm 26.05) among those with a record here: writes its id to *job, 0 where there is
 * none. Returns 0 or -errno. owner as below.
 */
int record_find_sluid(const char *run_dir, uid_t owner, const char *sluid, uint32_t *job);

/*
 * Reads the first line of the prolog's reason why no step of the job may start, from dir. Returns false if
 * there is none. owner as below.
 */
bool record_read_refusal(int dir, uid_t owner, char *text, size_t size);

/*
 * Reads what the prolog wrote of the job's MPS daemon, from dir: its client priority and pipe directory, as one
 * line. Returns false if there is nothing. owner as below.
 */
bool record_read_mps(int dir, uid_t owner, char *text, size_t size);

enum { RECORD_PARTITION_SIZE = 256 }; /* a static SM partition's name, GPU-UUID/ID, with its final NUL */

/*
 * Reads the static SM partition of a job of the daemon with this pipe directory, from the job's file in PIPE.jobs,
 * which hami_hpc/node/mps.py writes; `job` is the job's own record. Returns false if it has none, or none that is of the
 * job's GPU and shorter than size. owner as below.
 */
bool record_read_partition(const char *pipe, uid_t owner, const struct hami_limits *job, char *text,
			   size_t size);

/* Returns whether the prolog recorded in dir that the job holds whole GPUs. owner as below. */
bool record_is_whole(int dir, uid_t owner);

enum { RECORD_MIG_SIZE = 48 }; /* a MIG device's UUID, with its final NUL */

/*
 * Reads the UUID of the job's MIG device from the prolog's note in dir. Returns false if there is no such note of
 * owner's, or no UUID in it. owner as below.
 */
bool record_read_mig(int dir, uid_t owner, char uuid[RECORD_MIG_SIZE]);

/*
 * Reads the job's record in dir, which owner must own (0 outside of tests). Returns 0, -errno of a call that
 * failed, or a positive enum record_fault. *limits is valid only after 0.
 */
int record_read_job(int dir, uid_t owner, uint32_t job_id, uint32_t uid, struct hami_limits *limits);

enum { RECORD_SLICES_MAX = 16 }; /* slices_max of the contract */

/* Returns how many slices the job of a record has on this node; a record of an older hami_hpc has 0 for one. */
uint32_t record_slice_count(const struct hami_limits *limits);

/*
 * Reads the record of one of the job's later slices, 1 to count - 1, as record_read_job does. It must be of the same
 * run as that of slice 0, `first`.
 */
int record_read_slice(int dir, uid_t owner, const struct hami_limits *first, uint32_t slice,
		      struct hami_limits *limits);

/* Writes the name of a slice's record of the job, or of its step, to name. */
void record_job_name(char *name, size_t size, uint32_t slice);
void record_step_name(char *name, size_t size, uint32_t step_id, uint32_t slice);

/* Checks the contents of a record of slice 0, which may be any bytes. Returns an enum record_fault. */
enum record_fault record_check(const struct hami_limits *limits, uint32_t job_id, uint32_t uid);

/* Writes data to dir/name by a temporary file and a rename; all can read it. Returns 0 or -errno. */
int record_write_file(int dir, const char *name, const void *data, size_t size);

/* Writes the step's record of one slice beside the job's. Returns 0 or -errno. */
int record_write_step(int dir, const struct hami_limits *limits);

/*
 * Notes when the job's first step was attached here, for hami-hpc trace, unless that is noted. Where it cannot be
 * written it stays unknown: no step fails for that.
 */
void record_note_first_step(int dir, uint64_t unix_ns);

/* Removes the step's record of one slice, if it exists. Returns 0 or -errno. */
int record_remove_step(int dir, uint32_t step_id, uint32_t slice);

#endif
