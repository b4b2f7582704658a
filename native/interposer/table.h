/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Address (or handle) to what is known of it. Open addressing in 16 shards, each with its own lock; the cost
 * of an operation does not depend on how many entries live. Thread-safe. After fork the child's copy is stale
 * and harmless: no CUDA call works there until it starts over, and then addresses are new.
 */
#ifndef HAMI_TABLE_H
#define HAMI_TABLE_H
#include <stdbool.h>
#include <stdint.h>

struct hami_entry {
	uint64_t key;   /* never 0 */
	uint64_t bytes; /* charged */
	void *owner;    /* the context, or the object, that it belongs to */
};

/* false when memory for the entry could not be had. An existing entry is replaced. */
bool hami_table_put(struct hami_entry entry);
/* Soon to be put: brings the place into the cache while the driver is at work. */
void hami_table_expect(uint64_t key);
/* Removes and returns the entry; key 0 when there is none. */
struct hami_entry hami_table_take(uint64_t key);
/* Removes all entries of `owner`; the sum of their bytes. */
uint64_t hami_table_take_owner(const void *owner);

#endif
