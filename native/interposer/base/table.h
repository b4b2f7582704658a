/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of allocations: address or handle to what was charged for it. Open addressing in 16 shards, each
 * with its own lock; the cost of an operation on one key does not depend on how many entries live.
 * Thread-safe, not async-signal-safe. A forked child starts with an empty table: the parent's allocations are
 * charged to the parent, and no CUDA call works on them in the child.
 */
#ifndef HAMI_TABLE_H
#define HAMI_TABLE_H
#include <stdbool.h>
#include <stdint.h>

/* Slices that a process can have: each is a part of another GPU. A set of them is a mask. */
enum { HAMI_SLICES = 16 };

struct hami_entry {
	uint64_t key;    /* never 0 */
	uint64_t bytes;  /* charged, on each of `slices` */
	uint64_t owner;  /* key of the object that it belongs to and goes with; 0: none */
	int *holders;    /* of memory under several keys: how many; NULL: this one alone */
	uint64_t slices; /* mask */
};

/* Bytes by slice. */
struct hami_sums {
	uint64_t bytes[HAMI_SLICES];
};

/* Puts the entry, in place of one with the same key. False when memory for it could not be had. */
bool hami_table_put(struct hami_entry entry);
/* Brings the place of a key that will be put soon into the cache, while the driver works. Takes no lock. */
void hami_table_expect(uint64_t key);
/* Removes and returns the entry; key 0 when there is none. Its bytes are 0 while others hold the memory. */
struct hami_entry hami_table_take(uint64_t key);
/*
 * Removes all entries of `owner`, or all whose key has `client` in its upper half, and adds their bytes to
 * *sums, without those that others still hold.
 */
void hami_table_take_owner(uint64_t owner, struct hami_sums *sums);
void hami_table_take_client(uint32_t client, struct hami_sums *sums);
/*
 * One more holder of the entry's memory: copies the entry, to be put under another key or given up. 0;
 * -ENOENT when there is no such entry, -ENOMEM.
 */
int hami_table_share(uint64_t key, struct hami_entry *copy);
/* Gives up a copy that was not put. Returns the bytes that nobody holds any more. */
uint64_t hami_table_unshare(struct hami_entry *copy);

/* In a forked child: empties the table, whose locks another thread may have held. */
void hami_table_forked(void);

#endif
