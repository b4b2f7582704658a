/* SPDX-License-Identifier: Apache-2.0 */
#include "arbitration/mean.h"

#define SECOND 1000000000ll

void hami_mean_move(int64_t *mean, int64_t now, int64_t elapsed, int64_t memory)
{
	*mean = elapsed >= memory ? now : *mean + (now - *mean) * (elapsed / 1000) / (memory / 1000);
}

int64_t hami_sensible(int64_t amount)
{
	return amount < 0 ? 0 : amount > SECOND ? SECOND : amount;
}
