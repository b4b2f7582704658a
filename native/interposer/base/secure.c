/* SPDX-License-Identifier: Apache-2.0 */
#include "base/secure.h"

#include <stdatomic.h>
#include <sys/auxv.h>

#include "base/log.h"

static struct {
	_Atomic bool refusal_logged;
} secure;

bool hami_is_secure(void)
{
	return getauxval(AT_SECURE) != 0;
}

void hami_refuse_secure(void)
{
	if (!atomic_exchange(&secure.refusal_logged, true))
		hami_log(0, "a program with more rights than its user (set-user-ID, set-group-ID or file "
			    "capabilities) gets no GPU in a vGPU job; run a copy of it without them\n");
}
