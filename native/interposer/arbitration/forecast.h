/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the next request of a latency-critical program begins, learnt from when the last ones did. Two guesses are kept, one
 * by the last request (a program that rests for a fixed time), one by a rhythm (a program that works at fixed times), and
 * how far off each was: the better one counts. Requests that come at random are never expected.
 *
 * Where the GPU is taken from others before it comes, the request saves the change of context, which the others lose in any
 * case; what they lose beyond is the time for which the guess may be off. So that decides.
 *
 * Pure: no clock, no system call. Times in ns of one clock, in order.
 */
#ifndef HAMI_FORECAST_H
#define HAMI_FORECAST_H
#include <stdbool.h>
#include <stdint.h>

/* Taking the GPU from another tenant takes 0.2 ms (an H100, an H200); the rest is for a thread that wakes late. */
#define HAMI_FORECAST_TAKE_NS 300000
/* Beyond the change the others lose at most one part in so many of the time. */
#define HAMI_FORECAST_LOSS 32
/* So many requests are seen before one is expected. */
#define HAMI_FORECAST_LEAST 8
/* Requests that are nearer to each other leave others nothing to take, and those that are further are no rhythm. */
#define HAMI_FORECAST_NS_LEAST 1000000
#define HAMI_FORECAST_NS_MOST 2000000000

struct hami_guess {
	int64_t at;    /* of the next request */
	int64_t error; /* mean distance from what was guessed */
};

struct hami_forecast {
	int64_t last;   /* when the last request began; 0: none has */
	int64_t period; /* 0: not known */
	uint32_t seen; /* since it is known, up to HAMI_FORECAST_LEAST; halved where requests were left out */
	bool skipped;  /* they were before the last one */
	struct hami_guess by_last, by_rhythm;
};

/* A request has begun. */
void hami_forecast_note(struct hami_forecast *forecast, int64_t begun);

/*
 * Returns whether it pays to expect the next request; sets from when on the GPU would be taken for it, and until when it
 * should have come.
 */
bool hami_forecast_next(const struct hami_forecast *forecast, int64_t *from, int64_t *until);

#endif
