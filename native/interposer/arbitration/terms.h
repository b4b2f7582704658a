/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tenant's share means on its GPU: the timeslice that the GPU's own scheduler gives it, the cap that its
 * budget keeps, and its turn where somebody latency-critical is on the GPU.
 *
 * The GPU gives turns to the processes that have work, in rounds, each for at most its timeslice; an idle one
 * is passed over at once. So timeslices in proportion to cores give everybody at least cores % when they want
 * it, whoever else dies, is stopped or lies about itself.
 *
 * Pure: no clock, no system call, no state of its own.
 */
#ifndef HAMI_TERMS_H
#define HAMI_TERMS_H
#include <stdbool.h>
#include <stdint.h>

#include "hami_contract.h"

/* What a process says that uses all of its timeslices, and one of which nothing is known: permille. */
#define HAMI_PART_FULL 1000u
/* The timeslice that libcuda sets, us. */
#define HAMI_DRIVERS_SLICE_US 2048u
/*
 * Of several latency-critical tenants those that yield (greed.h) are all paused at the end of each of these, so that those
 * who give way have the floor: what one of them leaves the others would take. It is no multiple of the common round, so
 * that each turn in that has its part.
 */
#define HAMI_LEFT_EVERY_NS 210000000ll
/* So much longer than the floor: pauses take effect late. */
#define HAMI_LEFT_LATE_NS 3500000ll
/* ns: a request that takes longer is interrupted by others' changes. */
#define HAMI_REQUEST_LONGEST 4000000ll

struct hami_terms {
	uint32_t cores_percent; /* 1 to 100 */
	bool of_server;    /* a client of an MPS server: these are the server's cores, timeslice and turn */
	uint32_t policy;   /* HAMI_POLICY_... */
	uint32_t slice_us; /* of the class, instead of what follows from cores_percent; 0: none */
	bool latency;      /* latency-critical */
	bool beyond;       /* it would be, and wants more than its cores: treated as any other */
	uint32_t floor_percent; /* of a latency-critical tenant: left to others */
	uint32_t latency_others;
	uint32_t latency_above; /* of these, those that come before this one, if it is latency-critical */
	/* Permille of HAMI_ROUND_NS, of a latency-critical tenant of HAMI_LEFT_EVERY_NS; length 0: always open. */
	uint32_t turn_begin, turn_length;
	uint32_t others_least_percent; /* fewest cores of another tenant; 0: there is none */
	uint32_t only_other_percent;   /* cores of the only other tenant; 0: there are several, or none */
	uint32_t others_capped;        /* other tenants with a cap */
	bool in_step;                  /* opens, or shuts, at the common instants of its job's slices */
	uint32_t step_begin;           /* where these are in HAMI_ROUND_NS, permille */
	bool greedy; /* latency-critical beside others that are, too: it wants more than its share (greed.h) */
	uint32_t beside_slice_us; /* timeslice while a tenant that works in step is on the GPU; 0: none is */
	uint32_t
		latency_cores; /* of all latency-critical tenants that leave a floor together; 0: there are not several */
};

/* Reads the terms of a step from its record and the job's. */
struct hami_terms hami_terms_read(const struct hami_limits *job, const struct hami_limits *step);

/*
 * Returns the timeslice of one of those processes, or contexts of them, that share the terms, in microseconds; 0: the
 * driver's. `sharers`: how many make the same of it together, permille (hami_part_counts()). They divide the tenant's, and
 * what their changes take is the tenant's own where others are there; clients of an MPS server do not, as all of them set the server's. Beside somebody
 * latency-critical the class's own does not count: it is short, but for a latency-critical tenant whom nobody comes before,
 * and that is not greedy.
 */
uint32_t hami_terms_timeslice_us(const struct hami_terms *terms, uint32_t sharers);

/*
 * Returns how many of the tenant's processes can divide its timeslice so that none has too short a one; UINT32_MAX: any
 * number, as nobody else is on the GPU, or timeslices do not follow from cores.
 */
uint32_t hami_terms_at_once(const struct hami_terms *terms);

/*
 * Returns the timeslice of what copies between the GPU and the host, microseconds; 0: the driver's, of about a millisecond.
 */
uint32_t hami_terms_copy_timeslice_us(const struct hami_terms *terms);

/*
 * Returns the shortest timeslice of the other tenants, in microseconds, as far as they are of one process; 0 where
 * timeslices are fixed: there is no other, somebody is latency-critical, or the policy is none.
 */
uint32_t hami_terms_others_timeslice_us(const struct hami_terms *terms);

/*
 * Returns the cores of the only other tenant; 0 where there is none, where there are several, or where the tenant has
 * several processes at work, which are others to one another unless they have one MPS server.
 */
uint32_t hami_terms_other_percent(const struct hami_terms *terms, uint32_t sharers);

/*
 * Returns whether the tenants' timeslices are longer than usual, as there are many caps and some are small. Then each stay
 * uses up what a budget has saved, and others never end it; so it goes by whether the tenant waits for others.
 */
bool hami_terms_has_long_rounds(const struct hami_terms *terms);

/*
 * Returns the share of a latency-critical tenant beside others of its kind, percent: its cores, or less of them where all
 * of them together, each with as much more as hami_greed_step() allows, would not leave the
 * floor and what changes take.
 */
uint32_t hami_terms_latency_share(const struct hami_terms *terms);

/* Returns how much of the GPU's time the tenant may use at most, percent; 100: all of it. */
uint32_t hami_terms_cap(const struct hami_terms *terms);

/*
 * Returns whether the tenant may work at `now`, ns of the clock that all tenants share; sets when that changes. It
 * works in its turn only where somebody latency-critical is on the GPU, or where it `yields` (slice.h, greed.h); one that is
 * latency-critical itself only where it yields. Its turn is longer by `longer`, ns, as far as that leaves others half of the
 * rest of the round.
 */
bool hami_terms_turn(const struct hami_terms *terms, bool yields, int64_t longer, int64_t now,
		     int64_t *until);

/*
 * Returns whether a tenant is open whose budget says since `since` that it is `shut`, or no longer; sets when that
 * changes. One that works in step opens, or where it is open for most of the time shuts, at an instant that is the same
 * for all slices of its job, on all GPUs and nodes, by the clock that all tenants share: so all are open together, and
 * what its processes wait for in one another advances.
 */
bool hami_terms_open(const struct hami_terms *terms, bool shut, int64_t since, int64_t now, int64_t *until);

/* Who else is on the GPU's engine, ns: for how long (0: nobody), and how long one who came amid own work lately stayed. */
struct hami_visit {
	int64_t stay, usual;
};

/*
 * Returns whether a change of its channels, which `opens` them or pauses them, waits on, being `late` ns late. Either makes
 * the engine go through its round anew, amid whatever request is on it: so it waits for the end of one of somebody
 * latency-critical. An opening also waits for the tenant whose turn is over to leave, as two changes would interrupt one
 * request twice; and as nobody else takes the engine from a tenant that is done, it goes by how long one usually stays.
 */
bool hami_terms_waits(const struct hami_terms *terms, bool opens, int64_t late,
		      const struct hami_visit *other);

#endif
