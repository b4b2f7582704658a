/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include "channels.h"
#include "memory_limits.h"
#include "mig.h"
#include "timeline.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int init_state(int fd, uint32_t gpu_count)
{
	if (ftruncate(fd, sizeof(struct sim_state)) != 0 || fchmod(fd, 0666) != 0)
		return -errno;
	struct sim_state *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (s == MAP_FAILED)
		return -errno;
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	int rc = -pthread_mutex_init(&s->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
		s->gpu[i].current = s->gpu[i].engine.slot = SIM_NO_SLOT;
	s->next_id = 1;
	s->loaded_ns = timeline_now();
	s->clock_offset_ns = timeline_clock(CLOCK_REALTIME) - s->loaded_ns;
	s->version = SIM_VERSION;
	s->gpu_count = gpu_count;
	s->magic = SIM_MAGIC;
	munmap(s, sizeof *s);
	return rc;
}

/* Complete before it has its name: two processes may both try, and one of them wins. */
int sim_state_create(const char *dir, uint32_t gpu_count)
{
	char path[PATH_MAX], temporary[PATH_MAX];
	snprintf(path, sizeof path, "%.3000s/state", dir);
	snprintf(temporary, sizeof temporary, "%.3000s/state.XXXXXX", dir);
	int fd = mkostemp(temporary, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int rc = init_state(fd, gpu_count);
	if (!rc && link(temporary, path) != 0 && errno != EEXIST)
		rc = -errno;
	unlink(temporary);
	close(fd);
	return rc;
}

static int map_state(struct sim_view *v)
{
	char path[PATH_MAX];
	struct stat st;
	snprintf(path, sizeof path, "%s/state", v->dir);
	v->fd = open(path, O_RDWR | O_CLOEXEC);
	if (v->fd < 0 && errno == ENOENT) {
		int rc = sim_state_create(v->dir, v->machine.gpu_count);
		if (rc)
			return rc;
		v->fd = open(path, O_RDWR | O_CLOEXEC);
	}
	if (v->fd < 0)
		return -errno;
	if (fstat(v->fd, &st) != 0)
		return -errno;
	if (st.st_size != sizeof(struct sim_state))
		return -EPROTO;
	struct sim_state *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, 0);
	if (s == MAP_FAILED)
		return -errno;
	if (s->magic != SIM_MAGIC || s->version != SIM_VERSION || s->gpu_count != v->machine.gpu_count) {
		munmap(s, sizeof *s);
		return -EPROTO;
	}
	v->state = s;
	return 0;
}

int sim_open(struct sim_view *v)
{
	*v = (struct sim_view){.fd = -1, .slot_fd = -1, .slot = SIM_NO_SLOT};
	const char *dir = getenv("HAMI_SIM");
	if (!dir || !*dir || strlen(dir) >= sizeof v->dir) {
		fprintf(stderr, "hami_hpc: simulation: HAMI_SIM must name a machine's directory; "
				"make one with sim-machine DIR h200\n");
		return -ENODEV;
	}
	memcpy(v->dir, dir, strlen(dir) + 1);
	int rc = sim_machine_read(v->dir, &v->machine);
	if (!rc)
		rc = map_state(v);
	if (rc) {
		fprintf(stderr,
			"hami_hpc: simulation: HAMI_SIM=%s cannot be used (%s); "
			"make it anew with sim-machine\n",
			v->dir, strerror(-rc));
		if (v->fd >= 0)
			close(v->fd);
		v->fd = -1;
	}
	return rc;
}

static void set_used(struct sim_gpu *gpu, struct sim_share *share, uint64_t bytes)
{
	gpu->used_bytes = gpu->used_bytes - share->used_bytes + bytes;
	share->used_bytes = bytes;
	gpu->events++;
}

/* The sums again from the slots, after a holder of the mutex died at any line. */
static void recompute(struct sim_state *s)
{
	for (uint32_t g = 0; g < s->gpu_count; g++)
		s->gpu[g].used_bytes = 0;
	for (uint32_t i = 0; i < SIM_MAX_SLOTS; i++) {
		struct sim_slot *slot = &s->slot[i];
		if (slot->state)
			sim_bit_set(s->live, i);
		else
			sim_bit_clear(s->live, i);
		sim_channels_count(slot);
		for (uint32_t g = 0; g < s->gpu_count; g++) {
			struct sim_share *share = &slot->gpu[g];
			if (slot->state)
				s->gpu[g].used_bytes += share->used_bytes;
			if (slot->state && share->submitted_ns > share->done_ns)
				sim_bit_set(s->gpu[g].pending, i);
			else
				sim_bit_clear(s->gpu[g].pending, i);
		}
	}
}

void sim_lock(struct sim_view *v)
{
	int rc = pthread_mutex_lock(&v->state->lock);
	if (rc == EOWNERDEAD) {
		recompute(v->state);
		pthread_mutex_consistent(&v->state->lock);
	} else if (rc) {
		fprintf(stderr,
			"hami_hpc: simulation: %s/state: lock: %s; make the machine anew with sim-machine\n",
			v->dir, strerror(rc));
		abort();
	}
}

void sim_unlock(struct sim_view *v)
{
	pthread_mutex_unlock(&v->state->lock);
}

static void release_share(struct sim_state *s, uint32_t index, uint32_t g)
{
	struct sim_gpu *gpu = &s->gpu[g];
	struct sim_share *share = &s->slot[index].gpu[g];
	if (share->used_bytes) {
		gpu->reclaimed_bytes += share->used_bytes;
		set_used(gpu, share, 0);
	}
	sim_bit_clear(gpu->pending, index);
	if (gpu->current == index)
		gpu->current = SIM_NO_SLOT;
}

static bool drop_holder(struct sim_state *s, struct sim_shared *shared, uint32_t index);

static void bury(struct sim_view *v, uint32_t index)
{
	struct sim_state *s = v->state;
	for (uint32_t i = 0; i < SIM_MAX_SHARED; i++) {
		struct sim_shared *shared = &s->shared[i];
		uint64_t id = shared->id;
		if (!id || !sim_bit(shared->holders, index) || !drop_holder(s, shared, index))
			continue;
		s->gpu[shared->gpu].reclaimed_bytes += shared->bytes;
		sim_unlink_shared(v, id);
	}
	for (uint32_t g = 0; g < s->gpu_count; g++) {
		timeline_advance(v, g, timeline_now());
		if (s->slot[index].gpu[g].contexts)
			s->gpu[g].reclaimed_processes++;
		release_share(s, index, g);
	}
	s->slot[index].state = 0;
	sim_bit_clear(s->live, index);
}

void sim_sweep(struct sim_view *v)
{
	for (uint32_t i = sim_bit_next(v->state->live, 0); i != SIM_NO_SLOT;
	     i = sim_bit_next(v->state->live, i + 1)) {
		short lock_type = F_WRLCK;
		if (i != v->slot && sim_slot_lock(v->fd, F_OFD_GETLK, F_WRLCK, i, &lock_type) == 0 &&
		    lock_type == F_UNLCK)
			bury(v, i);
	}
}

static int look_for_room(struct sim_view *v, uint32_t g, uint64_t bytes)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	uint64_t total = sim_mig_total(v, g);
	/* Sweeping costs system calls: only where the dead would change what is answered or recorded. */
	if (bytes > total || sim_mig_used(v, g) > total - bytes || gpu->used_bytes + bytes > gpu->peak_bytes)
		sim_sweep(v);
	if (bytes > total || sim_mig_used(v, g) > total - bytes || sim_limit_room(v, g, bytes)) {
		gpu->refusals++;
		return -ENOMEM;
	}
	return 0;
}

int sim_charge(struct sim_view *v, uint32_t g, uint64_t bytes)
{
	struct sim_gpu *gpu = &v->state->gpu[g];
	struct sim_share *share = &v->state->slot[v->slot].gpu[g];
	int rc = look_for_room(v, g, bytes);
	if (rc)
		return rc;
	set_used(gpu, share, share->used_bytes + bytes);
	gpu->allocations++;
	if (gpu->used_bytes > gpu->peak_bytes)
		gpu->peak_bytes = gpu->used_bytes;
	if (share->used_bytes > share->peak_bytes)
		share->peak_bytes = share->used_bytes;
	return 0;
}

void sim_uncharge(struct sim_view *v, uint32_t g, uint64_t bytes)
{
	struct sim_share *share = &v->state->slot[v->slot].gpu[g];
	set_used(&v->state->gpu[g], share, share->used_bytes - bytes);
	v->state->gpu[g].frees++;
}

static struct sim_shared *find_shared(struct sim_state *s, uint64_t id)
{
	for (uint32_t i = 0; i < SIM_MAX_SHARED; i++)
		if (s->shared[i].id == id)
			return &s->shared[i];
	return NULL;
}

uint64_t sim_shared_new_id(struct sim_view *v)
{
	return v->state->next_id++;
}

bool sim_shared_make(struct sim_view *v, uint32_t gpu, uint64_t bytes, uint64_t id)
{
	struct sim_shared *shared = find_shared(v->state, 0);
	if (!shared)
		return false;
	memset(shared, 0, sizeof *shared);
	shared->bytes = bytes;
	shared->gpu = gpu;
	shared->payer = v->slot;
	sim_bit_set(shared->holders, v->slot);
	shared->id = id;
	return true;
}

int sim_shared_join(struct sim_view *v, uint64_t id, uint32_t *gpu, uint64_t *bytes)
{
	sim_sweep(v);
	struct sim_shared *shared = id ? find_shared(v->state, id) : NULL;
	if (!shared)
		return -ENOENT;
	sim_bit_set(shared->holders, v->slot);
	*gpu = shared->gpu;
	*bytes = shared->bytes;
	return 0;
}

/* The payer's bytes move to another holder, and return to the GPU with the last. */
static bool drop_holder(struct sim_state *s, struct sim_shared *shared, uint32_t index)
{
	sim_bit_clear(shared->holders, index);
	uint32_t heir = sim_bit_next(shared->holders, 0);
	if (shared->payer == index) {
		struct sim_gpu *gpu = &s->gpu[shared->gpu];
		struct sim_share *from = &s->slot[index].gpu[shared->gpu];
		set_used(gpu, from, from->used_bytes - shared->bytes);
		if (heir != SIM_NO_SLOT) {
			struct sim_share *to = &s->slot[heir].gpu[shared->gpu];
			set_used(gpu, to, to->used_bytes + shared->bytes);
			if (to->used_bytes > to->peak_bytes)
				to->peak_bytes = to->used_bytes;
			shared->payer = heir;
		} else {
			gpu->frees++;
		}
	}
	if (heir == SIM_NO_SLOT)
		shared->id = 0;
	return heir == SIM_NO_SLOT;
}

void sim_shared_leave(struct sim_view *v, uint64_t id)
{
	struct sim_shared *shared = find_shared(v->state, id);
	if (shared && drop_holder(v->state, shared, v->slot))
		sim_unlink_shared(v, id);
}

void sim_unlink_shared(const struct sim_view *v, uint64_t id)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%.3000s/shared/%" PRIu64, v->dir, id);
	unlink(path); /* only IPC memory has one */
}
