/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Address (or handle) to what is known of it. Open addressing in 16 shards, each with its own lock; the cost
 * of an operation on one key does not depend on how many entries live. Thread-safe. After fork the child's
 * copy is stale and harmless: no CUDA call works there until it starts over, and then addresses are new.
 */
#ifndef HAMI_TABLE_H
#define HAMI_TABLE_H
#include <stdbool.h>
#include <stdint.h>

struct hami_entry {
	uint64_t key;   /* never 0 */
	uint64_t bytes; /* charged */
	uint64_t owner; /* key of the object that it belongs to and goes with; 0: none */
	int *holders;   /* of memory under several keys: how many; NULL: this one alone */
};

/* false when memory for the entry could not be had. An existing entry is replaced. */
bool hami_table_put(struct hami_entry entry);
/* Soon to be put: brings the place into the cache while the driver is at work. */
void hami_table_expect(uint64_t key);
/* Removes and returns the entry; key 0 when there is none. Its bytes are 0 while others hold the memory too.
 */
struct hami_entry hami_table_take(uint64_t key);
/* Removes all entries of `owner`, or all whose key has `client` above: the sum of their bytes, as above. */
uint64_t hami_table_take_owner(uint64_t owner);
uint64_t hami_table_take_client(uint32_t client);
/*
 * One more holder of the entry's memory: copies the entry, to be put under another key or given up. 0;
 * -ENOENT when there is no such entry, -ENOMEM.
 */
int hami_table_share(uint64_t key, struct hami_entry *copy);
/* Gives up a copy that was not put; the bytes that nobody holds any more. */
uint64_t hami_table_unshare(struct hami_entry *copy);

#endif
