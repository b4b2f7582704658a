/* SPDX-License-Identifier: Apache-2.0 */
#include "timeline.h"

#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A waiter looks again this often even when nothing tells it to: another process may have died. */
#define LOOK_AGAIN_NS 10000000ull

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static struct sim_share *share_of(struct sim_view *v, uint32_t g, uint32_t slot)
{
	return &v->state->slot[slot].gpu[g];
}

static bool paused(const struct sim_share *share, uint64_t at_ns)
{
	return at_ns >= share->pause_ns && at_ns < share->resume_ns;
}

static bool may_run(struct sim_view *v, uint32_t g, uint32_t slot, uint64_t at_ns)
{
	return slot != SIM_NO_SLOT && sim_bit(v->state->gpu[g].pending, slot) &&
	       !paused(share_of(v, g, slot), at_ns);
}

/* The next slot after `after`, round robin, that may run; `after` itself comes last. */
static uint32_t next_slot(struct sim_view *v, uint32_t g, uint32_t after, uint64_t at_ns)
{
	const uint64_t *pending = v->state->gpu[g].pending;
	uint32_t first = after == SIM_NO_SLOT ? 0 : after + 1;
	for (uint32_t i = sim_bit_next(pending, first); i != SIM_NO_SLOT; i = sim_bit_next(pending, i + 1))
		if (may_run(v, g, i, at_ns))
			return i;
	for (uint32_t i = sim_bit_next(pending, 0); i < first; i = sim_bit_next(pending, i + 1))
		if (may_run(v, g, i, at_ns))
			return i;
	return SIM_NO_SLOT;
}

/* The first time after at_ns, and not after limit_ns, when a pause begins or ends. */
static uint64_t next_change(struct sim_view *v, uint32_t g, uint64_t at_ns, uint64_t limit_ns)
{
	const uint64_t *pending = v->state->gpu[g].pending;
	for (uint32_t i = sim_bit_next(pending, 0); i != SIM_NO_SLOT; i = sim_bit_next(pending, i + 1)) {
		const struct sim_share *share = share_of(v, g, i);
		if (share->pause_ns > at_ns)
			limit_ns = min_u64(limit_ns, share->pause_ns);
		if (share->resume_ns > at_ns)
			limit_ns = min_u64(limit_ns, share->resume_ns);
	}
	return limit_ns;
}

static void log_run(struct sim_view *v, uint32_t g, uint64_t from_ns, uint64_t length_ns)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	uint32_t reuse = v->state->slot[gpu->current].reuse;
	struct sim_run *last = &gpu->log[(gpu->runs - 1) % SIM_LOG_LENGTH];
	if (gpu->runs && last->slot == gpu->current && last->reuse == reuse &&
	    last->start_ns + last->length_ns == gpu->clock_ns && last->from_ns + last->length_ns == from_ns) {
		last->length_ns += length_ns;
		return;
	}
	gpu->log[gpu->runs++ % SIM_LOG_LENGTH] = (struct sim_run){
		.start_ns = gpu->clock_ns,
		.length_ns = length_ns,
		.from_ns = from_ns,
		.slot = gpu->current,
		.reuse = reuse,
	};
}

static void run_current(struct sim_view *v, uint32_t g, uint64_t limit_ns)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	struct sim_share *share = share_of(v, g, gpu->current);
	uint64_t until = min_u64(limit_ns, gpu->slice_end_ns);
	uint64_t length = min_u64(until - gpu->clock_ns, share->submitted_ns - share->done_ns);
	log_run(v, g, share->done_ns, length);
	share->done_ns += length;
	gpu->busy_ns += length;
	gpu->clock_ns += length;
	if (share->done_ns == share->submitted_ns)
		sim_bit_clear(gpu->pending, gpu->current);
}

static void log_switch(struct sim_gpu *gpu, uint64_t at_ns, bool on)
{
	gpu->engine.at_ns = at_ns;
	gpu->engine.on = on;
	gpu->switch_log[gpu->switched++ % SIM_SWITCHES] = gpu->engine;
}

/*
 * The one place that says when a context leaves the engine: when another process's comes to it. One that has
 * no work, or whose process has ended, stays until then; one that is paused leaves at once (leave_paused).
 */
static void take_engine(struct sim_view *v, uint32_t g, uint32_t index, uint64_t end_ns)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	const struct sim_slot *slot = &v->state->slot[index];
	uint64_t start_ns = min_u64(gpu->clock_ns, end_ns + v->machine.gpu[g].off_engine_us * 1000ull);
	if (gpu->engine.slot == index && gpu->engine.reuse == slot->reuse)
		return;
	if (gpu->engine.slot != SIM_NO_SLOT)
		log_switch(gpu, end_ns, false);
	gpu->engine = (struct sim_switch){
		.slot = index, .reuse = slot->reuse, .pid = slot->first_pid, .uid = slot->uid};
	log_switch(gpu, start_ns, true);
}

/* A context that is paused leaves the engine, whether it had work or not (seen on an H200). */
static void leave_paused(struct sim_view *v, uint32_t g)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	if (gpu->engine.slot == SIM_NO_SLOT || !paused(share_of(v, g, gpu->engine.slot), gpu->clock_ns))
		return;
	log_switch(gpu, gpu->clock_ns, false);
	gpu->engine.slot = SIM_NO_SLOT;
}

/* Gives the GPU to another slot, or the current one a new slice. False: nobody may run. */
static bool give_turn(struct sim_view *v, uint32_t g)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	uint64_t end_ns = gpu->clock_ns;
	bool preempted = may_run(v, g, gpu->current, gpu->clock_ns);
	uint32_t next = next_slot(v, g, gpu->from_head ? SIM_NO_SLOT : gpu->current, gpu->clock_ns);
	if (next == SIM_NO_SLOT)
		return false;
	gpu->from_head = false;
	if (preempted && next != gpu->current) {
		gpu->clock_ns += v->machine.gpu[g].switch_us * 1000ull;
		gpu->switches++;
	}
	if (gpu->cut_ns <= gpu->clock_ns) /* a switch is not cut */
		gpu->cut_ns = SIM_NEVER;
	gpu->current = next;
	take_engine(v, g, next, end_ns);
	gpu->slice_end_ns = gpu->clock_ns + share_of(v, g, next)->timeslice_ns;
	return true;
}

/* Ends the stay of whoever is on the engine, where a pause, or a change of a timeslice, does that now. */
static void cut_stay(struct sim_gpu *gpu)
{
	if (gpu->clock_ns < gpu->cut_ns)
		return;
	gpu->cut_ns = SIM_NEVER;
	gpu->slice_end_ns = min_u64(gpu->slice_end_ns, gpu->clock_ns);
}

void timeline_advance(struct sim_view *v, uint32_t g, uint64_t now_ns)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	while (gpu->clock_ns < now_ns) {
		leave_paused(v, g);
		cut_stay(gpu);
		bool running =
			may_run(v, g, gpu->current, gpu->clock_ns) && gpu->clock_ns < gpu->slice_end_ns;
		if (!running)
			running = give_turn(v, g);
		if (gpu->clock_ns >= now_ns)
			break;
		uint64_t limit = next_change(v, g, gpu->clock_ns, min_u64(now_ns, gpu->cut_ns));
		if (running && may_run(v, g, gpu->current, gpu->clock_ns))
			run_current(v, g, limit);
		else if (!running)
			gpu->clock_ns = limit;
	}
}

uint64_t timeline_submit(struct sim_view *v, uint32_t line, uint32_t g, uint64_t length_ns)
{
	struct sim_share *share = share_of(v, g, line);
	timeline_advance(v, g, timeline_now());
	share->submitted_ns += length_ns;
	if (share->submitted_ns > share->done_ns)
		sim_bit_set(v->state->gpu[g].pending, line);
	return share->submitted_ns;
}

uint64_t timeline_time_of(struct sim_view *v, uint32_t line, uint32_t g, uint64_t position)
{
	const struct sim_gpu *gpu = &v->state->gpu[g];
	uint32_t reuse = v->state->slot[line].reuse;
	uint64_t oldest = gpu->runs > SIM_LOG_LENGTH ? gpu->runs - SIM_LOG_LENGTH : 0;
	uint64_t time = 0;
	for (uint64_t i = gpu->runs; i-- > oldest;) {
		const struct sim_run *run = &gpu->log[i % SIM_LOG_LENGTH];
		if (run->slot != line || run->reuse != reuse)
			continue;
		time = run->start_ns;
		if (run->from_ns + run->length_ns < position)
			return run->start_ns; /* reached by work of no length */
		if (run->from_ns < position)
			return run->start_ns + (position - run->from_ns);
	}
	return time;
}

uint64_t timeline_earliest(struct sim_view *v, uint32_t line, uint32_t g, uint64_t position)
{
	const struct sim_gpu *gpu = &v->state->gpu[g];
	const struct sim_share *me = share_of(v, g, line);
	uint64_t start = gpu->clock_ns;
	if (me->done_ns >= position)
		return start;
	if (paused(me, start)) {
		if (me->resume_ns == SIM_NEVER)
			return SIM_NEVER;
		start = me->resume_ns;
	} else if (gpu->current != line && may_run(v, g, gpu->current, start) && start < gpu->slice_end_ns) {
		const struct sim_share *other = share_of(v, g, gpu->current);
		start += min_u64(gpu->slice_end_ns - start, other->submitted_ns - other->done_ns);
	}
	return start + (position - me->done_ns);
}

static void wake(struct sim_share *share)
{
	share->wakes++;
	syscall(SYS_futex, &share->wakes, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void timeline_pause(struct sim_view *v, uint32_t slot, uint32_t g, uint64_t at_ns)
{
	struct sim_share *share = share_of(v, g, slot);
	timeline_advance(v, g, timeline_now());
	if (!paused(share, v->state->gpu[g].clock_ns))
		share->pause_ns = at_ns;
	share->resume_ns = SIM_NEVER;
	share->pauses++;
	v->state->gpu[g].cut_ns = min_u64(v->state->gpu[g].cut_ns, at_ns);
}

void timeline_resume(struct sim_view *v, uint32_t slot, uint32_t g, uint64_t at_ns)
{
	struct sim_share *share = share_of(v, g, slot);
	timeline_advance(v, g, timeline_now());
	share->resume_ns = at_ns;
	wake(share);
}

void timeline_begin_anew(struct sim_view *v, uint32_t g)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	gpu->cut_ns = gpu->clock_ns;
	gpu->from_head = true;
}

bool timeline_reached(struct sim_view *v, uint32_t line, uint32_t g, uint64_t position)
{
	sim_lock(v);
	timeline_advance(v, g, timeline_now());
	bool reached = share_of(v, g, line)->done_ns >= position;
	sim_unlock(v);
	return reached;
}

static void sleep_until(struct sim_share *share, uint32_t seen, uint64_t at_ns)
{
	static _Thread_local bool precise;
	if (!precise) {
		prctl(PR_SET_TIMERSLACK, 1000); /* the default adds 50 us to every wait */
		precise = true;
	}
	struct timespec t = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
	syscall(SYS_futex, &share->wakes, FUTEX_WAIT_BITSET, seen, &t, NULL, FUTEX_BITSET_MATCH_ANY);
}

void timeline_wait(struct sim_view *v, uint32_t line, uint32_t g, uint64_t position)
{
	struct sim_share *share = share_of(v, g, line);
	for (;;) {
		sim_lock(v);
		uint64_t now = timeline_now();
		timeline_advance(v, g, now);
		if (share->done_ns >= position || share->submitted_ns < position) {
			sim_unlock(v);
			return;
		}
		uint64_t until = timeline_earliest(v, line, g, position);
		uint32_t seen = share->wakes;
		bool alone = sim_bit_next(v->state->gpu[g].pending, line + 1) == SIM_NO_SLOT &&
			     sim_bit_next(v->state->gpu[g].pending, 0) == line;
		if (!alone)
			sim_sweep(v);
		sim_unlock(v);
		if (!alone || until == SIM_NEVER)
			until = min_u64(until, now + LOOK_AGAIN_NS);
		sleep_until(share, seen, until);
	}
}
