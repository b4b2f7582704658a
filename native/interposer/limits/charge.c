/* SPDX-License-Identifier: Apache-2.0 */
#include "limits/charge.h"

#include <errno.h>

#include "base/log.h"
#include "base/secure.h"
#include "region/glance.h"
#include "region/process.h"

int hami_memory_charge(uint64_t bytes)
{
	struct hami_region *region = hami_region();
	int rc = region ? hami_region_charge(region, bytes) : -EPERM;
	if (rc == -EPERM && hami_is_secure())
		hami_refuse_secure();
	else if (rc == -ENOMEM)
		hami_log(2, "a request for %llu bytes does not fit the limit\n", (unsigned long long)bytes);
	else if (rc == -EUSERS)
		hami_log(0,
			 "more than %u processes or %u steps of this job use the GPU at once, "
			 "so the request is refused\n",
			 HAMI_USAGE_SLOT_COUNT, HAMI_USAGE_STEP_COUNT);
	else if (rc)
		hami_log(0, "device memory cannot be accounted for (error %d), so the request is refused\n",
			 -rc);
	return rc;
}

void hami_memory_release(uint64_t bytes)
{
	if (hami_region())
		hami_region_release(hami_region(), bytes);
}

void hami_memory_lacking(uint64_t bytes)
{
	if (hami_region())
		hami_region_lacking(hami_region());
	hami_log(1,
		 "the limits allow %llu bytes more, and the driver has not as much: "
		 "others hold the GPU's memory\n",
		 (unsigned long long)bytes);
}
