/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/charge.h"

#include <errno.h>
#include <unistd.h>

#include "base/log.h"
#include "base/secure.h"
#include "region/glance.h"
#include "region/process.h"

/* For each slice the process that was told that there is no room for it. A forked child is another one. */
static struct {
	pid_t told[HAMI_SLICES];
} charging;

static void tell_of_too_many(unsigned int slice)
{
	const struct hami_limits *job = hami_slice_region(slice)->job;
	pid_t self = getpid();
	if (__atomic_exchange_n(&charging.told[slice], self, __ATOMIC_RELAXED) == self)
		return; /* programs try again and again */
	hami_log(
		0,
		"as many processes of this job use its slice%s as class %.*s allows (max_processes = %u), so "
		"process %d gets no GPU. Start fewer at once, or start it again when one of them has ended\n",
		hami_slice_place(slice), (int)sizeof job->class_name, job->class_name, job->max_processes,
		(int)self);
}

/* Logs why a process cannot use a slice, or has no memory of it. Returns rc. */
static int explain(unsigned int slice, uint64_t bytes, int rc)
{
	if (rc == -EPERM && hami_is_secure())
		hami_refuse_secure();
	else if (rc == -EDQUOT)
		tell_of_too_many(slice);
	else if (rc == -ENOMEM)
		hami_log(2, "a request for %llu bytes does not fit the limit%s\n", (unsigned long long)bytes,
			 hami_slice_place(slice));
	else if (rc == -EUSERS)
		hami_log(0,
			 "more than %u processes or %u steps of this job use the GPU at once, "
			 "so the request is refused\n",
			 HAMI_USAGE_SLOT_COUNT, HAMI_USAGE_STEP_COUNT);
	else if (rc)
		hami_log(0, "device memory%s cannot be accounted for (error %d), so the request is refused\n",
			 hami_slice_place(slice), -rc);
	return rc;
}

static int charge(unsigned int slice, uint64_t bytes)
{
	return explain(slice, bytes,
		       slice < hami_slice_count() ? hami_region_charge(hami_slice_region(slice), bytes)
						  : -EPERM);
}

int hami_slice_join(unsigned int slice)
{
	struct hami_region *region = hami_slice_region(slice);
	return region->job->max_processes ? explain(slice, 0, hami_region_join(region)) : 0;
}

int hami_memory_charge(uint32_t slices, uint64_t bytes)
{
	uint32_t charged = 0;
	if ((slices & (slices - 1)) == 0) /* all but managed memory */
		return charge((unsigned int)__builtin_ctz(slices), bytes);
	for (uint32_t left = slices; left; left &= left - 1) {
		unsigned int slice = (unsigned int)__builtin_ctz(left);
		int rc = charge(slice, bytes);
		if (rc) {
			hami_memory_release(charged, bytes);
			return rc;
		}
		charged |= hami_only(slice);
	}
	return 0;
}

void hami_memory_release(uint32_t slices, uint64_t bytes)
{
	for (uint32_t left = slices; left; left &= left - 1) {
		unsigned int slice = (unsigned int)__builtin_ctz(left);
		if (slice < hami_slice_count())
			hami_region_release(hami_slice_region(slice), bytes);
	}
}

void hami_memory_release_sums(const struct hami_sums *sums)
{
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		if (sums->bytes[i])
			hami_region_release(hami_slice_region(i), sums->bytes[i]);
}

void hami_memory_lacking(uint32_t slices, uint64_t bytes)
{
	for (unsigned int i = 0; i < hami_slice_count(); i++)
		if (slices >> i & 1)
			hami_region_lacking(hami_slice_region(i));
	hami_log(1,
		 "the limits allow %llu bytes more%s, and the driver has not as much: "
		 "others hold the GPU's memory\n",
		 (unsigned long long)bytes,
		 slices & (slices - 1) ? "" : hami_slice_place((unsigned int)__builtin_ctz(slices)));
}
