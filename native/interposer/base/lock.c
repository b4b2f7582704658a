/* SPDX-License-Identifier: Apache-2.0 */
#include "base/lock.h"

#include <string.h>

void hami_lock_renew(pthread_mutex_t *lock)
{
	static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

	if (memcmp(lock, &fresh, sizeof fresh))
		memcpy(lock, &fresh, sizeof fresh);
}
