// SPDX-License-Identifier: GPL-2.0-or-later
/* Limits records on disk: <run_dir>/jobs/<job id>/{job.limits,step-N.limits}. Nothing here knows Slurm. */
#ifndef HAMI_SPANK_RECORD_H
#define HAMI_SPANK_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "hami_contract.h"

/* Why a record is not to be trusted; record_fault() has the words. */
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

/* Opens <run_dir>/jobs/<job id>. Returns a descriptor or -errno: -ENOENT where the job has no vGPU here. */
int record_open_dir(const char *run_dir, uint32_t job_id);

/*
 * The first line of the reason in dir, written by the prolog, for which no step of the job may start. False
 * where there is none; owner as below.
 */
bool record_read_refusal(int dir, uid_t owner, char *text, size_t size);

/* Whether the prolog has left word in dir that the job holds whole GPUs; owner as below. */
bool record_is_whole(int dir, uid_t owner);

/*
 * Reads the job's record in dir. owner is who must own it (0 outside tests). Returns 0, -errno of a call that
 * failed, or a positive enum record_fault. *limits is only valid after 0.
 */
int record_read_job(int dir, uid_t owner, uint32_t job_id, uint32_t uid, struct hami_limits *limits);

/* The checks on what was read, apart from the file: for any bytes whatever. Returns an enum record_fault. */
enum record_fault record_check(const struct hami_limits *limits, uint32_t job_id, uint32_t uid);

/* Writes data as dir/name, root's and readable by all, in one step (temporary file, rename). Returns 0 or
 * -errno. */
int record_write_file(int dir, const char *name, const void *data, size_t size);

/* Writes the step's record beside the job's. Returns 0 or -errno. */
int record_write_step(int dir, const struct hami_limits *limits);

/* Removes the step's record; that it is gone already is no error. Returns 0 or -errno. */
int record_remove_step(int dir, uint32_t step_id);

#endif
