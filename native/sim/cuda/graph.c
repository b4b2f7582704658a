/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs of kernels, allocations, frees and empty nodes. Nodes run in the order in which they were added,
 * which is an order that their dependencies allow: a node can only depend on earlier ones.
 */
#include "graph.h"

#include "module.h"

#include <stdlib.h>
#include <string.h>

struct CUgraphNode_st {
	uint32_t magic;
	CUgraphNodeType type;
	uint64_t kernel_ns;
	struct graph_memory *memory; /* of an allocation, and of a free of a graph's allocation */
	struct CUgraphNode_st *next;
};

struct CUgraph_st {
	uint32_t magic;
	size_t count;
	struct CUgraphNode_st *first, **last, *newest;
};

struct CUgraphExec_st {
	uint32_t magic;
	cuuint64_t flags;
	size_t count;
	struct CUgraphNode_st node[];
};

static bool valid_graph(const struct CUgraph_st *g)
{
	return g && g->magic == SIM_GRAPH_MAGIC;
}

static bool valid_exec(const struct CUgraphExec_st *e)
{
	return e && e->magic == SIM_EXEC_MAGIC;
}

CUresult graph_make(CUgraph *out)
{
	struct CUgraph_st *g = calloc(1, sizeof *g);
	if (!g)
		return CUDA_ERROR_OUT_OF_MEMORY;
	g->magic = SIM_GRAPH_MAGIC;
	g->last = &g->first;
	*out = g;
	return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
	SIM_ENTER(cuGraphCreate);
	return out && !flags ? graph_make(out) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult add(CUgraphNode *out, CUgraph g, const CUgraphNode *dependencies, size_t count,
		    CUgraphNodeType type)
{
	if (!out || !valid_graph(g) || (count && !dependencies))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!dependencies[i] || dependencies[i]->magic != SIM_NODE_MAGIC)
			return CUDA_ERROR_INVALID_VALUE;
	struct CUgraphNode_st *n = calloc(1, sizeof *n);
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n->magic = SIM_NODE_MAGIC;
	n->type = type;
	*g->last = n;
	g->last = &n->next;
	g->newest = n;
	g->count++;
	*out = n;
	return CUDA_SUCCESS;
}

const CUgraphNode *graph_last_node(CUgraph graph)
{
	return graph->newest ? &graph->newest : NULL;
}

CUresult graph_add_kernel_ns(CUgraph graph, uint64_t ns)
{
	CUgraphNode node;
	SIM_CHECK(add(&node, graph, NULL, 0, CU_GRAPH_NODE_TYPE_KERNEL));
	node->kernel_ns = ns;
	return CUDA_SUCCESS;
}

static CUresult add_alloc(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			  uint32_t gpu, size_t size, CUdeviceptr *address)
{
	struct graph_memory *memory;
	sim_process_lock();
	CUresult result = graph_memory_make(gpu, size, &memory);
	sim_process_unlock();
	SIM_CHECK(result);
	result = add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	if (result != CUDA_SUCCESS) {
		sim_process_lock();
		graph_memory_drop(memory);
		sim_process_unlock();
		return result;
	}
	(*out)->memory = memory;
	*address = memory->region->base;
	return CUDA_SUCCESS;
}

CUresult graph_add_alloc(CUgraph graph, uint32_t gpu, size_t size, CUdeviceptr *out)
{
	CUgraphNode node;
	return add_alloc(&node, graph, NULL, 0, gpu, size, out);
}

static CUresult add_free(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			 CUdeviceptr address)
{
	sim_process_lock();
	struct graph_memory *memory = graph_memory_find(address);
	sim_process_unlock();
	if (!memory)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_FREE));
	sim_process_lock();
	memory->references++;
	sim_process_unlock();
	(*out)->memory = memory;
	return CUDA_SUCCESS;
}

CUresult graph_add_free(CUgraph graph, CUdeviceptr address)
{
	CUgraphNode node;
	return add_free(&node, graph, NULL, 0, address);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
	SIM_ENTER(cuGraphAddEmptyNode);
	return add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EMPTY);
}

static CUresult add_kernel(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			   const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	struct CUctx_st *c;
	uint64_t ns;
	SIM_CHECK(sim_context(&c));
	if (!p || !sim_function_valid(p->func) || !p->gridDimX || !p->gridDimY || !p->gridDimZ ||
	    !p->blockDimX || !p->blockDimY || !p->blockDimZ)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_kernel_ns(p->func, c->device, p->kernelParams, p->extra, &ns));
	SIM_CHECK(add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL));
	(*out)->kernel_ns = ns;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			      const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
	SIM_ENTER(cuGraphAddKernelNode);
	return add_kernel(out, graph, dependencies, count, parameters);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
				 size_t count, const CUDA_KERNEL_NODE_PARAMS *parameters)
{
	SIM_ENTER(cuGraphAddKernelNode_v2);
	if (!parameters)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS_v1 v1;
	memcpy(&v1, parameters, sizeof v1); /* version 2 appends to it */
	if (!v1.func)
		v1.func = (CUfunction)parameters->kern;
	return add_kernel(out, graph, dependencies, count, &v1);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
				size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	SIM_ENTER(cuGraphAddMemAllocNode);
	if (!p || p->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    p->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_check_device(p->poolProps.location.id));
	return add_alloc(out, graph, dependencies, count, sim.visible[p->poolProps.location.id], p->bytesize,
			 &p->dptr);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies, size_t count,
			       CUdeviceptr address)
{
	SIM_ENTER(cuGraphAddMemFreeNode);
	return add_free(out, graph, dependencies, count, address);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
	SIM_ENTER(cuGraphGetNodes);
	if (!valid_graph(graph) || !count)
		return CUDA_ERROR_INVALID_VALUE;
	size_t room = nodes ? *count : 0, i = 0;
	for (struct CUgraphNode_st *n = graph->first; n && i < room; n = n->next)
		nodes[i++] = n;
	for (; i < room; i++)
		nodes[i] = NULL;
	*count = nodes && room < graph->count ? room : graph->count;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
	SIM_ENTER(cuGraphNodeGetType);
	if (!node || node->magic != SIM_NODE_MAGIC || !type)
		return CUDA_ERROR_INVALID_VALUE;
	*type = node->type;
	return CUDA_SUCCESS;
}

/* With sim.lock held. */
static void drop_nodes(struct CUgraphNode_st *nodes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (nodes[i].memory)
			graph_memory_drop(nodes[i].memory);
}

void graph_destroy(CUgraph graph)
{
	graph->magic = 0;
	sim_process_lock();
	while (graph->first) {
		struct CUgraphNode_st *n = graph->first;
		graph->first = n->next;
		drop_nodes(n, 1);
		n->magic = 0;
		free(n);
	}
	sim_process_unlock();
	free(graph);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	SIM_ENTER(cuGraphDestroy);
	if (!valid_graph(graph))
		return CUDA_ERROR_INVALID_VALUE;
	graph_destroy(graph);
	return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, cuuint64_t flags)
{
	if (!out || !valid_graph(graph))
		return CUDA_ERROR_INVALID_VALUE;
	struct CUgraphExec_st *e = calloc(1, sizeof *e + graph->count * sizeof *e->node);
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->magic = SIM_EXEC_MAGIC;
	e->flags = flags;
	sim_process_lock();
	for (struct CUgraphNode_st *n = graph->first; n; n = n->next) {
		e->node[e->count++] = *n;
		if (n->memory)
			n->memory->references++;
	}
	sim_process_unlock();
	*out = e;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	SIM_ENTER(cuGraphInstantiate);
	if (error)
		*error = NULL;
	if (log && size)
		*log = '\0';
	return instantiate(out, graph, 0);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log, size_t size)
{
	SIM_ENTER(cuGraphInstantiate_v2);
	if (error)
		*error = NULL;
	if (log && size)
		*log = '\0';
	return instantiate(out, graph, 0);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	SIM_ENTER(cuGraphInstantiateWithFlags);
	return instantiate(out, graph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	SIM_ENTER(cuGraphInstantiateWithParams);
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	p->hErrNode_out = NULL;
	CUresult result = instantiate(out, graph, p->flags);
	p->result_out =
		result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
	return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	SIM_ENTER(cuGraphExecDestroy);
	if (!valid_exec(exec))
		return CUDA_ERROR_INVALID_VALUE;
	exec->magic = 0;
	sim_process_lock();
	drop_nodes(exec->node, exec->count);
	sim_process_unlock();
	free(exec);
	return CUDA_SUCCESS;
}

/* With sim.lock held. */
static CUresult run_memory_nodes(struct CUgraphExec_st *e)
{
	if (e->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)
		for (size_t i = 0; i < e->count; i++)
			if (e->node[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && e->node[i].memory->in_use)
				graph_memory_free(e->node[i].memory);
	for (size_t i = 0; i < e->count; i++) {
		struct CUgraphNode_st *n = &e->node[i];
		if (n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			SIM_CHECK(graph_memory_use(n->memory));
		else if (n->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
			SIM_CHECK(graph_memory_free(n->memory));
	}
	return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	struct CUstream_st *s;
	SIM_ENTER(cuGraphLaunch);
	if (!valid_exec(exec))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_CHECK(sim_stream_live(stream, &s));
	sim_process_lock();
	CUresult result = run_memory_nodes(exec);
	sim_process_unlock();
	SIM_CHECK(result);
	uint64_t ns = 0;
	for (size_t i = 0; i < exec->count; i++)
		ns += exec->node[i].kernel_ns;
	sim_submit(s, ns);
	return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
	struct CUstream_st *s;
	SIM_ENTER(cuGraphUpload);
	SIM_CHECK(sim_stream_live(stream, &s));
	return valid_exec(exec) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
