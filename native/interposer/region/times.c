/* SPDX-License-Identifier: Apache-2.0 */
#include "region/times.h"

#include "base/clock.h"

/* Sets a time that is not set. */
static void set_once(uint64_t *word, uint64_t now)
{
	uint64_t none = 0;
	__atomic_compare_exchange_n(word, &none, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* Raises a time to `now`. */
static void set_later(uint64_t *word, uint64_t now)
{
	uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
	while (seen < now &&
	       !__atomic_compare_exchange_n(word, &seen, now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

void hami_region_note_context(struct hami_region *region)
{
	uint64_t *word = &region->usage->head.first_context_unix_ns;
	if (!__atomic_load_n(word, __ATOMIC_RELAXED))
		set_once(word, (uint64_t)hami_clock_shared());
}

void hami_region_note_launch(struct hami_region *region)
{
	uint64_t now = (uint64_t)hami_clock_shared();
	set_once(&region->usage->head.first_launch_unix_ns, now);
	set_later(&region->usage->head.last_use_unix_ns, now);
}

void hami_region_note_use(struct hami_region *region)
{
	set_later(&region->usage->head.last_use_unix_ns, (uint64_t)hami_clock_shared());
}

void hami_region_note_more(struct hami_region *region, int64_t now)
{
	/* Not the latest: one that was written before the clock was set back would count for long. */
	__atomic_store_n(&region->usage->head.more_unix_ns, (uint64_t)now, __ATOMIC_RELAXED);
}
