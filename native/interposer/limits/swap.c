/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/swap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "driver/access.h"
#include "driver/libc.h"
#include "driver/movable.h"
#include "driver/remake.h"
#include "driver/rm_objects.h"
#include "limits/arena.h"
#include "limits/hold.h"
#include "limits/launched.h"
#include "limits/outstanding.h"
#include "limits/stays.h"
#include "limits/transfer.h"
#include "limits/trim.h"
#include "region/process.h"

#define MS 1000000ll
#define LOOK_NS (20 * MS)      /* between two looks at the record */
#define RETRY_NS (200 * MS)    /* after a move that did not succeed */
#define QUIET_NS HAMI_NS_PER_S /* for which a program waits for its turn without a word */
#define PATIENCE_NS (2 * HAMI_NS_PER_S)
#define LEAST_BYTES                                                                                          \
	(4ull << 20) /* smaller objects stay: some are libcuda's own, which the GPU reads at any time */

/* What was moved. */
static struct swap {
	_Atomic bool running, ended, shared, moving, away; /* away: the objects are not on the GPU */
	_Atomic bool begun;                                /* it may take memory */
	_Atomic bool absent;                               /* the process ends without its objects */
	uint32_t state;                                    /* HAMI_SWAPPED_* as last told */
	struct hami_movable *objects;
	struct hami_piece *pieces; /* of the objects, in their order */
	size_t count;
	struct hami_arena arena;
	size_t bytes; /* of what is in it */
	uint64_t moved;
	CUcontext context; /* in which it was copied; none is made or destroyed meanwhile */
} swap;

static void rest(int64_t ns)
{
	nanosleep(&(struct timespec){.tv_sec = ns / HAMI_NS_PER_S, .tv_nsec = ns % HAMI_NS_PER_S}, NULL);
}

static void tell(uint32_t state, uint64_t bytes)
{
	struct hami_region *region = hami_slice_region(0);
	int32_t slot = __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE);
	if (slot < 0)
		return;
	struct hami_usage_slot *own = &region->usage->slots[slot];
	if (state == HAMI_SWAPPED_HOST && swap.state != HAMI_SWAPPED_WANTED &&
	    swap.state != HAMI_SWAPPED_RETURNING)
		__atomic_fetch_add(&own->swap_count, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&own->swapped_bytes, bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&own->swap_state, state, __ATOMIC_SEQ_CST);
	swap.state = state;
}

/* ---- out ---- */

/* Waits until the GPU has done all that the process gave it. */
static bool drained(void)
{
	const int64_t end = hami_clock_steady() + PATIENCE_NS;
	while (hami_outstanding_look(0, hami_objects_started(0)) != HAMI_NOTHING_OUTSTANDING) {
		if (hami_clock_steady() >= end)
			return false;
		rest(MS / 2);
	}
	return true;
}

static void forget(void)
{
	hami_arena_give_back(&swap.arena);
	free(swap.objects);
	free(swap.pieces);
	swap.objects = NULL;
	swap.pieces = NULL;
	swap.count = 0;
	swap.bytes = 0;
}

/* Makes room on the host for all objects that can be moved. Returns HAMI_SWAPPED_HOST, or why there is none. */
static uint32_t plan(const struct real_cuda *real, CUcontext context)
{
	swap.objects = hami_movable_list(LEAST_BYTES, &swap.count);
	swap.pieces = calloc(swap.count ? swap.count : 1, sizeof *swap.pieces);
	for (size_t i = 0; i < swap.count; i++)
		swap.bytes += swap.objects[i].length;
	const uint64_t room = hami_arena_room(&swap.arena);
	if (context && swap.bytes > room)
		swap.bytes -= hami_transfer_drop_refused(real, context, swap.objects, &swap.count);
	if (!swap.pieces || swap.bytes > room)
		return HAMI_SWAPPED_ROOM;
	if (!swap.bytes)
		return HAMI_SWAPPED_HOST;
	if (!context)
		return HAMI_SWAPPED_CONTEXTS;
	if (!hami_arena_have(&swap.arena, real, context, swap.bytes))
		return HAMI_SWAPPED_ROOM;
	size_t at = 0;
	for (size_t i = 0; i < swap.count; at += swap.objects[i++].length)
		swap.pieces[i] = (struct hami_piece){.device = swap.objects[i].base,
						     .host = swap.arena.memory + at,
						     .bytes = swap.objects[i].length,
						     .pooled = swap.objects[i].pooled};
	return HAMI_SWAPPED_HOST;
}

/* The memory could not be had again, or its content: the program cannot go on. */
static void lose(const char *what)
{
	hami_log(0,
		 "device memory that was moved to the host cannot be brought back (%s); the program ends\n",
		 what);
	abort();
}

/*
 * Frees what was copied. Keeps the objects that are gone from the GPU, and forgets the others. Returns false when the
 * driver let none go that is the application's: of one that is libcuda's own it refuses the address.
 */
static bool free_copied(void)
{
	size_t kept = 0;
	bool refused = false;
	uint64_t own = 0; /* libcuda's */
	swap.moved = 0;
	for (size_t i = 0; i < swap.count; i++) {
		const struct hami_movable m = swap.objects[i];
		const CUresult copied = swap.pieces[i].result;
		own += copied == CUDA_ERROR_INVALID_VALUE ? m.length : 0;
		if (copied == CUDA_ERROR_INVALID_VALUE || !hami_movable_same(&m))
			continue;
		bool lost = false;
		if (copied != CUDA_SUCCESS || !hami_remake_free(&m, &lost)) {
			if (lost)
				lose("it was unmapped and could neither be freed nor mapped");
			refused = true;
			continue;
		}
		swap.moved += m.length;
		swap.objects[kept] = m;
		swap.pieces[kept++] = swap.pieces[i];
	}
	swap.count = kept;
	hami_stays_log(LEAST_BYTES, swap.moved, own);
	return kept || !refused;
}

/* Moves the memory to the host, with the process's work held. Returns HAMI_SWAPPED_*. */
static uint32_t move_held(const struct real_cuda *real, CUcontext context)
{
	if (!drained())
		return HAMI_SWAPPED_BUSY;
	if (context)
		hami_trim_pools(real, context);
	uint32_t state = plan(real, context);
	if (state != HAMI_SWAPPED_HOST)
		return state;
	tell(HAMI_SWAPPED_LEAVING, 0);
	if (swap.count && !hami_transfer(real, context, swap.pieces, swap.count, &swap.arena, true))
		return HAMI_SWAPPED_DRIVER;
	if (!hami_hold_close(HAMI_HOLD_MEMORY, PATIENCE_NS))
		return HAMI_SWAPPED_BUSY;
	if (!free_copied()) {
		hami_hold_open(HAMI_HOLD_MEMORY);
		return HAMI_SWAPPED_DRIVER;
	}
	swap.away = true;
	tell(HAMI_SWAPPED_HOST, swap.moved);
	return HAMI_SWAPPED_HOST;
}

/* Finds the program's only context. NULL and true: it is gone, or could not be made: there is nothing to move. */
static bool find_context(CUcontext *context)
{
	*context = hami_slice_count() == 1 ? hami_known_only(0) : NULL;
	return *context || (hami_slice_count() == 1 && hami_known_none(0) && !hami_objects_started(0));
}

static uint32_t move_out(const struct real_cuda *real)
{
	if (!find_context(&swap.context)) /* asked before it holds anybody */
		return HAMI_SWAPPED_CONTEXTS;
	if (!hami_hold_close(HAMI_HOLD_WORK, PATIENCE_NS))
		return HAMI_SWAPPED_BUSY;
	uint32_t state = HAMI_SWAPPED_CONTEXTS;
	if (find_context(&swap.context)) /* now none is made or destroyed */
		state = swap.shared ? HAMI_SWAPPED_SHARED : move_held(real, swap.context);
	if (state != HAMI_SWAPPED_HOST) {
		forget();
		hami_hold_open(HAMI_HOLD_WORK);
	}
	return state;
}

/* ---- in ---- */

static bool move_in(const struct real_cuda *real)
{
	uint32_t status = hami_remake_all(swap.objects, swap.count);
	if (status == RM_NO_MEMORY)
		return false;
	if (status != RM_OK)
		lose("the driver refused it");
	hami_hold_open(HAMI_HOLD_MEMORY);
	if (swap.count) /* now that all its pages are there */
		hami_arena_pin(&swap.arena, real, swap.context, swap.bytes,
			       hami_slice_region(0)->job->swap_pinned_bytes);
	while (swap.count && !hami_transfer(real, swap.context, swap.pieces, swap.count, &swap.arena, false))
		rest(RETRY_NS); /* the host is out of memory, or of threads */
	for (size_t i = 0; i < swap.count; i++)
		if (swap.pieces[i].result != CUDA_SUCCESS)
			lose("a copy failed");
	forget();
	swap.away = false;
	hami_hold_open(HAMI_HOLD_WORK);
	return true;
}

/* ---- the thread ---- */

static uint32_t order(void)
{
	return __atomic_load_n(&hami_slice_region(0)->job->swap, __ATOMIC_SEQ_CST);
}

static bool shall_be_away(void)
{
	const uint32_t wanted = order();
	return wanted == HAMI_SWAP_OUT || wanted == HAMI_SWAP_SUSPENDED || wanted == HAMI_SWAP_TURN;
}

/*
 * Says that the memory comes back, before it does. Returns false when it shall stay after all: root, who says so first and
 * looks at the state then, has seen either this, and waits, or that the memory is on the host, and it stays there.
 * (The store of the state and the load of the record are sequentially consistent.)
 */
static bool may_return(void)
{
	tell(HAMI_SWAPPED_RETURNING, swap.moved);
	return !shall_be_away();
}

/* Does what the record says. Returns when to look again, ns from now. */
static int64_t follow(const struct real_cuda *real)
{
	const int64_t begun = hami_clock_steady();
	const bool out = shall_be_away();
	if (out == swap.away) {
		const bool waits = hami_hold_waits(HAMI_HOLD_WORK) || hami_hold_waits(HAMI_HOLD_MEMORY);
		const uint32_t state = !out    ? HAMI_SWAPPED_GPU
				       : waits ? HAMI_SWAPPED_WANTED
					       : HAMI_SWAPPED_HOST;
		if (swap.state != state)
			tell(state, out ? swap.moved : 0);
		return LOOK_NS;
	}
	if (out) {
		if (!hami_region_move_begin(hami_slice_region(0), begun))
			return LOOK_NS;
		uint32_t state = move_out(real);
		hami_region_move_end(hami_slice_region(0));
		if (!swap.away) {
			tell(state, 0);
			return RETRY_NS +
			       (hami_clock_steady() -
				begun); /* a program that is busy is held for half of the time at most */
		}
	} else if (!may_return()) {
		return 0;
	} else if (!move_in(real)) {
		return RETRY_NS;
	} else {
		tell(HAMI_SWAPPED_GPU, 0);
	}
	hami_log(1, "%llu MiB moved to the %s in %lld ms\n", (unsigned long long)swap.moved >> 20,
		 out ? "host" : "GPU", (long long)((hami_clock_steady() - begun) / MS));
	return LOOK_NS;
}

static void *mover(void *nothing)
{
	const struct real_cuda *real = hami_resolved_cuda();
	pthread_setname_np(pthread_self(), "hami-swap");
	hami_hold_pass();
	while (real && !swap.ended) {
		swap.moving = true;
		int64_t gap = swap.ended ? LOOK_NS : follow(real);
		swap.moving = false;
		rest(gap);
	}
	return nothing;
}

void hami_swap_prepare(void)
{
	if (hami_slice_count() != 1 || hami_movable_tracked() || order() == HAMI_SWAP_NEVER ||
	    order() == HAMI_SWAP_WAIT)
		return;
	hami_transfer_begin();
	hami_movable_track();
	hami_hold_begin();
	hami_launched_hold();
}

void hami_swap_await(void)
{
	bool told = false;
	if (swap.begun)
		return;
	/* First it can be seen, then it looks: root sees this process, or it sees root's order. */
	if (hami_slice_count() == 1 && order() != HAMI_SWAP_NEVER)
		hami_region_join(hami_slice_region(0));
	for (const int64_t begun = hami_clock_steady(); hami_slice_count() == 1 && !swap.ended && !swap.begun;
	     rest(LOOK_NS)) {
		if (!shall_be_away() && order() != HAMI_SWAP_WAIT)
			break;
		tell(HAMI_SWAPPED_WANTED, 0);
		if (!told && hami_clock_steady() - begun >= QUIET_NS)
			hami_log(0, "waiting for the job's turn on the GPU, whose memory other jobs hold\n");
		told = told || hami_clock_steady() - begun >= QUIET_NS;
	}
	if (!atomic_exchange(&swap.begun, true) && swap.state == HAMI_SWAPPED_WANTED)
		tell(HAMI_SWAPPED_GPU, 0);
}

void hami_swap_begin(void)
{
	if (!hami_movable_tracked() || atomic_exchange(&swap.running, true))
		return;
	int rc = hami_thread(mover, NULL);
	if (rc)
		hami_log(0, "no thread to move the device memory (%s); it stays on the GPU\n", strerror(rc));
}

void hami_swap_share(void)
{
	swap.shared = true;
}

/*
 * libcuda gives back its objects one by one when the process ends, and hangs over the answer that one is not there. So it
 * is told that they are given back now (hami_swap_absent). The GPU may have no room for them, nor be the job's to use.
 */
void hami_swap_end(void)
{
	const int64_t end = hami_clock_steady() + PATIENCE_NS;
	swap.ended = true;
	while (swap.moving && hami_clock_steady() < end)
		rest(MS);
	swap.absent = swap.away && !swap.moving;
	hami_hold_open(HAMI_HOLD_MEMORY);
	hami_hold_open(HAMI_HOLD_WORK);
}

/* Also when a move that took longer than the end waited for has come to its end. */
bool hami_swap_ends_away(void)
{
	return swap.absent || (swap.ended && swap.away && !swap.moving);
}

bool hami_swap_absent(uint64_t key)
{
	const size_t count = hami_swap_ends_away() ? swap.count : 0;
	for (size_t i = 0; i < count; i++)
		if (hami_movable_has(&swap.objects[i], (uint32_t)(key >> 32), (uint32_t)key))
			return true;
	return false;
}

bool hami_swap_absent_at(uint64_t base)
{
	const size_t count = hami_swap_ends_away() ? swap.count : 0;
	for (size_t i = 0; i < count; i++)
		if (swap.objects[i].base == base)
			return true;
	return false;
}

void hami_swap_forked(void)
{
	if (!swap.running && !swap.begun)
		return;
	memset(&swap, 0, sizeof swap);
}
