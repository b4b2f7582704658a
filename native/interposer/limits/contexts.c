/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/contexts.h"

#include "arbitration/budget.h"
#include "driver/rm_objects.h"
#include "limits/outstanding.h"

static uint32_t worked_before(const struct hami_contexts *c, uint64_t context)
{
	for (size_t i = 0; i < c->count; i++)
		if (c->all[i].context == context)
			return c->all[i].worked;
	return 0;
}

static bool had_work(const struct hami_answer *a, bool works)
{
	return a->answer == HAMI_SOMETHING_OUTSTANDING || (a->answer == HAMI_OUTSTANDING_UNKNOWN && works);
}

void hami_contexts_note(struct hami_contexts *c, unsigned int slice, bool works)
{
	struct hami_answer answers[HAMI_CONTEXTS_MOST];
	if (!c->watches)
		return;
	const struct hami_contexts before = *c;
	const size_t count = hami_known_answers(slice, answers, HAMI_CONTEXTS_MOST);
	size_t competing = 0;
	for (size_t i = 0; i < count; i++)
		competing += answers[i].paused || had_work(&answers[i], works);
	for (c->count = 0; c->count < count; c->count++) {
		const struct hami_answer *a = &answers[c->count];
		uint32_t worked = worked_before(&before, a->context);
		if (!a->paused)
			worked = hami_part_worked(worked, competing > 1 && had_work(a, works));
		size_t at = c->count;
		for (; at && c->all[at - 1].context > a->context; at--)
			c->all[at] = c->all[at - 1];
		c->all[at].context = a->context;
		c->all[at].worked = worked;
	}
}

/* Writes the contexts that compete. Returns how many there are. */
static uint32_t list_competing(const struct hami_contexts *c, unsigned int slice, uint64_t *list)
{
	uint32_t count = 0;
	for (size_t i = 0; c->watches && i < c->count; i++)
		if (c->all[i].worked >= HAMI_PART_BUSY && hami_objects_of_context(slice, c->all[i].context))
			list[count++] = c->all[i].context;
	return count;
}

static bool has(const uint64_t *list, uint32_t count, uint64_t context)
{
	uint32_t i = 0;
	while (i < count && list[i] != context)
		i++;
	return i < count;
}

int64_t hami_contexts_plan(struct hami_contexts *c, unsigned int slice, const struct hami_terms *terms,
			   const struct hami_part *part, int64_t now)
{
	uint64_t list[HAMI_CONTEXTS_MOST];
	const bool watches = !terms->of_server && (terms->latency_others || terms->others_least_percent);
	if (!watches && !c->watches)
		return INT64_MAX;
	if (watches != c->watches)
		c->count = 0;
	c->watches = watches;
	const uint32_t count = list_competing(c, slice, list);
	c->competing = count;
	if (!hami_part_one_context(terms, part, count)) {
		c->open = 0;
		c->paused_count = 0;
		return INT64_MAX;
	}
	bool goes_on = count > 1 && has(list, count, c->open);
	for (uint32_t i = 0; i < count && goes_on; i++) /* until another one comes */
		goes_on = list[i] == c->open || has(c->paused, (uint32_t)c->paused_count, list[i]);
	if (goes_on && now < c->until && c->until - now <= HAMI_ROUND_NS) /* or the clock was set back */
		return c->until;
	const uint32_t open = hami_part_context(terms, part, count, now, &c->until);
	c->open = count > 1 ? list[open] : 0;
	c->paused_count = 0;
	for (uint32_t i = 0; i < count && count > 1; i++)
		if (i != open)
			c->paused[c->paused_count++] = list[i];
	return c->until;
}
