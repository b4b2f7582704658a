/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_cuda.h"

CUresult sim_line_begin(struct CUctx_st *c)
{
	struct lines *lines = &sim.lines;
	const uint32_t gpu = 1u << c->device;
	uint32_t i = 0;
	if (!lines->count)
		lines->all[lines->count++] = (struct line){.slot = sim.view.slot};
	while (i < lines->count && lines->all[i].gpus & gpu)
		i++;
	if (i == lines->count) {
		if (i == SIM_MAX_SLOTS || sim_line_take(&sim.view, &lines->all[i].slot))
			return CUDA_ERROR_OUT_OF_MEMORY;
		lines->all[lines->count++].gpus = 0;
	}
	lines->all[i].gpus |= gpu;
	c->line = lines->all[i].slot;
	return CUDA_SUCCESS;
}

void sim_line_end(const struct CUctx_st *c)
{
	for (uint32_t i = 0; i < sim.lines.count; i++)
		if (sim.lines.all[i].slot == c->line)
			sim.lines.all[i].gpus &= ~(1u << c->device);
}
