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
#include "driver/movable.h"
#include "driver/remake.h"
#include "driver/rm_objects.h"
#include "limits/hold.h"
#include "limits/known.h"
#include "limits/launched.h"
#include "limits/moved.h"
#include "limits/outstanding.h"
#include "limits/stack.h"
#include "limits/stays.h"
#include "limits/transfer.h"
#include "limits/trim.h"
#include "region/process.h"

#define MS 1000000ll
#define LOOK_NS (20 * MS)      /* between two looks at the record */
#define RETRY_NS (200 * MS)    /* after a move that did not succeed */
#define QUIET_NS HAMI_NS_PER_S /* for which a program waits for its turn without a word */
#define PATIENCE_NS (2 * HAMI_NS_PER_S)

/* What was moved. */
static struct swap {
	_Atomic bool running, ended, shared, moving, away; /* away: the objects are not on the GPU */
	_Atomic bool returning;                            /* they are, and their content is copied */
	_Atomic bool begun;                                /* it may take memory */
	_Atomic bool absent;                               /* the process ends without its objects */
	uint32_t state;                                    /* HAMI_SWAPPED_* as last told */
	struct hami_moved memory; /* no context is made or destroyed while it is away */
	struct hami_stack stack;  /* off the GPU meanwhile, too */
	uint64_t moved;           /* bytes of both */
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

/* Waits until the GPU has done all that the process gave it. Not for a capture, whose end needs calls that are held. */
static bool drained(void)
{
	if (hami_known_captures(0))
		return false;
	const int64_t end = hami_clock_steady() + PATIENCE_NS;
	while (hami_outstanding_look(0, hami_objects_started(0)) != HAMI_NOTHING_OUTSTANDING) {
		if (swap.ended || hami_clock_steady() >= end)
			return false;
		rest(MS / 2);
	}
	return true;
}

/* The memory could not be had again, or its content: the program cannot go on. */
static void lose(const char *what)
{
	hami_log(0,
		 "device memory that was moved to the host cannot be brought back (%s); the program ends\n",
		 what);
	abort();
}

static bool transfer(const struct real_cuda *real, bool to_host)
{
	struct hami_moved *m = &swap.memory;
	return hami_transfer(real, m->context, m->pieces, m->count, &m->arena, to_host, &swap.ended);
}

/* Waits until there is room for it. Requests for memory are not held: another thread may have libcuda's locks meanwhile. */
static void have_stack(const struct real_cuda *real)
{
	while (!hami_stack_have(&swap.stack, real) && !swap.ended)
		rest(RETRY_NS);
}

/* Copies the memory to the host, and then frees it there. Returns HAMI_SWAPPED_*. */
static uint32_t copy_and_free(const struct real_cuda *real)
{
	tell(HAMI_SWAPPED_LEAVING, 0);
	if (swap.memory.count && !transfer(real, true))
		return HAMI_SWAPPED_DRIVER;
	hami_stack_give_back(&swap.stack, real, swap.memory.context);
	if (swap.ended || !hami_hold_close(HAMI_HOLD_MEMORY, PATIENCE_NS))
		return HAMI_SWAPPED_BUSY;
	bool lost = false;
	const uint32_t state = hami_moved_free(&swap.memory, &swap.moved, &lost);
	if (lost)
		lose("it was unmapped and could neither be freed nor mapped");
	if (state != HAMI_SWAPPED_HOST)
		hami_hold_open(HAMI_HOLD_MEMORY);
	return state;
}

/* Moves the memory to the host, with the process's work held. Returns HAMI_SWAPPED_*. */
static uint32_t move_held(const struct real_cuda *real, CUcontext context)
{
	if (!drained())
		return HAMI_SWAPPED_BUSY;
	if (context)
		hami_trim_pools(real, context);
	uint32_t state = hami_moved_plan(&swap.memory, real, context);
	if (state != HAMI_SWAPPED_HOST)
		return state;
	state = copy_and_free(real);
	if (state != HAMI_SWAPPED_HOST) {
		have_stack(real);
		return state;
	}
	hami_stays_log(HAMI_MOVED_LEAST, swap.moved, swap.stack.bytes);
	swap.moved += swap.stack.bytes;
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
	CUcontext context;
	if (!find_context(&context)) /* asked before it holds anybody */
		return HAMI_SWAPPED_CONTEXTS;
	if (!hami_hold_close(HAMI_HOLD_WORK, PATIENCE_NS))
		return HAMI_SWAPPED_BUSY;
	uint32_t state = HAMI_SWAPPED_CONTEXTS;
	if (find_context(&context)) /* now none is made or destroyed */
		state = swap.shared ? HAMI_SWAPPED_SHARED : move_held(real, context);
	if (state != HAMI_SWAPPED_HOST) {
		hami_moved_forget(&swap.memory);
		hami_hold_open(HAMI_HOLD_WORK);
	}
	return state;
}

/* ---- in ---- */

static bool move_in(const struct real_cuda *real)
{
	struct hami_moved *m = &swap.memory;
	uint32_t status = hami_remake_all(m->objects, m->count);
	if (status == RM_NO_MEMORY)
		return false;
	if (status != RM_OK)
		lose("the driver refused it");
	swap.returning = true;
	swap.away = false;
	hami_hold_open(HAMI_HOLD_MEMORY);
	have_stack(real);
	if (m->count) /* now that all its pages are there */
		hami_arena_pin(&m->arena, real, m->context, m->bytes,
			       hami_slice_region(0)->job->swap_pinned_bytes);
	while (m->count && !transfer(real, false)) {
		if (swap.ended)
			lose("the host is out of memory, or of threads");
		rest(RETRY_NS);
	}
	const char *failure = m->count ? hami_moved_failure(m) : NULL;
	if (failure)
		lose(failure);
	hami_moved_forget(m);
	swap.returning = false;
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
 * What is on its way out stays; what is on its way back comes back, as exit handlers may read it.
 * libcuda gives back its objects one by one when the process ends, and hangs over the answer that one is not there. So it
 * is told that they are given back now (hami_swap_absent). The GPU may have no room for them, nor be the job's to use.
 */
void hami_swap_end(void)
{
	const int64_t end = hami_clock_steady() + PATIENCE_NS;
	swap.ended = true;
	while (swap.moving && (swap.returning || hami_clock_steady() < end))
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
	return hami_swap_ends_away() && hami_moved_has(&swap.memory, key);
}

bool hami_swap_absent_at(uint64_t base)
{
	return hami_swap_ends_away() && hami_moved_has_at(&swap.memory, base);
}

void hami_swap_forked(void)
{
	if (!swap.running && !swap.begun)
		return;
	memset(&swap, 0, sizeof swap);
}
