/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads ask for the primary context at once, and one of them makes it: whichever adds it first, it has the number
 * that its groups have, by which its channels are found (limits/outstanding.h). With objects of the test's own.
 */
#include "../../../native/interposer/base/lock.c"
#include "../../../native/interposer/limits/known.c"
#include "../../../native/interposer/limits/outstanding.c"

#include "check.h"

static const char context;
static uint64_t groups; /* the number that the groups were made with */

const struct real_cuda *hami_resolved_cuda(void)
{
	return NULL;
}

unsigned int hami_slice_count(void)
{
	return 1;
}

int hami_current_slice(const struct real_cuda *real)
{
	return real == NULL ? -1 : 0;
}

bool hami_objects_of_context(unsigned int slice, uint64_t number)
{
	return slice == 0 && groups && number == groups;
}

static void *retain(void *first)
{
	(void)first;
	hami_known_make(0, true);
	hami_known_add(0, (CUcontext)(uintptr_t)&context, &context);
	hami_known_make(0, false);
	return NULL;
}

static uint64_t number(void)
{
	struct hami_answer answer;
	CHECK(hami_known_answers(0, &answer, 1) == 1);
	return answer.context;
}

static void retain_on_another_thread(void)
{
	pthread_t other;
	CHECK(pthread_create(&other, NULL, retain, NULL) == 0);
	CHECK(pthread_join(other, NULL) == 0);
}

int main(void)
{
	hami_known_make(0, true);
	groups = hami_known_making(); /* libcuda makes it now, and returns it to both threads */
	retain_on_another_thread();
	hami_known_add(0, (CUcontext)(uintptr_t)&context, &context);
	hami_known_make(0, false);
	CHECK(number() == groups);
	/* Nor does one who finds it there change its number. */
	retain_on_another_thread();
	retain(NULL);
	CHECK(number() == groups);
	return 0;
}
