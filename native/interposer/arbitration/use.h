/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of the GPU's time a process used, from two things that are known of it:
 *
 *	switches   when the GPU's engine took it on and let it go; none while it is alone there, at work or not
 *	samples    at moments of our choice, whether any of its work was outstanding (at work, or waiting)
 *
 * It used the GPU while it was on the engine with work outstanding. A sample stands for the time that is nearer to it
 * than to others, so that it does not matter when is counted. One that was taken while the process was not on the engine
 * says nothing: then it has been there with work only. Pure: no clock, no system call. Times in ns of one clock, in order.
 */
#ifndef HAMI_USE_H
#define HAMI_USE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Saving a context that filled an H200 takes so long; it is on the engine meanwhile, and nothing gets done. */
#define HAMI_SAVE_NS 150000
/*
 * An arrival costs whoever has to leave so much of their time besides, on an H200: what they do is saved, and fetched again
 * when they come back.
 */
#define HAMI_ARRIVAL_NS 265000
/* So much of a pause others lose at most, until it takes effect and when it ends. */
#define HAMI_PAUSE_LOST_NS 4000000
/* At most so many samples from count to count. */
#define HAMI_USE_SAMPLES 128

struct hami_switch {
	int64_t at;
	bool on;
	bool after_others; /* it came after others, who had been there since it left */
	uint32_t pid;      /* then: the last of them; 0: of another user */
};

struct hami_sample {
	int64_t at;
	bool outstanding;
};

struct hami_use {
	bool on;    /* on the engine after the last switch */
	bool saves; /* a switch away ends with the context saved: HAMI_SAVE_NS of it do not count */
	int64_t on_since;
	int64_t at;      /* counted up to here */
	int64_t there;   /* by the last count: on the engine, at work or not */
	int64_t came;    /* after others, the last time; 0: it did not */
	int64_t used;    /* since then */
	bool sampled;    /* since it began */
	bool idle;       /* by the last sample: on the engine with nothing outstanding */
	int64_t idle_at; /* when that was */
};

/* Begins at `now`, taking it as on the engine: the first switch tells, and until then it is nobody else. */
void hami_use_begin(struct hami_use *use, int64_t now);

/*
 * Returns the time used from the last call's `now` to this one's, with the switches and the first HAMI_USE_SAMPLES
 * samples in between. All time on the engine before the first sample of all is like that sample; without any all counts.
 */
int64_t hami_use_count(struct hami_use *use, const struct hami_switch *switches, size_t switch_count,
		       const struct hami_sample *samples, size_t sample_count, int64_t now);

/*
 * Returns how much of another's stay on the engine, which ended when the process came, it was at work there, ns. What is
 * hardly longer than the saving of its context counts as none.
 */
int64_t hami_use_of_stay(int64_t stay);

/* Of `elapsed` ns, what is known of a process that others give way to. */
struct hami_presence {
	int64_t elapsed;
	int64_t on, used;  /* on the engine, and at work there */
	int64_t others;    /* at work there: the sum of hami_use_of_stay() */
	int64_t slice;     /* its timeslice */
	uint32_t arrivals; /* it came to the engine after others */
	int64_t paused;    /* for so long before one of these arrivals; others were there since */
};

/*
 * Returns what it cost others besides the time used: each arrival; and the gaps in its work while they waited, which are too
 * short for them. Whether they wait is known when they have come, and then of one timeslice. It is never more than what
 * nobody had, but for what they lost of a pause.
 */
int64_t hami_use_costs(const struct hami_presence *presence);

#endif
