/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a tenant's timeslices are, and whether it works in its turn only, beside tenants that have little to do
 * at a time.
 *
 * The GPU serves its tenants in rounds, and one that had little to do waits for a whole round until it is served
 * again. Where everybody has work all the time rounds are long (terms.h), since each change of tenant costs. Where
 * somebody leaves the engine before its timeslice ends, the others shorten theirs step by step, until a round fits
 * what that tenant has to do, as long as they get their own share.
 *
 * A program that launches, waits and launches again leaves the engine at each wait, and then the shortest timeslice
 * is too long. So tenants that want everything try now and then, all at the same time, to work in their turns of the
 * common round only (terms.h), with the shortest timeslices. Who finds that somebody waits for each end of its
 * timeslices even then, yields: it keeps to its turn, and leaves the rest of the round to the others. Each change of turn
 * takes a millisecond from it; so its turn is longer by as much as it lacks of its share.
 *
 * Shortened timeslices look like little to do. So all that have shortened theirs look now and then, at the same time,
 * with long ones, whether anybody still leaves early.
 *
 * Who yields and does not get its share by it shares again, and yields to nobody for some time: others may have been
 * light when it tried, and not since.
 *
 * Beside somebody latency-critical timeslices are not fitted, nor are those of one who is (greed.h).
 *
 * Each tenant decides by itself, from what all of them see: who came to the engine, and for how long.
 *
 * Pure: no clock, no system call, no state of its own. Times in ns.
 */
#ifndef HAMI_SLICE_H
#define HAMI_SLICE_H
#include <stdbool.h>
#include <stdint.h>

#include "arbitration/level.h"
#include "arbitration/rounds.h"

/* In a stay of up to this most is the change of tenant. */
#define HAMI_STAY_NS_THRASH 300000
/* Tenants try in the first part of each of these, by the clock that all share. */
#define HAMI_TRY_EVERY_NS 2000000000ll
#define HAMI_TRY_NS 150000000ll
/*
 * Each change of a timeslice makes the GPU begin its round anew, with the first tenant (docs/adr/119). So all do it
 * at the same instants of the clock that they share, and several changes cost no more than one.
 */
#define HAMI_SET_EVERY_NS 50000000ll
/* What changes of tenant take from a turn, at most. */
#define HAMI_LONGER_NS_MOST 5000000ll
/* They look in a part of each of these: settle, and then measure for more than one round of long timeslices. */
#define HAMI_LOOK_EVERY_NS 16000000000ll
#define HAMI_LOOK_AT_NS 1000000000ll
#define HAMI_LOOK_SETTLE_NS 10000000ll
#define HAMI_LOOK_NS 60000000ll

/*
 * How the tenant's process and the others came to the engine since the last step. A return is when the process came
 * back after others. Its stay before was cut when it lasted for about its timeslice.
 */
struct hami_stays {
	int64_t others; /* time of others' stays together */
	int64_t worked; /* the sum of hami_slice_worked() of others' stays */
	int64_t unused; /* the sum of hami_slice_unused() of others' stays */
	uint32_t tiny;  /* stays of others that were shorter than hami_slice_tiny() */
	uint32_t returns;
	uint32_t met;      /* of these, after a stay that was cut, and one of another that left much unused */
	uint32_t pressed;  /* of these, after such stays of others only */
	uint32_t thrashed; /* returns after tiny stays only, its own, that was not cut, and the others' */
	int64_t got;       /* the sum of hami_use_of_stay() of others' stays */
};

/* What was seen since the last step. */
struct hami_seen {
	int64_t now; /* of the clock that all tenants share */
	int64_t elapsed;
	int64_t used;                  /* by all processes of the job */
	struct hami_span begun;        /* the round that is not over; 0: it is not known */
	uint32_t caps;                 /* tenants with a cap, this one too */
	bool capped;                   /* it has a cap */
	uint32_t others_least_percent; /* fewest cores of another tenant */
	uint32_t other_percent;        /* cores of the only other tenant; 0: there are several, or none */
	bool held_back;                /* its budget shut it */
	bool can_yield;                /* it has a turn, and can be paused outside it */
	uint32_t samples, outstanding; /* how often was looked, and work was outstanding */
	struct hami_stays stays;
};

enum hami_slice_mode {
	HAMI_SLICE_SHARES,
	HAMI_SLICE_LOOKS,
	HAMI_SLICE_TRIES,
	HAMI_SLICE_YIELDS,
};

/* All zeros: shares, with long timeslices. */
struct hami_slice {
	uint32_t mode; /* enum hami_slice_mode */
	bool thrashes; /* it yields because it and others hinder each other */
	struct hami_level level;
	/* Averages: ns a second, thousandths a second, and permille. */
	int64_t used, others, worked, unused, tiny, returns, met, thrashed, wants;
	uint32_t doublings; /* of the time between two tries */
	int64_t yielded;    /* for so long */
	int64_t longer;     /* by so much its turn is, while it yields */
	struct hami_rounds rounds;
	int64_t missed;      /* of its share, since it yields or tries to */
	int64_t wary;        /* for so long it yields to nobody */
	int64_t wary_length; /* for how long it was the last time */
	int64_t trusts;      /* for how long it has not been since, as far as that matters */
	uint32_t returns_trying, pressed_trying; /* since the try began */
	bool settled;                            /* it looks, and measures by now */
	int64_t light_looking;                   /* what it saw of light tenants since then, thousandths */
};

/* Adds what was seen later to `seen`, but for what was used, which is of the job and not of one process. */
void hami_seen_add(struct hami_seen *seen, const struct hami_seen *later);

/* Moves on; `longest_us` is the timeslice of the tenant's terms. */
void hami_slice_step(struct hami_slice *slice, const struct hami_seen *seen, uint32_t cores_percent,
		     uint32_t longest_us);

/* Returns when hami_slice_step() has to be called at the latest, by the clock that all share. */
int64_t hami_slice_next(const struct hami_slice *slice, int64_t now);

/* Returns the first instant after `now` at which timeslices are changed, by the clock that all share. */
int64_t hami_slice_instant(int64_t now);
/* Returns whether `instant`, which was returned before, has come, or the clock was set back since then. */
bool hami_slice_instant_came(int64_t instant, int64_t now);

/* Returns whether the tenant works in its turn only. */
bool hami_slice_yields(const struct hami_slice *slice);
/* Returns by how much longer than its share of the round its turn is, ns; 0 if it does not yield. */
int64_t hami_slice_longer(const struct hami_slice *slice);

/* Returns the timeslice, microseconds, where `longest_us` is the one of the tenant's terms; 0 stays 0. */
uint32_t hami_slice_us(const struct hami_slice *slice, uint32_t longest_us);

/* Returns the timeslice of another who shares alike, ns, where `longest_us` is the one of its terms. */
int64_t hami_slice_others(const struct hami_slice *slice, uint32_t longest_us);

/*
 * Returns how much of a stay of another on the engine was work, ns: not what saved its context. 0 for one longer than its
 * longest timeslice: nobody else wanted the engine, and then it is there with work or without.
 */
int64_t hami_slice_worked(int64_t stay, int64_t longest);
/*
 * Returns how much of a timeslice a stay of another on the engine left unused, squared, thousandths; both in ns. So a
 * stay that a pause cut short, anywhere, counts a third in the mean, and one of somebody who had little to do nearly one.
 */
int64_t hami_slice_unused(int64_t stay, int64_t timeslice);
/* Returns how short a stay is tiny for somebody of this timeslice, ns. */
int64_t hami_slice_tiny(int64_t timeslice);
/* So much left unused is much. */
#define HAMI_SLICE_MUCH 90

#endif
