/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of a usage record, the rows of its steps, and the sums over them. The caller holds the record's lock. A
 * user may have written anything into the record: rows out of range are passed over. Takes no lock of its own, so no
 * fork handler; not async-signal-safe.
 */
#ifndef HAMI_SLOTS_H
#define HAMI_SLOTS_H
#include <stdint.h>

#include "hami_contract.h"

/*
 * For words that somebody reads without the lock, to show or to plan by: never torn, and no order promised.
 * Writers hold the lock, so PLUS needs no atomic addition.
 */
#define PEEK(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define POKE(word, value) __atomic_store_n(&(word), value, __ATOMIC_RELAXED)
#define PLUS(word, value) POKE(word, (word) + (value))

/* Returns the slot's step; NULL when a user wrote another number there. Reads the number once. */
struct hami_usage_step *hami_slot_step(struct hami_usage_file *u, const struct hami_usage_slot *slot);

/* Computes the sums from the slots: the dead owner of the lock may not have finished them. */
void hami_slots_recompute(struct hami_usage_file *u);

/* Moves the slot's totals to the head and returns its memory. */
void hami_slot_clear(struct hami_usage_file *u, struct hami_usage_slot *slot);

/*
 * Makes a cleared slot that of process `pid` of the step. 0; -EDQUOT when `most` other slots are in use (0: any number
 * may be), -EUSERS when every step's row is taken.
 */
int hami_slot_take(struct hami_usage_file *u, struct hami_usage_slot *slot, uint32_t pid,
		   const struct hami_limits *step, uint32_t most);

#endif
