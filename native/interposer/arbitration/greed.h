/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a tenant wants more of the GPU's time than it asked for.
 *
 * A latency-critical one is greedy beside others of its kind that used more than its share lately (hami_terms_latency_share()), or has work
 * nearly always. It decides so by itself: then it has short timeslices, for whose end the others wait, in proportion to
 * cores. And while anybody else comes to the engine it yields, which means to leave those who give way the floor
 * (terms.h).
 *
 * A job wants more than its cores where it used so much more of them, or has work nearly always. It says so to root, who
 * has a latency-critical one treated as any other then (`beyond` of struct hami_terms), where others are that, too, or where
 * one who wants more has less than its cores.
 *
 * Pure: no clock, no system call, no state of its own. Times in ns.
 */
#ifndef HAMI_GREED_H
#define HAMI_GREED_H
#include <stdbool.h>
#include <stdint.h>

/* A tenant is over its share above so much of it, percent, until it is within it. */
#define HAMI_OVER_PERCENT 110u
/* A job wants more above so much of its cores, percent, until it is within them. */
#define HAMI_MORE_PERCENT 125u

/* What was seen since the last step. */
struct hami_work {
	int64_t elapsed; /* all time, with rests */
	int64_t used;    /* by all processes of the job */
	int64_t others;  /* time of others' stays on the engine */
	uint32_t samples,
		outstanding; /* how often was looked at the process, and work of it was outstanding */
};

/* All zeros: within its share. */
struct hami_greed {
	int64_t used, wants; /* means: ns a second, and permille */
	bool over;           /* used more than its share */
	bool greedy;         /* or has work nearly always */
	bool yields;         /* and others come to the engine */
	bool over_cores;     /* its job used more than its cores */
	bool more;           /* or has work nearly always: it wants more than them */
};

/* Adds what was seen later to `work`, but for what was used. */
void hami_work_add(struct hami_work *work, const struct hami_work *later);

/* Moves on, for a tenant of this share, of a job of these cores, percent. */
void hami_greed_step(struct hami_greed *greed, const struct hami_work *work, uint32_t share_percent,
		     uint32_t cores_percent);

#endif
