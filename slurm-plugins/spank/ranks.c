// SPDX-License-Identifier: GPL-2.0-or-later
#include "ranks.h"

enum { PORT_FIRST = 10000, PORT_COUNT = 20000, STEPS = 10 };

unsigned int ranks_port(uint32_t job_id, uint32_t step_id)
{
	return PORT_FIRST + (job_id % (PORT_COUNT / STEPS)) * STEPS + step_id % STEPS;
}

bool ranks_share_gpus(const char *devices, uint32_t local_world_size)
{
	uint32_t count = *devices ? 1 : 0;

	for (; *devices; devices++)
		count += *devices == ',';
	return count > 0 && local_world_size > count;
}
