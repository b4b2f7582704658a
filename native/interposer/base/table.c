/* SPDX-License-Identifier: Apache-2.0 */
#include "base/table.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 16
#define FIRST_CAPACITY 64

static struct shard {
	pthread_mutex_t lock;
	struct hami_entry *slots; /* key 0: empty */
	size_t capacity;          /* a power of two */
	size_t count;
} shards[SHARDS] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

/* Mixes by Fibonacci hashing: the low bits of addresses are alike. */
static uint64_t mix(uint64_t key)
{
	key ^= key >> 32;
	key *= 0x9e3779b97f4a7c15u;
	return key ^ (key >> 29);
}

static struct shard *shard_of(uint64_t key)
{
	return &shards[mix(key) >> 60];
}

static size_t home(const struct shard *s, uint64_t key)
{
	return (size_t)mix(key) & (s->capacity - 1);
}

static void insert(struct shard *s, struct hami_entry entry)
{
	size_t i = home(s, entry.key);
	while (s->slots[i].key && s->slots[i].key != entry.key)
		i = (i + 1) & (s->capacity - 1);
	if (!s->slots[i].key)
		s->count++;
	s->slots[i] = entry;
}

static bool grow(struct shard *s)
{
	struct shard bigger = {.capacity = s->capacity ? 2 * s->capacity : FIRST_CAPACITY};
	bigger.slots = calloc(bigger.capacity, sizeof *bigger.slots);
	if (!bigger.slots)
		return false;
	for (size_t i = 0; i < s->capacity; i++)
		if (s->slots[i].key)
			insert(&bigger, s->slots[i]);
	free(s->slots);
	__atomic_store_n(&s->slots, bigger.slots, __ATOMIC_RELAXED); /* atomic for hami_table_expect */
	__atomic_store_n(&s->capacity, bigger.capacity, __ATOMIC_RELAXED);
	return true;
}

/* Takes no lock: an address that is no longer the table's is prefetched, never read. */
void hami_table_expect(uint64_t key)
{
	const struct shard *s = shard_of(key);
	uintptr_t slots = (uintptr_t)__atomic_load_n(&s->slots, __ATOMIC_RELAXED);
	size_t i = (size_t)mix(key) & (__atomic_load_n(&s->capacity, __ATOMIC_RELAXED) - 1);
	if (slots)
		__builtin_prefetch((const void *)(slots + i * sizeof *s->slots), 1);
}

bool hami_table_put(struct hami_entry entry)
{
	struct shard *s = shard_of(entry.key);
	pthread_mutex_lock(&s->lock);
	bool ok = 4 * (s->count + 1) <= 3 * s->capacity || grow(s);
	if (ok)
		insert(s, entry);
	pthread_mutex_unlock(&s->lock);
	return ok;
}

/* Empties slot i and closes the gap, so that probing needs no tombstones. */
static void erase(struct shard *s, size_t i)
{
	size_t mask = s->capacity - 1;
	for (size_t j = (i + 1) & mask; s->slots[j].key; j = (j + 1) & mask) {
		size_t want = home(s, s->slots[j].key);
		if (((j - want) & mask) >= ((j - i) & mask)) {
			s->slots[i] = s->slots[j];
			i = j;
		}
	}
	s->slots[i] = (struct hami_entry){0};
	s->count--;
}

/* Gives up one holder. Returns the bytes that nobody holds any more: 0 unless it was the last. */
static uint64_t let_go(const struct hami_entry *entry)
{
	if (entry->holders && __atomic_sub_fetch(entry->holders, 1, __ATOMIC_ACQ_REL) > 0)
		return 0;
	free(entry->holders);
	return entry->bytes;
}

uint64_t hami_table_unshare(struct hami_entry *copy)
{
	return let_go(copy);
}

static struct hami_entry *find(const struct shard *s, uint64_t key)
{
	if (!s->capacity)
		return NULL;
	for (size_t i = home(s, key); s->slots[i].key; i = (i + 1) & (s->capacity - 1))
		if (s->slots[i].key == key)
			return &s->slots[i];
	return NULL;
}

int hami_table_share(uint64_t key, struct hami_entry *copy)
{
	struct shard *s = shard_of(key);
	int rc = -ENOENT;
	pthread_mutex_lock(&s->lock);
	struct hami_entry *entry = find(s, key);
	if (entry) {
		rc = -ENOMEM;
		if (!entry->holders && (entry->holders = malloc(sizeof *entry->holders)))
			*entry->holders = 1;
		if (entry->holders) {
			__atomic_add_fetch(entry->holders, 1, __ATOMIC_RELAXED);
			*copy = *entry;
			rc = 0;
		}
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}

struct hami_entry hami_table_take(uint64_t key)
{
	struct hami_entry taken = {0};
	struct shard *s = shard_of(key);
	pthread_mutex_lock(&s->lock);
	const struct hami_entry *entry = find(s, key);
	if (entry) {
		taken = *entry;
		erase(s, (size_t)(entry - s->slots));
	}
	pthread_mutex_unlock(&s->lock);
	if (taken.holders)
		taken.bytes = let_go(&taken);
	taken.holders = NULL;
	return taken;
}

static void add(struct hami_sums *sums, uint64_t slices, uint64_t bytes)
{
	for (unsigned int i = 0; i < HAMI_SLICES; i++)
		if (slices >> i & 1)
			sums->bytes[i] += bytes;
}

/* Removes all entries of this owner, or of this client when `owner` is 0. */
static void take_all(uint64_t owner, uint32_t client, struct hami_sums *sums)
{
	for (size_t n = 0; n < SHARDS; n++) {
		struct shard *s = &shards[n];
		pthread_mutex_lock(&s->lock);
		for (size_t i = 0; i < s->capacity;) {
			const struct hami_entry *e = &s->slots[i];
			if (e->key && (owner ? e->owner == owner : e->key >> 32 == client)) {
				add(sums, e->slices, let_go(e));
				erase(s, i); /* another entry may have moved here: look again */
			} else {
				i++;
			}
		}
		pthread_mutex_unlock(&s->lock);
	}
}

void hami_table_take_owner(uint64_t owner, struct hami_sums *sums)
{
	if (owner)
		take_all(owner, 0, sums);
}

void hami_table_take_client(uint32_t client, struct hami_sums *sums)
{
	if (client)
		take_all(0, client, sums);
}

/* Leaves the parent's entries as they are: another thread may have been changing them. */
void hami_table_forked(void)
{
	static const struct shard empty = {.lock = PTHREAD_MUTEX_INITIALIZER};
	for (size_t n = 0; n < SHARDS; n++)
		if (memcmp(&shards[n], &empty, sizeof empty)) /* see lock.h for why it is not just written */
			memcpy(&shards[n], &empty, sizeof empty);
}
