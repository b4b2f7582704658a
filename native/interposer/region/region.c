/* SPDX-License-Identifier: Apache-2.0 */
#include "region/region.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "region/slots.h"

#define CONTENDED 0x80000000u /* in usage.lock: somebody sleeps */
#define SPINS 200
#define MOVE_PATIENCE_NS 60000000000ll
#define PATIENCE_NS 2000000 /* how long a waiter sleeps before it asks whether the owner lives */

static int slot_lock(int fd, int command, uint32_t slot, struct flock *lock)
{
	*lock = (struct flock){.l_type = F_WRLCK,
			       .l_whence = SEEK_SET,
			       .l_start = (off_t)(HAMI_SLOT_LOCK_BASE + slot),
			       .l_len = 1};
	return fcntl(fd, command, lock);
}

/* A process's own lock does not conflict with itself, hence the first test. */
static bool slot_alive(struct hami_region *region, uint32_t slot)
{
	struct flock lock;
	if ((int32_t)slot == __atomic_load_n(&region->slot, __ATOMIC_ACQUIRE))
		return true;
	if (slot_lock(hami_descriptor(&region->file), F_OFD_GETLK, slot, &lock))
		return true; /* cannot tell: never take memory from the living */
	return lock.l_type != F_UNLCK;
}

#define LIMIT_TRIES 100000 /* about a millisecond */

/* Root may be killed while the record's sequence is odd, and nobody waits for that: a limit is one aligned word. */
static uint64_t limit_bytes(const struct hami_limits *limits)
{
	uint64_t bytes = 0;
	for (int tries = 0; tries < LIMIT_TRIES; tries++) {
		uint64_t before = __atomic_load_n(&limits->sequence, __ATOMIC_ACQUIRE);
		bytes = __atomic_load_n(&limits->mem_limit_bytes, __ATOMIC_ACQUIRE);
		if (!(before & 1) && before == __atomic_load_n(&limits->sequence, __ATOMIC_ACQUIRE))
			break;
	}
	return bytes;
}

static int futex(uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, op, value, timeout, NULL, 0) < 0 ? -errno : 0;
}

/*
 * Waits for the lock that others hold. 0 with the lock held; -ETIMEDOUT when its owner lives and has not let
 * go for HAMI_LOCK_PATIENCE_MS. The word is marked as contended, since we may not be the only sleeper.
 */
static int wait_for_lock(struct hami_region *region, uint32_t *word, uint32_t mine)
{
	const int64_t most = HAMI_LOCK_PATIENCE_MS * 1000000ll / PATIENCE_NS;
	uint32_t last = 0;
	for (int64_t sleeps = 0; sleeps < most;) {
		uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
		if (!(seen & ~CONTENDED)) {
			if (__atomic_compare_exchange_n(word, &seen, mine | CONTENDED, false,
							__ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
				return 0;
			continue;
		}
		if (!(seen & CONTENDED) && !__atomic_compare_exchange_n(word, &seen, seen | CONTENDED, false,
									__ATOMIC_RELAXED, __ATOMIC_RELAXED))
			continue;
		seen |= CONTENDED;
		/* Slept to the end, and the same owner: whoever is woken saw somebody let go. */
		bool slept = futex(word, FUTEX_WAIT, seen, &(struct timespec){.tv_nsec = PATIENCE_NS}) ==
			     -ETIMEDOUT;
		sleeps = slept && seen == last ? sleeps + 1 : 0;
		last = seen;
		uint32_t owner = (seen & ~CONTENDED) - 1;
		if (__atomic_load_n(word, __ATOMIC_RELAXED) != seen ||
		    (owner < HAMI_USAGE_SLOT_COUNT && slot_alive(region, owner)))
			continue;
		if (__atomic_compare_exchange_n(word, &seen, mine | CONTENDED, false, __ATOMIC_ACQUIRE,
						__ATOMIC_RELAXED)) {
			hami_slots_recompute(region->usage);
			return 0;
		}
	}
	return -ETIMEDOUT;
}

/* Takes the lock: 0, or -ETIMEDOUT. */
static int lock_region(struct hami_region *region)
{
	uint32_t *word = &region->usage->head.lock;
	uint32_t mine = (uint32_t)__atomic_load_n(&region->slot, __ATOMIC_ACQUIRE) + 1;
	for (int spin = 0; spin < SPINS; spin++) {
		uint32_t free_word = 0;
		if (__atomic_compare_exchange_n(word, &free_word, mine, false, __ATOMIC_ACQUIRE,
						__ATOMIC_RELAXED))
			return 0;
		__builtin_ia32_pause();
	}
	return wait_for_lock(region, word, mine);
}

static void unlock_region(struct hami_region *region)
{
	uint32_t *word = &region->usage->head.lock;
	if (__atomic_exchange_n(word, 0, __ATOMIC_RELEASE) & CONTENDED)
		futex(word, FUTEX_WAKE, 1, NULL);
}

static void sweep(struct hami_region *region)
{
	for (uint32_t i = 0; i < HAMI_USAGE_SLOT_COUNT; i++)
		if (region->usage->slots[i].state && !slot_alive(region, i))
			hami_slot_clear(region->usage, &region->usage->slots[i]);
}

/* Fills slot `i`, whose byte lock this process has just taken. */
static int fill_slot(struct hami_region *region, uint32_t i)
{
	struct hami_usage_file *u = region->usage;
	int rc = lock_region(region);
	if (rc)
		return rc;
	hami_slot_clear(u, &u->slots[i]); /* a dead predecessor's */
	sweep(region);                    /* max_processes, and timeslices, count the processes that live */
	rc = hami_slot_take(u, &u->slots[i], (uint32_t)getpid(), region->step, region->job->max_processes);
	unlock_region(region);
	return rc;
}

/*
 * Takes a slot whose byte lock nobody holds, and fills it. Not the slot that the record's lock names: its
 * owner died holding the lock, and must stay dead for those who are about to take the lock over. region->join
 * is held.
 */
static int take_slot(struct hami_region *region)
{
	struct flock lock;
	uint32_t start = (uint32_t)getpid() % HAMI_USAGE_SLOT_COUNT;
	const int fd = hami_descriptor(&region->file);
	if (fd < 0)
		return fd;
	for (uint32_t n = 0; n < HAMI_USAGE_SLOT_COUNT; n++) {
		uint32_t i = (start + n) % HAMI_USAGE_SLOT_COUNT;
		if (slot_lock(fd, F_OFD_SETLK, i, &lock)) {
			if (errno == EAGAIN || errno == EACCES)
				continue;
			return -errno;
		}
		uint32_t word = __atomic_load_n(&region->usage->head.lock, __ATOMIC_ACQUIRE);
		bool named = (word & ~CONTENDED) == i + 1;
		int rc = 0;
		if (!named) {
			__atomic_store_n(&region->slot, (int32_t)i, __ATOMIC_RELEASE);
			rc = fill_slot(region, i);
		}
		if (!named && !rc)
			return 0;
		__atomic_store_n(&region->slot, -1, __ATOMIC_RELEASE);
		lock.l_type = F_UNLCK;
		fcntl(fd, F_OFD_SETLK, &lock);
		if (rc)
			return rc;
	}
	return -EUSERS;
}

int hami_region_join(struct hami_region *region)
{
	if (__atomic_load_n(&region->slot, __ATOMIC_ACQUIRE) >= 0)
		return 0;
	pthread_mutex_lock(&region->join);
	int rc = region->slot < 0 ? take_slot(region) : 0;
	pthread_mutex_unlock(&region->join);
	return rc;
}

static bool fits(const struct hami_region *region, const struct hami_usage_step *step, uint64_t bytes)
{
	uint64_t job_limit = limit_bytes(region->job), step_limit = limit_bytes(region->step);
	uint64_t job_used = region->usage->head.used_bytes;
	return job_used <= job_limit && bytes <= job_limit - job_used && step->used_bytes <= step_limit &&
	       bytes <= step_limit - step->used_bytes;
}

static void add(struct hami_region *region, struct hami_usage_step *step, struct hami_usage_slot *slot,
		uint64_t bytes)
{
	struct hami_usage *head = &region->usage->head;
	PLUS(slot->used_bytes, bytes);
	PLUS(step->used_bytes, bytes);
	PLUS(head->used_bytes, bytes);
	if (slot->used_bytes > slot->peak_bytes)
		slot->peak_bytes = slot->used_bytes;
	if (step->used_bytes > step->peak_bytes)
		step->peak_bytes = step->used_bytes;
	if (head->used_bytes > head->peak_bytes)
		head->peak_bytes = head->used_bytes;
}

/*
 * Adds bytes if they fit, also after they were added: a job that becomes smaller has its limit lowered first, and what it
 * uses is read after that, so one of both sees the other.
 */
static bool add_if_fits(struct hami_region *region, struct hami_usage_step *step,
			struct hami_usage_slot *slot, uint64_t bytes)
{
	struct hami_usage *head = &region->usage->head;
	const uint64_t job_peak = head->peak_bytes, step_peak = step->peak_bytes, own_peak = slot->peak_bytes;
	if (!fits(region, step, bytes))
		return false;
	add(region, step, slot, bytes);
	__atomic_fetch_add(&head->used_bytes, 0, __ATOMIC_SEQ_CST); /* before the limits are read again */
	if (fits(region, step, 0))
		return true;
	PLUS(slot->used_bytes, -bytes);
	PLUS(step->used_bytes, -bytes);
	PLUS(head->used_bytes, -bytes);
	POKE(head->peak_bytes, job_peak);
	POKE(step->peak_bytes, step_peak);
	POKE(slot->peak_bytes, own_peak);
	return false;
}

int hami_region_charge(struct hami_region *region, uint64_t bytes)
{
	int rc = hami_region_join(region);
	if (rc)
		return rc;
	rc = lock_region(region);
	if (rc)
		return rc;
	struct hami_usage_slot *slot = &region->usage->slots[region->slot];
	struct hami_usage_step *step = hami_slot_step(region->usage, slot);
	if (!step) {
		unlock_region(region);
		return -EPROTO;
	}
	if (!fits(region, step, bytes))
		sweep(region);
	if (!add_if_fits(region, step, slot, bytes)) {
		step->oom_count++;
		region->usage->head.oom_count++;
		rc = -ENOMEM;
	}
	unlock_region(region);
	return rc;
}

void hami_region_release(struct hami_region *region, uint64_t bytes)
{
	if (__atomic_load_n(&region->slot, __ATOMIC_ACQUIRE) < 0)
		return; /* this process has charged nothing, as in a forked child */
	int rc = lock_region(region);
	struct hami_usage_slot *slot = &region->usage->slots[region->slot];
	uint64_t used = __atomic_load_n(&slot->used_bytes, __ATOMIC_RELAXED), given;
	do /* no more than is there: the user may have written into the record */
		given = bytes < used ? bytes : used;
	while (!__atomic_compare_exchange_n(&slot->used_bytes, &used, used - given, false, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED));
	if (rc)
		return; /* the sums stay too high until they are computed again, which is the safe side */
	struct hami_usage_step *step = hami_slot_step(region->usage, slot);
	if (step)
		PLUS(step->used_bytes, -given);
	PLUS(region->usage->head.used_bytes, -given);
	unlock_region(region);
}

static uint64_t left(uint64_t limit, uint64_t used)
{
	return used < limit ? limit - used : 0;
}

void hami_region_view(struct hami_region *region, struct hami_view *view)
{
	uint64_t job_limit = limit_bytes(region->job), step_limit = limit_bytes(region->step);
	*view = (struct hami_view){.limit = job_limit < step_limit ? job_limit : step_limit};
	struct hami_usage_file *u = region->usage;
	uint64_t step_used = 0, job_used = __atomic_load_n(&u->head.used_bytes, __ATOMIC_RELAXED);
	if (__atomic_load_n(&region->slot, __ATOMIC_ACQUIRE) >= 0 && !lock_region(region)) {
		const struct hami_usage_slot *slot = &u->slots[region->slot];
		if (u->head.used_bytes != slot->used_bytes)
			sweep(region); /* others hold memory, or died holding it */
		job_used = u->head.used_bytes;
		const struct hami_usage_step *step = hami_slot_step(u, slot);
		if (step)
			step_used = step->used_bytes;
		unlock_region(region);
	} else { /* an onlooker such as nvidia-smi takes no slot and no lock: a glance is enough for it */
		for (uint32_t i = 0; i < HAMI_USAGE_STEP_COUNT; i++)
			if (PEEK(u->steps[i].processes) && PEEK(u->steps[i].step_id) == region->step->step_id)
				step_used = PEEK(u->steps[i].used_bytes);
	}
	uint64_t job_left = left(job_limit, job_used), step_left = left(step_limit, step_used);
	view->free = job_left < step_left ? job_left : step_left;
	view->used = view->limit - (view->free < view->limit ? view->free : view->limit);
}

uint64_t hami_region_of_pid(struct hami_region *region, uint32_t pid)
{
	for (uint32_t i = 0; i < HAMI_USAGE_SLOT_COUNT; i++) {
		const struct hami_usage_slot *slot = &region->usage->slots[i];
		if (PEEK(slot->state) == 1 && PEEK(slot->pid) == pid && slot_alive(region, i))
			return PEEK(slot->used_bytes);
	}
	return UINT64_MAX;
}

/* The byte behind those of the slots. */
bool hami_region_move_begin(struct hami_region *region, int64_t now)
{
	struct flock lock;
	if (slot_lock(hami_descriptor(&region->file), F_OFD_SETLK, HAMI_USAGE_SLOT_COUNT, &lock) &&
	    (errno == EAGAIN || errno == EACCES)) {
		region->move_waits = region->move_waits ? region->move_waits : now;
		if (now - region->move_waits < MOVE_PATIENCE_NS)
			return false;
	}
	region->move_waits = 0;
	return true;
}

void hami_region_move_end(struct hami_region *region)
{
	struct flock lock = {
		.l_type = F_UNLCK, .l_start = HAMI_SLOT_LOCK_BASE + HAMI_USAGE_SLOT_COUNT, .l_len = 1};
	fcntl(hami_descriptor(&region->file), F_OFD_SETLK, &lock);
}

void hami_region_forget_slot(struct hami_region *region)
{
	pthread_mutex_init(&region->join, NULL); /* a thread that does not exist here may have held it */
	/*
	 * The parent's descriptor stays open on purpose: this child also holds the driver's, and with them
	 * the parent's memory, should the parent end first.
	 */
	region->file.fd = -1;
	region->slot = -1;
}
