/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H
#include "memory.h"

enum { SIM_GRAPH_MAGIC = 0x47524150, SIM_NODE_MAGIC = 0x4e4f4445, SIM_EXEC_MAGIC = 0x45584543 };

/*
 * Memory of an allocation node. Its address exists from the node on; the GPU is charged when a launch first
 * comes to it, and then until cuDeviceGraphMemTrim finds it free. Guarded by sim.lock.
 */
struct graph_memory {
	struct region *region; /* kind REGION_GRAPH */
	uint32_t gpu;
	unsigned references; /* nodes of graphs and executables */
	bool charged, in_use;
	struct graph_memory *next;
};

CUresult graph_memory_make(uint32_t gpu, size_t size, struct graph_memory **out);
struct graph_memory *graph_memory_find(CUdeviceptr address);
CUresult graph_memory_use(struct graph_memory *memory);
CUresult graph_memory_free(struct graph_memory *memory);
void graph_memory_drop(struct graph_memory *memory);

/* graph.c, for captures: nodes behind all others. */
CUresult graph_make(CUgraph *out);
void graph_destroy(CUgraph graph);
CUresult graph_add_kernel_ns(CUgraph graph, uint64_t ns);
CUresult graph_add_alloc(CUgraph graph, uint32_t gpu, size_t size, CUdeviceptr *out);
CUresult graph_add_free(CUgraph graph, CUdeviceptr address);
/* Where the handle of the node added last lies, or NULL. */
const CUgraphNode *graph_last_node(CUgraph graph);
#endif
